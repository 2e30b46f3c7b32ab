"""An unroll as a message and as a trajectory: each array keeps its name, on both ways."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from aging import TeamAges
from toys import Tag

from runnel.graph.flow import trace
from runnel.planning.channels import group_types
from runnel.planning.schemas import from_parts, parts, schema, unroll_fields
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.unrolls import assemble, pack

ENVS, VERSION = 4, 7
GRAPH = trace(TeamAges(unroll=5), Tag().spec, ENVS)


def random(rng, kind):
    if kind.dtype == np.bool_:
        return jnp.asarray(rng.integers(0, 2, kind.shape).astype(bool))
    return jnp.asarray(rng.integers(0, 1000, kind.shape).astype(kind.dtype))


def unrolled(group):
    """A trajectory of random numbers, each field with its own, and the returns and lengths of episodes."""
    rng, agents = np.random.default_rng(3), GRAPH.spec.groups[group].agents
    trajectory = jax.tree.map(lambda kind: random(rng, kind), GRAPH.only("rollout", group).output)
    flags = {
        name: jnp.repeat(random(rng, jax.ShapeDtypeStruct((GRAPH.unroll, ENVS), np.bool_)), agents, axis=1)
        for name in ("terminated", "truncated", "first")
    }
    columns = jnp.arange(ENVS * agents, dtype=jnp.int32)
    trajectory = trajectory._replace(**flags, version=jnp.full_like(columns, VERSION), index=columns)
    returns = jnp.asarray(rng.normal(size=(GRAPH.unroll, ENVS)).astype(np.float32))
    return trajectory, returns, jnp.asarray(rng.integers(0, 99, returns.shape).astype(np.int32))


@pytest.mark.parametrize("group", ["hunter", "runners"])
def test_each_array_of_a_message_has_the_name_and_type_of_its_field(group):
    types = group_types(GRAPH)[group]
    trajectory, returns, lengths = unrolled(group)
    arrays = pack(types, trajectory, trajectory.memory, returns, lengths)
    fields = unroll_fields(types, GRAPH.unroll, ENVS)
    assert [(x.shape, x.dtype) for x in arrays] == [(f.shape, np.dtype(f.dtype)) for f in schema(fields)]
    named, agents = parts(fields, arrays), types.agents.agents
    for flag in ("terminated", "truncated", "first"):
        np.testing.assert_array_equal(named[flag][0], getattr(trajectory, flag)[:, ::agents], err_msg=flag)
    for name in ("observation", "action", "extras", "reward", "last_observation", "memory", "discounted_sum"):
        for found, wanted in zip(named[name], jax.tree.leaves(getattr(trajectory, name)), strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=name)
    np.testing.assert_array_equal(named["episode_return"][0], returns)
    np.testing.assert_array_equal(named["episode_length"][0], lengths)


@pytest.mark.parametrize("group", ["hunter", "runners"])
def test_a_message_becomes_the_same_trajectory_again(group):
    trajectory, returns, lengths = unrolled(group)
    message = pack(group_types(GRAPH)[group], trajectory, trajectory.memory, returns, lengths)
    again, *ends = assemble(Loop(GRAPH), group, [message], jnp.zeros(1, jnp.int32), jnp.full(1, VERSION, jnp.int32))
    for name, wanted in trajectory._asdict().items():
        if name != "memory":  # it is reset where an episode begins
            jax.tree.map(np.testing.assert_array_equal, getattr(again, name), wanted)
    jax.tree.map(np.testing.assert_array_equal, ends, [returns, lengths])


def test_a_message_without_one_of_its_parts_is_refused():
    fields = unroll_fields(group_types(GRAPH)["hunter"], GRAPH.unroll, ENVS)
    named = parts(fields, schema(fields))
    assert from_parts(fields, named) == [*schema(fields)]
    with pytest.raises(AssertionError):
        from_parts(fields, {name: part for name, part in named.items() if name != "truncated"})
