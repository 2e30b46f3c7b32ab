"""Transitions of several steps, cut from a trajectory."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from runnel.observations import view
from runnel.ops.returns import next_observation
from runnel.types import Array, PyTree, Trajectory


class Transition(NamedTuple):
    """From one observation to another, n steps later or fewer."""

    s_tm1: PyTree  # [..., ] the observation
    a_tm1: Array  # [...] the action taken on it
    r_t: Array  # [...] the discounted sum of the rewards on the way
    discount_t: Array  # [...] of the value at the end: 0 where the episode terminated
    s_t: PyTree  # [...] the observation at the end


def n_step_transitions(trajectory: Trajectory, n: int, discount: float) -> Transition:
    """[T * B] one transition from each step.

    A transition ends with its episode, and with the unroll: the last ones are shorter than n and bootstrap earlier,
    which is equally valid. Steps at which the agent has no turn (`runnel.observations`) do not count: the transition
    ends where the agent has a choice again.
    """
    steps = trajectory.reward.shape[0]
    ended = trajectory.terminated | trajectory.truncated
    end = jnp.arange(steps)[:, None] + jnp.zeros_like(trajectory.reward, jnp.int32)  # [T, B] the step it ends with
    r_t, going, weight = trajectory.reward, ~ended, jnp.full_like(trajectory.reward, discount)
    active, choices = view(trajectory.observation).active, jnp.ones_like(end)  # [T, B] choices made so far
    if active is not None:
        active = active.reshape(*end.shape, -1).any(-1)  # of a team, [T, B, agents]: while one of them has a turn
    for k in range(1, min(n, steps) if active is None else steps):
        going = going & (jnp.arange(steps)[:, None] + k < steps)
        if active is not None:
            chooses = _later(active, k)
            going, choices = going & ((choices < n) | ~chooses), choices + chooses
        r_t = r_t + jnp.where(going, weight * _later(trajectory.reward, k), 0.0)
        weight = jnp.where(going, weight * discount, weight)
        end = jnp.where(going, end + 1, end)
        going = going & ~_later(ended, k)

    def at_end(x: Array) -> Array:  # [T, B, ...]
        return jax.vmap(lambda column, t: column[t], (1, 1), 1)(x, end)

    discount_t = jnp.where(at_end(trajectory.terminated), 0.0, weight)
    s_t = jax.tree.map(at_end, next_observation(trajectory))
    transitions = Transition(trajectory.observation, trajectory.action, r_t, discount_t, s_t)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), transitions)


def _later(x: Array, k: int) -> Array:
    """[T, B] the rows k steps later; the last k rows are invalid."""
    return jnp.roll(x, -k, 0)
