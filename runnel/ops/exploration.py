"""Exploration with actions within bounds, in units in which their space reaches from -1 to 1."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import rlax

from runnel.types import Array


def with_noise(key: Array, action: Array, deviation: float) -> Array:
    """The action with normal noise, within bounds."""
    return jnp.clip(rlax.add_gaussian_noise(key, action, deviation), -1.0, 1.0)


def warmed_up(key: Array, action: Array, updates: Array) -> Array:
    """The action, or any other with equal probability while the policy has learnt nothing: before its first update.

    How long that is, the replay's `min_size` says. So nobody counts steps: the number of updates is part of the
    parameters, which whoever acts has under every distribution, and `key` is that of the step and the column.
    """
    anything = jax.random.uniform(key, action.shape, action.dtype, -1.0, 1.0)
    return jnp.where(updates == 0, anything, action)
