"""Metrics of JAX environments: named, and summed over the episodes that ended in an unroll."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp

from runnel.environment import METRIC_NAME, MOST_METRICS
from runnel.types import Array, PyTree


def named(metrics: PyTree) -> dict[str, Array]:
    """`TimeStep.metrics` by name; those of a group are called `GROUP/NAME`."""
    found: dict[str, Array] = {}
    for name, value in dict(metrics).items():
        if isinstance(value, dict):
            found |= {f"{name}/{own}": each for own, each in value.items()}
        else:
            found[name] = value
    return found


def summed(metrics: dict[str, Array], ended: Array) -> dict[str, Array]:
    """By name: [2] the sum of a metric [T, E] where episodes `ended` [T, E], and their number; finite values only."""
    if not metrics:
        return {}
    values = jnp.stack([jnp.asarray(value, jnp.float32) for value in metrics.values()])  # [M, T, E]
    counted = ended & jnp.isfinite(values)
    sums = jnp.where(counted, values, 0.0).sum((1, 2))
    counts = counted.astype(jnp.float32).sum((1, 2))
    return dict(zip(metrics, jnp.stack([sums, counts], axis=1), strict=True))


def scalars(info: Mapping[str, PyTree]) -> PyTree:
    """The scalars of a library's `info` as metrics; () if it has none."""
    found = {}
    for name, value in info.items():
        if METRIC_NAME.fullmatch(name) and not isinstance(value, Mapping) and jnp.ndim(value) == 0:
            array = jnp.asarray(value)
            if array.dtype.kind in "biuf":
                found[name] = array.astype(jnp.float32)
    return dict(list(found.items())[:MOST_METRICS]) or ()
