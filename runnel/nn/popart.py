"""PopArt (van Hasselt et al., 2016): a value of any scale, learnt as one of scale 1.

The value head predicts in deviations from the mean of its targets. When those statistics change, its weights change the
other way, so that what it says of the value is preserved exactly: adaptively rescaled targets never undo what has been
learnt.

    v_tm1 = popart.value(statistics, prediction.value)  # for returns and advantages
    loss = l2_loss(prediction.value, popart.normalised(statistics, target))
    batch = popart.moments(statistics, target)
    actor_critic, statistics = popart.updated(statistics, actor_critic, batch)  # once per update, at its end

A batch gives nothing but means, and the means of several learners' batches have a mean too. Without PopArt the
statistics are None, a value is as it is predicted, and these functions change nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from runnel.types import Array

STEP = 1e-2
"""How far the statistics move to those of one more batch; of the first hundred batches they are the mean."""

LEAST, MOST = 1e-4, 1e6
"""Bounds of the deviation: targets that are all alike have none."""


class Moments(NamedTuple):
    """Of a batch of targets, about a number near their mean: squares of large numbers leave small ones no bits."""

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
    """What a prediction of the value head stands for."""
    return predicted if statistics is None else statistics.deviation * predicted + statistics.mean


def normalised(statistics: PopArt | None, target: Array) -> Array:
    """What the value head is to predict."""
    return target if statistics is None else (target - statistics.mean) / statistics.deviation


def relative(statistics: PopArt | None, advantage: Array) -> Array:
    """A difference of values, in deviations: so the policy's loss keeps its scale too (Hessel et al., 2019)."""
    return advantage if statistics is None else advantage / statistics.deviation


def moments(statistics: PopArt | None, target: Array) -> Moments | None:
    """Of a batch of targets, for `updated`; those of several batches may be averaged."""
    if statistics is None:
        return None
    centred = target - statistics.mean
    return Moments(statistics.mean, centred.mean(), (centred**2).mean())


def updated(statistics: PopArt | None, model: Any, batch: Moments | None) -> tuple[Any, PopArt | None]:
    """With the targets of one more batch: a model that says the same of values under the new statistics.

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
