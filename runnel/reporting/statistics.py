"""Episodes, and runs, in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

RESAMPLES: Final = 2_000
"""Of the bootstrap."""

MOST_DRAWN: Final = 200_000
"""Runs that are drawn in all resamples for a point of a curve."""


def evaluation_statistics(
    returns: Mapping[str, np.ndarray], lengths: np.ndarray, metrics: Mapping[str, np.ndarray],
    learner_returns: np.ndarray, learning: Collection[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """What an evaluation found: the return of an episode is the mean over all groups, or those of `learning`.

    Episodes without a return were cut: they keep their place in `returns` and `lengths`, as None, and do not count. A
    group's return is NaN in an episode in which it does not play.
    `learner_returns`: what learning would have seen of each episode; reported where it differs.
    """
    counted = [values for group, values in returns.items() if learning is None or group in learning]
    places = _means_of_those_that_play(counted)
    if len(counted) < len(returns):
        learner_returns = places  # what learning sees is known of all groups together
    whole = ~np.isnan(places)
    each, lasted, learner = places[whole], lengths[whole], learner_returns[whole]
    means = {group: _mean(values[whole]) for group, values in returns.items()}
    groups = {group: mean for group, mean in means.items() if mean is not None}
    low, high = confidence_interval(each)
    return {
        "episodes": len(each),
        "mean_return": float(each.mean()),
        "std_return": float(each.std()),
        "min_return": float(each.min()),
        "max_return": float(each.max()),
        "return_interval": [low, high],
        "mean_length": float(np.mean(lasted)),
        "returns": [float(value) if counts else None for value, counts in zip(places, whole, strict=True)],
        "lengths": [int(value) if counts else None for value, counts in zip(lengths, whole, strict=True)],
        "env": {name: _mean(values) for name, values in metrics.items()},
        **({"group_returns": groups} if len(groups) > 1 else {}),
        **({} if whole.all() else {"cut_episodes": int((~whole).sum())}),
        **({} if np.allclose(each, learner) else {"learner_return": float(np.mean(learner))}),
    }


def _means_of_those_that_play(returns: Sequence[np.ndarray]) -> np.ndarray:
    """[N] the mean over groups [N] each; NaN where none has a return."""
    each = np.stack(returns)
    counts = (~np.isnan(each)).sum(0)
    return np.where(counts > 0, np.nansum(each, axis=0) / np.maximum(counts, 1), np.nan)


def confidence_interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Of the mean, by the percentile bootstrap with fixed random numbers; the mean itself where there is one value."""
    if len(values) < 2:
        return float(values.mean()), float(values.mean())
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _mean(values: np.ndarray) -> float | None:
    """Over the episodes that reported it."""
    found = values[np.isfinite(values)]
    return float(found.mean()) if found.size else None


def flat(found: Mapping[str, Any], prefix: str = "eval/") -> dict[str, float]:
    """An evaluation's numbers as metrics: `eval/return`, `eval/return/GROUP`, `eval/length`, `eval/env/NAME`."""
    numbers = {
        "return": found["mean_return"],
        "return_std": found["std_return"],
        "length": found["mean_length"],
        **{f"return/{group}": value for group, value in found.get("group_returns", {}).items()},
        **{f"env/{name}": value for name, value in found.get("env", {}).items()},
    }
    return {f"{prefix}{name}": value for name, value in numbers.items() if value is not None and math.isfinite(value)}


# Several runs


def interquartile_mean(values: np.ndarray) -> float:
    """The mean of the middle half, by which Agarwal et al. (2021) compare algorithms: outliers do not decide."""
    cut = len(values) // 4
    return float(np.sort(values)[cut : len(values) - cut].mean())


def interquartile_means(values: np.ndarray) -> np.ndarray:
    """`interquartile_mean` along the last axis: [..., runs] -> [...]."""
    runs = values.shape[-1]
    return np.sort(values, axis=-1)[..., runs // 4 : runs - runs // 4].mean(-1)


def interquartile_intervals(values: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """The percentile bootstrap of `interquartile_means` over whole runs: [N, runs] -> [N] and [N]."""
    drawn = _resampled(values.shape[-1])
    found = [np.quantile(interquartile_means(row[drawn]), [(1 - level) / 2, (1 + level) / 2]) for row in values]
    low, high = np.array(found).T
    return low, high


def _resampled(runs: int) -> np.ndarray:
    """Runs of each resample, by fixed random numbers; of very many runs fewer resamples do."""
    resamples = min(RESAMPLES, max(200, MOST_DRAWN // runs))
    return np.random.default_rng(0).integers(0, runs, (resamples, runs))


def bootstrap_interval(
    values: np.ndarray, statistic: Callable[[np.ndarray], float], level: float = 0.95
) -> tuple[float, float]:
    """Of a statistic of independent values, by the percentile bootstrap with fixed random numbers."""
    if len(values) < 2:
        return statistic(values), statistic(values)
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    found = [statistic(values[row]) for row in drawn]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def members_statistics(values: np.ndarray) -> dict[str, Any]:
    """What several runs reached, in a few numbers."""
    low, high = bootstrap_interval(values, interquartile_mean)
    return {
        "iqm_return": interquartile_mean(values),
        "iqm_interval": [low, high],
        "median_return": float(np.median(values)),
        "mean_return": float(values.mean()),
        "std_return": float(values.std()),
        "min_return": float(values.min()),
        "max_return": float(values.max()),
    }


class Improvement(NamedTuple):
    """How likely a run of the second kind does better than one of the first."""

    probability: float
    low: float
    high: float


def probability_of_improvement(first: np.ndarray, second: np.ndarray, level: float = 0.95) -> Improvement:
    """That a run drawn from `second` scores higher than one drawn from `first`, equal scores counting half.

    Scores are finite: NaN is neither more nor less than another.
    """
    if not len(first) or not len(second) or not np.isfinite(first).all() or not np.isfinite(second).all():
        raise ValueError("found no scores, or some that are not finite")

    def share(a: np.ndarray, b: np.ndarray) -> float:
        ordered = np.sort(a)
        below, not_above = (np.searchsorted(ordered, b, side) for side in ("left", "right"))
        return float((below + not_above).mean() / (2 * len(a)))

    random = np.random.default_rng(0)
    a, b = (random.integers(0, len(each), (RESAMPLES, len(each))) for each in (first, second))
    found = [share(first[i], second[j]) for i, j in zip(a, b, strict=True)]
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Improvement(share(first, second), float(low), float(high))
