"""Metrics of the environment over the newest episodes, and the returns that they replace."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from runnel.ops.episode_window import WINDOW
from runnel.runtime.programs.episode_sums import EpisodeSums

if TYPE_CHECKING:
    from runnel.runtime.programs.totals import ProgressDelta

MOST_NAMES: Final = 1024
"""Names beyond this are ignored: an environment that makes up new ones would fill the memory and every record."""

RETURN, LENGTH = "return", "length"


class MetricWindow:
    """Sums over ended episodes as they come in; of each metric, as many of the newest as have `WINDOW` episodes.

    What comes in together leaves together, so the window has `WINDOW` episodes or a few more, or all of the newest
    report where that has more.

    An environment that reports its own score (`return`) has that in place of the sum of the rewards that are learnt
    from, which then is the `learner_return`. Where it `reports_return`, that is known before the first episode ends.
    """

    def __init__(self, reports_return: bool = False):
        self._declared = reports_return
        self._parts: dict[str, deque[tuple[float, int]]] = {}
        self._counts: dict[str, int] = {}
        self._ended = 0  # whole episodes since the last `apply`

    def clear(self) -> None:
        self._parts, self._counts, self._ended = {}, {}, 0

    def add(self, sums: Mapping[str, tuple[float, int]]) -> None:
        """Takes metrics of episodes that have ended."""
        for name, (total, count) in sums.items():
            if count < 1 or not math.isfinite(total) or (name not in self._parts and len(self._parts) >= MOST_NAMES):
                continue
            parts = self._parts.setdefault(name, deque())
            parts.append((total, count))
            known = self._counts.get(name, 0) + count
            while known - parts[0][1] >= WINDOW:
                known -= parts.popleft()[1]
            self._counts[name] = known
        self._ended += max((count for name, (_, count) in sums.items() if _own(name) == RETURN), default=0)

    def means(self) -> dict[str, float]:
        """By metric: the mean over the newest episodes."""
        return {
            name: math.fsum(total for total, _ in parts) / self._counts[name] for name, parts in self._parts.items()
        }

    @property
    def scored(self) -> bool:
        """Whether the environment reports its own score."""
        return self._declared or any(_own(name) == RETURN for name in self._parts)

    def reached(self, target: float) -> bool:
        """Whether the mean score of the newest episodes has reached a target."""
        if math.isinf(target):
            return False
        scores = self._scores(self.means())
        full = all(self._counts[name] >= WINDOW for name in scores)
        return bool(scores) and full and _mean(scores) >= target

    def apply(self, progress: ProgressDelta, target: float = math.inf) -> ProgressDelta:
        """The progress with the metrics of the environment and, if it reports its own score, with that.

        `progress` has returns, lengths and ends of episodes as learning sees them.
        """
        means = self.means()
        ended, self._ended = self._ended, 0
        if not self.scored:
            return progress._replace(env=means)
        scores = self._scores(means)
        lengths = {name: means[name] for name in map(_length_of, scores) if name in means}
        groups = {name.rpartition("/")[0]: score for name, score in scores.items() if "/" in name}
        if not groups and len(progress.group_returns) == 1 and scores:
            groups = dict.fromkeys(progress.group_returns, _mean(scores))
        return progress._replace(
            episodes=ended,
            mean_return=_mean(scores) if scores else None,
            mean_length=_mean(lengths) if lengths else progress.mean_length if scores else None,
            group_returns=groups,
            reached=self.reached(target),
            env={name: mean for name, mean in means.items() if name not in scores and name not in lengths},
            learner_return=progress.mean_return,
        )

    def _scores(self, means: Mapping[str, float]) -> dict[str, float]:
        """The environment's own score: that of each group or, where groups have none of their own, of all."""
        found = {name: mean for name, mean in means.items() if _own(name) == RETURN}
        return {name: mean for name, mean in found.items() if "/" in name} or found

    # In a checkpoint

    def saved(self) -> dict[str, dict[str, float] | dict[str, int]]:
        """The window in two dicts, as `load` takes them."""
        sums = {name: math.fsum(total for total, _ in parts) for name, parts in self._parts.items()}
        return {"env_sums": sums, "env_episodes": dict(self._counts)}

    def load(self, sums: Mapping[str, float | None], episodes: Mapping[str, int]) -> None:
        """Goes on from what was saved; its episodes count as one report."""
        self.clear()
        known: EpisodeSums = {name: (total, episodes[name]) for name, total in sums.items()
                              if total is not None and name in episodes}  # fmt: skip
        self.add(known)
        self._ended = 0


def _own(name: str) -> str:
    """A metric's name without its group."""
    return name.rpartition("/")[2]


def _length_of(score: str) -> str:
    return score.removesuffix(RETURN) + LENGTH


def _mean(values: Mapping[str, float]) -> float:
    return math.fsum(values.values()) / len(values)
