"""Episodes in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

RESAMPLES: Final = 2_000
"""Of the bootstrap."""


def evaluation_statistics(
    returns: Mapping[str, np.ndarray], lengths: np.ndarray, metrics: Mapping[str, np.ndarray],
    learner_returns: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    """What an evaluation found: of several groups, the return of an episode is the mean over them.

    `learner_returns`: what learning would have seen of each episode; reported where it differs.
    """
    each = np.mean(list(returns.values()), axis=0)
    groups = {group: float(values.mean()) for group, values in returns.items()}
    low, high = confidence_interval(each)
    return {
        "episodes": len(each),
        "mean_return": float(each.mean()),
        "std_return": float(each.std()),
        "min_return": float(each.min()),
        "max_return": float(each.max()),
        "return_interval": [low, high],
        "mean_length": float(np.mean(lengths)),
        "returns": [float(value) for value in each],
        "lengths": [int(value) for value in lengths],
        "env": {name: _mean(values) for name, values in metrics.items()},
        **({"group_returns": groups} if len(groups) > 1 else {}),
        **({} if np.allclose(each, learner_returns) else {"learner_return": float(np.mean(learner_returns))}),
    }


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
