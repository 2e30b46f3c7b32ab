"""Unrolls as messages and as trajectories: what a block of environments sent, as learning sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from runnel.ops.episodes import Finished
from runnel.planning.channels import group_types
from runnel.planning.schemas import GroupTypes, as_observation, from_parts, parts, unroll_fields
from runnel.runtime.programs import row_packing
from runnel.runtime.programs.loop import Loop
from runnel.types import PER_COLUMN, Array, Trajectory


def assemble(
    loop: Loop,
    group: str,
    blocks: Sequence[row_packing.PackedMessage],
    starts: Array,
    versions: Array,
) -> tuple[Trajectory, Array, Array]:
    """Blocks of one group side by side as one trajectory, with returns and lengths [T, E] of what ended in it.

    Block k begins at environment `starts[k]` and was acted by `versions[k]`. All blocks are of one size.
    """
    graph = loop.graph
    types, agents = group_types(graph)[group], graph.spec.groups[group].agents
    arrays = [row_packing.apart(block) for block in blocks]
    envs = arrays[0][-1].shape[1]
    named = [parts(unroll_fields(types, graph.unroll, envs), block) for block in arrays]

    def joined(name: str) -> list[Array]:
        axis = 0 if name in PER_COLUMN else 1
        sides = [list(leaves) for leaves in zip(*(block[name] for block in named), strict=True)]
        return [jnp.concatenate(side, axis) if len(side) > 1 else jnp.asarray(side[0]) for side in sides]

    def one(name: str) -> Any:
        return () if name in types.omits else joined(name)[0]

    def tree(name: str, like: Any) -> Any:
        return () if name in types.omits else jax.tree.unflatten(jax.tree.structure(like), joined(name))

    def seen(name: str) -> Any:
        return () if name in types.omits else as_observation(space, joined(name))

    act = loop.node("act", group).output
    space = graph.spec.groups[group].observation
    each = jnp.arange(envs * agents, dtype=jnp.int32)
    index = (starts[:, None] * agents + each).reshape(-1)
    version = jnp.repeat(versions, envs * agents)
    trajectory = loop.trajectory(
        group,
        memory=tree("memory", act.memory),
        discounted_sum=one("discounted_sum"),
        version=version,
        index=index,
        observation=seen("observation"),
        action=one("action"),
        extras=tree("extras", act.extras),
        reward=one("reward"),
        terminated=one("terminated"),
        truncated=one("truncated"),
        last_observation=seen("last_observation"),
        first=one("first"),
    )
    numbers = (starts[:, None] + jnp.arange(envs, dtype=jnp.int32)).reshape(-1)
    returns = loop.own_returns(group, joined("episode_return")[0], numbers)
    return trajectory, returns, joined("episode_length")[0]


def assemble_all(
    loop: Loop, blocks: dict[str, Sequence[row_packing.PackedMessage]], starts: Array, versions: dict[str, Array],
) -> tuple[dict[str, Trajectory], Finished]:  # fmt: skip
    """Every group's blocks; all groups end their episodes together."""
    trajectories, returns, lengths = {}, {}, jnp.zeros((0,), jnp.int32)
    for group, own in blocks.items():
        trajectories[group], returns[group], lengths = assemble(loop, group, own, starts, versions[group])
    return trajectories, Finished(returns, lengths)


def pack(types: GroupTypes, trajectory: Trajectory, memory: Any, returns: Array, lengths: Array) -> list[Any]:
    """A compiled unroll of a worker as the arrays of a message; `memory` is that before the first step."""
    steps, envs = lengths.shape

    def per_environment(flags: Any) -> Any:
        return jax.tree.map(lambda x: x[:, :: types.agents.agents], flags)

    values = {
        "observation": trajectory.observation,
        "action": trajectory.action,
        "extras": trajectory.extras,
        "reward": trajectory.reward,
        "terminated": per_environment(trajectory.terminated),
        "truncated": per_environment(trajectory.truncated),
        "last_observation": trajectory.last_observation,
        "first": per_environment(trajectory.first),
        "memory": memory,
        "discounted_sum": trajectory.discounted_sum,
        "episode_return": returns,
        "episode_length": lengths,
    }
    fields = unroll_fields(types, steps, envs)
    return from_parts(fields, {name: jax.tree.leaves(values[name]) for name in fields})
