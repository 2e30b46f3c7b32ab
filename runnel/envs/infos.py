"""Metrics of the environment from the `info` of libraries: its numbers at the last step of an episode.

No JAX is imported here. The info of other steps is ignored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from runnel.environment import LARGEST_METRIC, METRIC_NAME, MOST_METRICS, EpisodeMetrics

KEPT: Final = 10_000
"""The most episodes kept until they are fetched; beyond this the oldest are dropped."""

WRAPPERS: Final = "TimeLimit."
"""The prefix of entries of Gymnasium's own wrapper in `info`."""


def numbers(info: Any) -> dict[str, float]:
    """The finite numbers of an `info` that are called by a plain name; everything else is ignored."""
    found: dict[str, float] = {}
    try:
        for name, value in info.items():
            if isinstance(name, str) and METRIC_NAME.fullmatch(name) and not name.startswith(WRAPPERS):
                kept = number(value)
                if kept is not None:
                    found[name] = kept
                    if len(found) == MOST_METRICS:
                        break
    except Exception:  # no dict, or one of the user's own making: metrics are no reason to stop
        return {}
    return found


def number(value: Any) -> float | None:
    """A bool, int or float, of Python or NumPy, as a float; None for anything else and for values that are not
    finite."""
    if isinstance(value, np.ndarray | np.generic):
        if value.ndim or value.dtype.kind not in "biuf":
            return None
    elif not isinstance(value, bool | int | float):
        return None
    try:
        given = float(value)
    except Exception:  # an int too large for a float
        return None
    return given if abs(given) <= LARGEST_METRIC else None  # also false of NaN


def means(infos: Iterable[Any]) -> dict[str, float]:
    """The numbers of several agents, each averaged over those that have it."""
    sums: dict[str, tuple[float, int]] = {}
    for info in infos:
        for name, value in numbers(info).items():
            total, count = sums.get(name, (0.0, 0))
            sums[name] = (total + value, count + 1)
    return {name: total / count for name, (total, count) in sums.items()}


def by_group(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Metrics by group; with several groups, names include the group's."""
    if len(values) == 1:
        return dict(next(iter(values.values())))
    return {f"{group}/{name}": value for group, own in values.items() for name, value in own.items()}


class EndedEpisodes:
    """The metrics of episodes that have ended, until they are fetched."""

    def __init__(self) -> None:
        self._kept: deque[EpisodeMetrics] = deque(maxlen=KEPT)

    def add(self, row: int, episode: int, values: dict[str, float]) -> None:
        if values:
            self._kept.append(EpisodeMetrics(row, episode, values))

    def fetch(self) -> list[EpisodeMetrics]:
        """Returns all of them, and clears them."""
        kept = list(self._kept)
        self._kept.clear()
        return kept
