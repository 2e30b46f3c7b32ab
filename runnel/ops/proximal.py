"""Proximal updates: the clipped losses of PPO and MAPPO, and epochs of minibatches over one unroll."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from runnel.ops import minibatches
from runnel.ops.averages import mean
from runnel.ops.surrogate import clipped_surrogate
from runnel.types import Array, PyTree

CarryT = TypeVar("CarryT")


class PolicyTerms(NamedTuple):
    """Loss and metrics of a minibatch, averaged over the steps in which the agent was active."""

    loss: Array
    entropy: Array
    approx_kl: Array  # from the policy that acted (Schulman, 2020)
    clip_fraction: Array  # of steps whose ratio lies beyond the clip


def policy_terms(
    distribution: Any, sample: Array, log_prob: Array, advantage: Array, active: Array | None,
    clip: float, dual_clip: float | None = None,
) -> PolicyTerms:  # fmt: skip
    """The clipped surrogate loss, given samples and their log-probabilities under the policy that acted."""
    log_ratio = distribution.log_prob(sample) - log_prob
    ratio = jnp.exp(log_ratio)
    return PolicyTerms(
        -mean(clipped_surrogate(ratio, advantage, clip, dual_clip), active),
        mean(distribution.entropy(), active),
        mean(ratio - 1 - log_ratio, active),
        mean(jnp.abs(ratio - 1) > clip, active),
    )


def clipped_value_loss(value: Array, target: Array, v_acted: Array, clip: float | None) -> Array:
    """[...] half the squared error, or that of the value clipped to within `clip` of the old one if it is larger."""
    loss = optax.l2_loss(value, target)
    if clip is None:
        return loss
    held = v_acted + jnp.clip(value - v_acted, -clip, clip)
    return jnp.maximum(loss, optax.l2_loss(held, target))


def epochs(
    step: Callable[[CarryT, PyTree], tuple[CarryT, PyTree]], carry: CarryT, batch: PyTree, key: Array,
    count: int, parts: int, sequences: bool, unroll: int = 1,
) -> tuple[CarryT, PyTree]:  # fmt: skip
    """Steps through a batch `[T, B, ...]` `count` times, each time in a new random order of `parts` minibatches.

    Returns the last carry, and the means of all steps' metrics. `unroll`: the number of steps in each compiled
    iteration.
    """
    cut = minibatches.cut(batch, parts, sequences)
    orders = jnp.concatenate([cut.orders(epoch_key) for epoch_key in jax.random.split(key, count)])
    carry, metrics = jax.lax.scan(lambda carry, order: step(carry, cut.take(order)), carry, orders, unroll=unroll)
    return carry, jax.tree.map(jnp.mean, metrics)
