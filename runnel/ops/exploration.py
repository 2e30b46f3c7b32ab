"""Exploration for discrete actions, and for bounded actions in units (from -1 to 1)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

from runnel.types import Array

GOLDEN = round(2**32 * (5**0.5 - 1) / 2)
"""The golden ratio less 1, times 2 ** 32: products wrap around at 32 bits, which leaves the fractional part."""

# Among discrete actions


def legal_only(q: Array, action_mask: Array | None) -> Array:
    """[..., n] the values, those of illegal actions below all others; as they are where there is no mask."""
    return q if action_mask is None else jnp.where(action_mask, q, -jnp.inf)


def epsilon_greedy(key: Array, q: Array, epsilon: Array | float, action_mask: Array | None = None) -> Array:
    """[] the best of the legal actions, or with probability `epsilon` a random one."""
    explore_key, action_key = jax.random.split(key)
    anything = jax.random.categorical(action_key, legal_only(jnp.zeros_like(q), action_mask))
    explores = jax.random.bernoulli(explore_key, epsilon)
    return jnp.where(explores, anything, legal_only(q, action_mask).argmax()).astype(jnp.int32)


def annealed(steps: Array, start: float | None, end: float | None, over: int, noisy: bool) -> Array:
    """Epsilon after `steps` steps: it falls from `start` to `end` over the first `over` of them.

    If None, these are 1 and 0.05, or both 0 for noisy networks, whose noise explores.
    """
    end = (0.0 if noisy else 0.05) if end is None else end
    start = (end if noisy else 1.0) if start is None else start
    return optax.linear_schedule(start, end, over)(steps)


def spread(epsilon: Array, index: Array | int, reach: float) -> Array:
    """An epsilon for each column, from `epsilon` down to `epsilon ** (1 + reach)`, as in Ape-X (Horgan et al., 2018).

    There, column i of N has the exponent `1 + reach * i / (N - 1)`. Here the fractional part of i times the golden
    ratio replaces i / (N - 1). Such numbers are spread evenly for any N, so a worker that steps some of the columns
    need not know their total.
    """
    fraction = (jnp.asarray(index).astype(jnp.uint32) * jnp.uint32(GOLDEN)).astype(epsilon.dtype) / 2.0**32
    return epsilon ** (1 + reach * fraction)


# Within bounds


def with_noise(key: Array, action: Array, deviation: float) -> Array:
    """The action with normal noise, within bounds."""
    return jnp.clip(action + deviation * jax.random.normal(key, action.shape, action.dtype), -1.0, 1.0)


def warmed_up(key: Array, action: Array, updates: Array) -> Array:
    """The action, or a uniformly random one before the policy's first update.

    The replay's `min_size` determines how long that is. Steps need not be counted: the number of updates is part of the
    parameters, which every worker that acts has, and `key` is that of the step and the column.
    """
    anything = jax.random.uniform(key, action.shape, action.dtype, -1.0, 1.0)
    return jnp.where(updates == 0, anything, action)
