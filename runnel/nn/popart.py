"""PopArt (van Hasselt et al., 2016): a value of any scale, learnt as one of scale 1.

The value head predicts normalised targets. When the statistics of the targets change, the head's weights change
inversely, so that its unnormalised predictions are preserved exactly.

    v_tm1 = popart.value(statistics, prediction.value)  # for returns and advantages
    loss = l2_loss(prediction.value, popart.normalised(statistics, target))
    batch = popart.moments(statistics, target)
    actor_critic, statistics = popart.updated(statistics, actor_critic, batch)  # once per update, at its end

A batch contributes only means, which can be averaged over several learners. Without PopArt the statistics are None, and
these functions return values unchanged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from runnel.types import Array

STEP = 1e-2
"""The step of the statistics towards those of one more batch; over the first hundred batches they are the mean."""

LEAST, MOST = 1e-4, 1e6
"""Bounds of the deviation, which is 0 for constant targets."""


class Moments(NamedTuple):
    """Moments of a batch of targets, about a number near their mean, because large squares would lose small ones."""

    about: Array  # []
    first: Array  # []
    second: Array  # []


class PopArt(NamedTuple):
    """Running statistics of targets."""

    updates: Array  # []
    mean: Array  # []
    variance: Array  # []

    @property
    def deviation(self) -> Array:
        return jnp.clip(jnp.sqrt(self.variance), LEAST, MOST)


def initial(popart: bool) -> PopArt | None:
    """Mean 0, deviation 1; None where values are not to be rescaled."""
    dtype = jnp.result_type(float)
    return PopArt(jnp.int32(0), jnp.zeros((), dtype), jnp.ones((), dtype)) if popart else None


def value(statistics: PopArt | None, predicted: Array) -> Array:
    """Unnormalises a prediction of the value head."""
    return predicted if statistics is None else statistics.deviation * predicted + statistics.mean


def normalised(statistics: PopArt | None, target: Array) -> Array:
    """Normalises a target for the value head."""
    return target if statistics is None else (target - statistics.mean) / statistics.deviation


def relative(statistics: PopArt | None, advantage: Array) -> Array:
    """Normalises a difference of values, so that the policy's loss keeps its scale too (Hessel et al., 2019)."""
    return advantage if statistics is None else advantage / statistics.deviation


def moments(statistics: PopArt | None, target: Array) -> Moments | None:
    """Moments of a batch of targets, for `updated`; those of several batches may be averaged."""
    if statistics is None:
        return None
    centred = target - statistics.mean
    return Moments(statistics.mean, centred.mean(), (centred**2).mean())


def updated(statistics: PopArt | None, model: Any, batch: Moments | None) -> tuple[Any, PopArt | None]:
    """Updates the statistics by a batch of targets; returns a model with the same unnormalised predictions.

    Its `critic` is the layer that predicts them.
    """
    if statistics is None or batch is None:
        return model, statistics
    new = moved(statistics, batch)
    head = model.critic["params"]
    kernel = head["kernel"] * (statistics.deviation / new.deviation)
    bias = normalised(new, value(statistics, head["bias"]))
    return model.replace(critic={"params": {"kernel": kernel, "bias": bias}}), new


def moved(statistics: PopArt, batch: Moments) -> PopArt:
    """The statistics after one more batch."""
    count = statistics.updates + 1
    step = jnp.maximum(STEP, 1 / count).astype(statistics.mean.dtype)
    off = batch.about - statistics.mean  # not 0 where the batch was made with older statistics
    shift = step * (batch.first + off)
    square = (1 - step) * statistics.variance + step * (batch.second + 2 * off * batch.first + off**2)
    return PopArt(count, statistics.mean + shift, jnp.maximum(square - shift**2, 0.0))
