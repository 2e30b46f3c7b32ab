"""V-trace (Espeholt et al., 2018): off-policy value targets and advantages."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from runnel.ops.returns import lambda_returns
from runnel.types import Array, Trajectory


class VTrace(NamedTuple):
    """Targets and advantages, corrected for the difference between two policies."""

    target: Array  # [T, B] for the value
    advantage: Array  # [T, B] weighted by the clipped ratio


def ratios(log_prob: Array, acted_log_prob: Array, active: Array | None = None) -> Array:
    """[T, B] ratios of probabilities, now and when acting; 1 in idle steps, whose actions have no effect."""
    ratio = jnp.exp(jax.lax.stop_gradient(log_prob) - acted_log_prob)
    return ratio if active is None else jnp.where(active, ratio, 1.0)


class Corrected(NamedTuple):
    """The target, advantage and weight of V-trace, for algorithms that scale advantages: a weight of 0 stays 0."""

    target: Array  # [T, B] for the value
    advantage: Array  # [T, B]
    weight: Array  # [T, B] the clipped ratio


def vtrace(
    trajectory: Trajectory, v_tm1: Array, v_t: Array, rho_tm1: Array,
    discount: float, lambda_: float = 1.0, clip_rho: float = 1.0, clip_c: float = 1.0,
) -> VTrace:  # fmt: skip
    """[T, B] targets and advantages, given values of observations and of their true successors, and ratios of
    probabilities."""
    target, advantage, weight = corrected(trajectory, v_tm1, v_t, rho_tm1, discount, lambda_, clip_rho, clip_c)
    return VTrace(target, weight * advantage)


def corrected(
    trajectory: Trajectory, v_tm1: Array, v_t: Array, rho_tm1: Array,
    discount: float, lambda_: float = 1.0, clip_rho: float = 1.0, clip_c: float = 1.0,
) -> Corrected:  # fmt: skip
    """[T, B] targets and advantages before advantages are weighted.

    The sums are those of `rlax.vtrace_td_error_and_advantage`, which uses the next row's value for the successor's;
    that is wrong where an episode was truncated. No sum reaches beyond the end of an episode. If all ratios are 1,
    these are generalised advantage estimates.
    """
    r_t, ended = trajectory.reward.astype(v_t.dtype), trajectory.terminated | trajectory.truncated
    discount_t = jnp.where(trajectory.terminated, 0.0, discount).astype(v_t.dtype)
    lambda_t = jnp.where(ended, 0.0, lambda_).astype(v_t.dtype)
    clipped_rho_tm1 = jnp.minimum(clip_rho, rho_tm1)
    c_tm1 = lambda_t * jnp.minimum(clip_c, rho_tm1)

    td_error = clipped_rho_tm1 * (r_t + discount_t * v_t - v_tm1)
    # error_tm1 = td_error + discount_t * c_tm1 * error_t: a lambda-return whose bootstrap is 0.
    error_tm1 = lambda_returns(td_error, discount_t, jnp.zeros_like(v_t), c_tm1)
    error_t = jnp.concatenate([error_tm1[1:], jnp.zeros_like(error_tm1[:1])])
    q_tm1 = r_t + discount_t * (v_t + lambda_t * error_t)
    return Corrected(v_tm1 + error_tm1, q_tm1 - v_tm1, clipped_rho_tm1)
