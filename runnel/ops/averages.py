"""Averages over the steps that count: all of them, or those in which an agent was active.

The mask is `view(trajectory.observation).active`: None if every step counts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from runnel.types import Array


def mean(x: Array, counts: Array | None = None) -> Array:
    """[] the mean of the elements that count; 0 if none does. Other elements may be anything, NaN too."""
    if counts is None:
        return jnp.mean(x)
    total = jnp.sum(counts, dtype=jnp.result_type(x, float))
    return jnp.sum(jnp.where(counts, x, 0.0)) / jnp.maximum(total, 1)


def standardised(x: Array, counts: Array | None = None) -> Array:
    """Standardised by the mean and deviation of the elements that count."""
    if counts is None:
        return (x - x.mean()) / (x.std() + 1e-8)
    centred = x - mean(x, counts)
    return jnp.where(counts, centred * jax.lax.rsqrt(mean(centred**2, counts) + 1e-8), 0.0)
