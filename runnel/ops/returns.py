"""Values of successor states, and returns that handle truncation differently from termination.

Where an episode was truncated, the next row of a trajectory belongs to another episode, and the true successor is in
`last_observation`. Where it terminated there is no successor, and a discount of 0 hides the value in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from runnel.ops.hardware import launch_bound
from runnel.ops.together import most
from runnel.types import Array, PyTree, Trajectory


def next_observation(trajectory: Trajectory) -> PyTree:
    """[T, B, ...] the true successor of each observation; anything at all where the episode terminated."""

    def pick(observation: Array, last_observation: Array) -> Array:
        next_row = jnp.concatenate([observation[1:], last_observation[-1:]])
        return jnp.where(_like(trajectory.truncated, next_row), last_observation, next_row)

    return jax.tree.map(pick, trajectory.observation, trajectory.last_observation)


def next_values(value: Callable[..., Array], v_tm1: Array, trajectory: Trajectory, *memory: PyTree) -> Array:
    """[T, B] the value of each true successor, given the values `v_tm1` of the agent's observations.

    Only truncated steps and the last need a computation of `value(last_observation, *memory)`, usually one or two in a
    column. They are gathered, the k-th of every column together. `memory` is `[T, B, ...]`.
    """
    needed = trajectory.truncated.at[-1].set(True)
    rank = jnp.where(needed, jnp.cumsum(needed, 0, dtype=jnp.int32), 0)  # 1 for a column's first needed step
    successors = (trajectory.last_observation, *memory)

    def of_rank(k: Array, v_t: Array) -> Array:
        here = rank == k
        step = jnp.argmax(here, 0)  # [B]
        chosen = jax.tree.map(lambda x: jax.vmap(lambda column, t: column[t], (1, 0))(x, step), successors)
        return jnp.where(here, jax.vmap(value)(*chosen), v_t)

    next_rows = jnp.concatenate([v_tm1[1:], v_tm1[-1:]])
    # Beyond its own last rank a row stays as it is: rows that are traced together share one number of turns.
    return jax.lax.fori_loop(1, most(rank.max()) + 1, of_rank, next_rows)


class Advantages(NamedTuple):
    """Generalised advantage estimates (Schulman et al., 2016)."""

    advantage: Array  # [T, B]
    target: Array  # [T, B] the lambda-return: what the value should have been


def advantages(
    r_t: Array, terminated: Any, truncated: Any, v_tm1: Array, v_t: Array, discount: float, lambda_: float
) -> Advantages:
    """[T, B] of an unroll; `v_t` are the values of the true successors."""
    discount_t = jnp.where(terminated, 0.0, discount).astype(v_t.dtype)
    lambda_t = jnp.where(terminated | truncated, 0.0, lambda_).astype(v_t.dtype)
    target = lambda_returns(r_t.astype(v_t.dtype), discount_t, v_t, lambda_t)
    return Advantages(target - v_tm1, target)


def lambda_returns(r_t: Array, discount_t: Array, v_t: Array, lambda_t: Array) -> Array:
    """[T, B] the lambda-returns of every column, by the form that is faster on this device."""
    return (parallel_lambda_returns if launch_bound() else serial_lambda_returns)(r_t, discount_t, v_t, lambda_t)


def serial_lambda_returns(r_t: Array, discount_t: Array, v_t: Array, lambda_t: Array) -> Array:
    """The lambda-returns by a backward loop over the steps."""

    def body(g_t: Array, step: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
        r, discount, v, lambda_ = step
        g_tm1 = r + discount * ((1 - lambda_) * v + lambda_ * g_t)
        return g_tm1, g_tm1

    return jax.lax.scan(body, v_t[-1], (r_t, discount_t, v_t, lambda_t), reverse=True)[1]


def parallel_lambda_returns(r_t: Array, discount_t: Array, v_t: Array, lambda_t: Array) -> Array:
    """The lambda-returns in log T steps: on an accelerator, the loop takes a kernel or more for each step.

    `g_tm1 = bootstrapped + decay * g_t` is a linear recurrence, which is associative.
    """

    def join(later: tuple[Array, Array], earlier: tuple[Array, Array]) -> tuple[Array, Array]:
        g_t, decay_t = later
        bootstrapped, decay = earlier
        return bootstrapped + decay * g_t, decay * decay_t

    decay = discount_t * lambda_t
    bootstrapped = r_t + discount_t * (1 - lambda_t) * v_t
    # Nothing follows the last step: its return is bootstrapped from its successor's value whatever lambda is.
    bootstrapped = bootstrapped.at[-1].add(decay[-1] * v_t[-1])
    return jax.lax.associative_scan(join, (bootstrapped, decay), reverse=True)[0]


def discounted_sums(r_t: Array, ended: Array, initial: Array, discount: float) -> Array:
    """[T, B] each episode's rewards so far, older ones discounted, given the sums [B] before the first step."""

    def body(total: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = step
        total = discount * total + reward
        return jnp.where(ended, 0.0, total), total

    return jax.lax.scan(body, initial.astype(r_t.dtype), (r_t, ended), unroll=16 if launch_bound() else 1)[1]


def _like(flags: Array, x: Array) -> Array:
    """Flags [T, B] with as many axes as x [T, B, ...]."""
    return flags.reshape(flags.shape + (1,) * (x.ndim - flags.ndim))
