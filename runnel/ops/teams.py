"""The agents of a group treated as one player with one reward.

A column of a trajectory is one agent of one environment, and the agents of an environment are adjacent: column =
environment * agents + agent.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from runnel.observations import parted, view
from runnel.types import Array, PyTree, Trajectory


def together(trajectory: Trajectory, agents: int) -> Trajectory:
    """The trajectory `[T, E * agents]` of a group as one of environments, `[T, E]`.

    The agents' observations, actions and masks keep an axis of agents, `[T, E, agents, ...]`. The team's reward is the
    mean of theirs, which equals the shared reward if they share one. The state, equal for all, is kept once.
    """
    return trajectory._replace(
        observation=observed_together(trajectory.observation, agents),
        action=_by_agent(trajectory.action, agents),
        reward=_by_agent(trajectory.reward, agents).mean(-1),
        terminated=trajectory.terminated[:, ::agents],
        truncated=trajectory.truncated[:, ::agents],
        last_observation=observed_together(trajectory.last_observation, agents),
        first=trajectory.first[:, ::agents],
    )


def taking_part(active: Array | None) -> Array:
    """[..., agents] 1.0 for agents whose values count for the team's, 0.0 for others.

    Agents that are not active (dead, not yet present, without a turn) add nothing. Where none is active, such as in
    another group's turn, all count, because the team's value must still be estimated there.
    """
    if active is None:
        return jnp.ones(())
    return (active | ~active.any(-1, keepdims=True)).astype(jnp.result_type(float))


def observed_together(observation: PyTree, agents: int) -> PyTree:
    """The observations of a group's columns, [T, E * agents, ...], by environment: see `together`."""
    seen, action_mask, active, state = view(observation)
    seen, action_mask, active = jax.tree.map(lambda x: _by_agent(x, agents), (seen, action_mask, active))
    return parted(seen, action_mask, active, None if state is None else state[:, ::agents])


def _by_agent(x: Array, agents: int) -> Array:
    """[T, E, agents, ...] from [T, E * agents, ...]."""
    return x.reshape(x.shape[0], -1, agents, *x.shape[2:])
