"""Networks for several agents: who is asked, what all know, and how their values mix."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.nn import AgentPolicy, Mixer, StateValue, TeamValues
from runnel.nn.cores import Memory
from runnel.observations import parted, view
from runnel.types import AgentSpec, Box, Discrete, zeros

FLAGS = Box((3,), np.dtype(np.bool_), 0, 1)
ACTIVE = Box((), np.dtype(np.bool_), 0, 1)
SPECS = {
    "plain": AgentSpec(Box((2,)), Discrete(3), agents=2),
    "parted": AgentSpec(parted(Box((2,)), FLAGS, ACTIVE, Box((5,))), Discrete(3), agents=2),
    "alone": AgentSpec(Box((2,)), Discrete(3)),
}


@dataclass(frozen=True)
class Settings:
    hidden: tuple[int, ...] = (8,)
    activation: Any = "tanh"
    network: Any = None
    memory: Memory = "none"
    memory_size: int = 4
    agent_ids: bool = True


def created(kind, settings, spec):
    return jax.jit(lambda key: kind.create(settings, key, spec))(jax.random.key(0))


def test_agents_are_distinguished_by_number_only_where_asked():
    seen = jnp.ones(2)
    values = created(TeamValues, Settings(), SPECS["plain"])
    assert not np.allclose(values(seen, 0), values(seen, 1))
    np.testing.assert_array_equal(values(seen, 1), values(seen, 7))  # a column's index will do
    alike = created(TeamValues, Settings(agent_ids=False), SPECS["plain"])
    np.testing.assert_array_equal(alike(seen, 0), alike(seen, 1))


def team(active=(True, True), legal=((True, True, True),) * 2):
    return parted(jnp.eye(2), jnp.array(legal), jnp.array(active), jnp.arange(5.0))


def test_a_team_chooses_legal_actions_and_the_resting_count_for_nothing():
    values = created(TeamValues, Settings(), SPECS["parted"])
    legal = ((False, False, True), (True, False, False))
    np.testing.assert_array_equal(jax.jit(values.greedy)(team(legal=legal)), [2, 0])
    both, one = (jax.jit(values.of)(team(active), jnp.array([1, 1])) for active in ((True, True), (False, True)))
    np.testing.assert_array_equal(one, both * jnp.array([0, 1]))


@pytest.mark.parametrize("kind", ["parted", "alone"])
def test_a_mixture_rises_with_each_of_its_values_and_depends_on_the_state(kind):
    spec = SPECS[kind]
    mixer = jax.jit(lambda key: Mixer.create(key, spec))(jax.random.key(0))
    whole = view(spec.observation).state is not None
    observation = parted(jnp.ones((spec.agents, 2)), state=jnp.ones(5) if whole else None)
    values = jax.random.normal(jax.random.key(1), (100, spec.agents))
    slopes = jax.jit(lambda v: jax.vmap(jax.grad(mixer), (0, None))(v, observation))(values)
    assert (slopes >= 0).all()
    assert (slopes > 0).any()
    elsewhere = jax.tree.map(lambda x: -x, observation)
    mix = jax.jit(lambda values, observation: mixer(values, observation))
    assert not np.allclose(mix(values[0], observation), mix(values[0], elsewhere))


@pytest.mark.parametrize("kind", SPECS)
def test_the_value_knows_the_state_and_the_agent_and_the_policy_only_what_it_sees(kind):
    spec, columns = SPECS[kind], 2 * SPECS[kind].agents
    critic = created(StateValue, Settings(), spec)
    policy = created(AgentPolicy, Settings(), spec)
    observation = jax.tree.map(jnp.asarray, zeros(spec.observation, 1, columns))
    if kind == "parted":
        observation["action_mask"] |= True
        changed = {**observation, "state": observation["state"] + 1}
    else:  # what the last agent of each environment sees
        changed = observation.at[:, spec.agents - 1 :: spec.agents].add(1)
    agent = jnp.arange(columns)[None]

    @jax.jit
    def values(observation):
        return jax.vmap(jax.vmap(critic))(critic.with_state(observation), agent)[0]

    @jax.jit
    def logits(observation):
        step = jax.vmap(jax.vmap(policy.step, (0, None, 0)), (0, None, 0))
        return step(observation, (), agent)[0].logits[0]

    assert (values(observation) != values(changed)).all()
    np.testing.assert_array_equal(logits(observation)[0] != logits(changed)[0], kind == "alone")
    if spec.agents > 1:
        assert values(observation)[0] != values(observation)[1]


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_policy_unrolled_is_the_policy_stepped(memory):
    policy = created(AgentPolicy, Settings(memory=memory), SPECS["plain"])
    observation = jax.random.normal(jax.random.key(1), (6, 2))
    first = jnp.array([True, False, False, True, False, False])
    start = () if policy.core is None else policy.core.initial_memory()
    found = jax.jit(policy.unroll)(observation, first, start, jnp.ones(6, jnp.int32)).logits
    step, memory = jax.jit(policy.step), start
    for t in range(6):
        memory = start if first[t] else memory
        distribution, memory = step(observation[t], memory, 1)
        np.testing.assert_allclose(found[t], distribution.logits, rtol=1e-5, atol=1e-6)
