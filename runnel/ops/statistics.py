"""Running mean and variance, of observations and of returns.

They are part of the learner's state, change once per update, and are frozen while acting: so all workers that act with
one version of the parameters normalise observations alike.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.observations import view
from runnel.types import Array, Box, Leaf, PyTree, Space

CLIP = 10.0
"""The clip in deviations: values further out occur only in the first few steps."""


class Statistics(NamedTuple):
    """Running statistics of all values so far."""

    count: Array  # []
    mean: Array  # [...]
    variance: Array  # [...]


def initial_statistics(shape: tuple[int, ...] = ()) -> Statistics:
    """Initial statistics: mean 0, variance 1, and almost no weight."""
    dtype = jnp.result_type(float)
    return Statistics(jnp.array(1e-4, dtype), jnp.zeros(shape, dtype), jnp.ones(shape, dtype))


def update_statistics(statistics: Statistics, values: Array, counts: Array | None = None) -> Statistics:
    """Updates by the values `[T, B, ...]` of one more batch, or those of them that count (Chan et al., 1979)."""
    count, mean, variance = statistics
    more, found, spread = _moments(values.astype(mean.dtype), counts)
    total = count + more
    delta = found - mean
    squares = variance * count + spread * more + delta**2 * count * more / total
    return Statistics(total, mean + delta * more / total, squares / total)


def _moments(values: Array, counts: Array | None) -> tuple[int | Array, Array, Array]:
    """The number of values, their mean and their variance."""
    if counts is None:
        return values.shape[0] * values.shape[1], values.mean((0, 1)), values.var((0, 1))
    more = jnp.sum(counts, dtype=values.dtype)
    weight, each = jnp.maximum(more, 1), jnp.expand_dims(counts, tuple(range(2, values.ndim)))
    mean = jnp.where(each, values, 0).sum((0, 1)) / weight
    return more, mean, jnp.where(each, (values - mean) ** 2, 0).sum((0, 1)) / weight


def observation_statistics(space: Space) -> list[Statistics | None]:
    """Statistics for each leaf of an observation that holds real numbers; images and categories have none."""

    def of(leaf: Leaf) -> Statistics | None:
        real = isinstance(leaf, Box) and np.issubdtype(leaf.dtype, np.floating)
        return initial_statistics(leaf.shape) if real else None

    return [of(leaf) for leaf in jax.tree.leaves(space)]


def update_observation_statistics(statistics: list[Statistics | None], observation: PyTree) -> list[Statistics | None]:
    """Updates by the observations `[T, B, ...]` of one more batch: the parts that agents see, where they are active."""
    leaves = zip(statistics, jax.tree.leaves(observation), _counts(observation), strict=True)
    return [None if known is None else update_statistics(known, x, counts) for known, x, counts in leaves]


def _counts(observation: PyTree) -> list[Array | None]:
    """For each leaf, the mask of the steps that count; None where all do."""
    active = view(observation).active
    if active is None:
        return [None for _ in jax.tree.leaves(observation)]
    seen = {part: jax.tree.map(lambda _, part=part: part == "observation", tree) for part, tree in observation.items()}
    return [active if own else None for own in jax.tree.leaves(seen)]


def normalise(statistics: list[Statistics | None], observation: PyTree) -> PyTree:
    """Normalises one observation, or any number of them."""

    def one(known: Statistics | None, x: Array) -> Array:
        if known is None:
            return x
        return jnp.clip((x - known.mean) * jax.lax.rsqrt(known.variance + 1e-8), -CLIP, CLIP)

    leaves, structure = jax.tree.flatten(observation)
    return jax.tree.unflatten(structure, [one(known, x) for known, x in zip(statistics, leaves, strict=True)])
