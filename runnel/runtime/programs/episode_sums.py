"""Metrics of ended episodes, added up where the environments are stepped. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from runnel.environment import EpisodeMetrics

EpisodeSums = dict[str, tuple[float, int]]
"""By metric of the environment: the sum over episodes, and of how many."""


def add(sums: EpisodeSums, more: Mapping[str, tuple[float, int]]) -> None:
    """Adds to `sums` in place."""
    for name, (total, count) in more.items():
        before, known = sums.get(name, (0.0, 0))
        sums[name] = (before + total, known + count)


def add_episodes(sums: EpisodeSums, episodes: Iterable[EpisodeMetrics]) -> None:
    for episode in episodes:
        add(sums, {name: (value, 1) for name, value in episode.values.items()})
