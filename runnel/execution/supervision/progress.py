"""The workers' progress reports, combined into the progress of the run."""

from __future__ import annotations

import math

import numpy as np

from runnel.ops.episode_window import WINDOW
from runnel.runtime.control_messages import EpisodeWindow, ProgressReport, StalenessSums
from runnel.runtime.programs import totals
from runnel.runtime.programs.metric_window import MetricWindow
from runnel.runtime.programs.totals import ProgressDelta, ReuseSums


class ProgressAggregator:
    """The newest reports, and the part of them that `progress` has already returned.

    Learners report how far training is; workers that see episodes end report their returns, and workers that step
    environments what these report of them (`metric_window`). `begin` sets where training starts: at the beginning of
    the run, or at a checkpoint.
    """

    def __init__(self, learners: set[str], reports_return: bool = False):
        self.learners = learners
        self.metric_window = MetricWindow(reports_return)
        self.worked = 0  # environment steps learnt from; steps that were repeated count twice
        self.last: dict[str, ProgressReport] = {}  # by worker: its newest report
        self.staleness = StalenessSums(0, 0, 0)  # from before the last `begin`, where learners restart their counts
        self.reuse = ReuseSums(0, 0)  # likewise
        self.begin()

    def begin(self, env_steps: int = 0, iterations: int = 0, versions: int = 0) -> None:
        self.env_steps, self.iterations, self.versions, self.episodes = env_steps, iterations, versions, 0
        self.staleness, self.reuse = self._staleness(), self._reuse()
        self.last = {}
        self.ended: dict[str, int] = {}  # by worker: episodes counted by the workers that it replaced
        self.sums = totals.Summed(0, {}, {}, {})
        self.metric_window.clear()

    def add(self, name: str, report: ProgressReport) -> None:
        """Takes a worker's report."""
        before = self.last.get(name)
        self.last[name] = report
        if before is not None and before.episodes > report.episodes:
            self.ended[name] = self.ended.get(name, 0) + before.episodes
        if name in self.learners:
            self.worked += max(0, report.env_steps - (before.env_steps if before else self.env_steps))
        if report.rank:
            return  # learners that are one program all report the same
        for node, times in report.updates_by_node.items():
            self.sums.updates[node] = self.sums.updates.get(node, 0) + times
        for quantity, times in report.refused_updates.items():
            self.sums.broken[quantity] = self.sums.broken.get(quantity, 0) + times
        for node, out in report.out_sums.items():
            sums = self.sums.out.setdefault(node, {})
            for key, value in out.items():
                sums[key] = sums.get(key, 0.0) + value

    def reached_env_steps(self) -> int:
        """The progress of the slowest learner."""
        return min((report.env_steps for report in self._of_learners()), default=0)

    def target_reached(self) -> bool:
        """Whether a learner rests because it has reached the target return."""
        return any(report.target_reached for report in self._of_learners())

    def _of_learners(self) -> list[ProgressReport]:
        return [self.last[name] for name in self.learners if name in self.last]

    def progress(self, target: float = math.inf) -> ProgressDelta:
        """The progress since the last call."""
        learners = self._of_learners()
        env_steps = min((p.env_steps for p in learners), default=self.env_steps)
        iterations = min((p.iterations for p in learners), default=self.iterations)
        versions = sum(p.updates for p in learners if not p.rank) if learners else self.versions
        sums, self.sums = self.sums, totals.Summed(0, {}, {}, {})
        windows = [p.window for p in self.last.values() if p.window is not None and not p.rank]
        returns = _group_returns(windows)
        filled = sum(window.filled for window in windows)
        episodes = self._episodes()
        mean = float(np.mean(list(returns.values()))) if returns else None
        full = windows and all(window.filled >= WINDOW for window in windows)
        progress = ProgressDelta(
            iterations=iterations - self.iterations,
            updates=versions - self.versions,
            episodes=max(0, episodes - self.episodes),
            mean_return=mean,
            mean_length=sum(window.length for window in windows) / filled if filled else None,
            group_returns=returns,
            out=_means(sums),
            reached=self.target_reached() or bool(full and mean is not None and mean >= target),
            env_steps=env_steps - self.env_steps,
            staleness=_mean_and_most(self._staleness()),
            reuse=self._reuse(),
            broken=sums.broken,
        )
        self.env_steps, self.iterations, self.episodes, self.versions = env_steps, iterations, episodes, versions
        return self.metric_window.apply(progress, target)

    def _staleness(self) -> StalenessSums:
        """Since this process began to train."""
        sums = [self.staleness, *(report.staleness for report in self._of_learners())]
        return StalenessSums(sum(s.total for s in sums), sum(s.count for s in sums), max(s.most for s in sums))

    def _reuse(self) -> ReuseSums:
        """Since this process began to train."""
        reports = self._of_learners()
        repeated, dropped = sum(r.repeated for r in reports), sum(r.dropped for r in reports)
        return ReuseSums(self.reuse.repeated + repeated, self.reuse.dropped + dropped)

    def _episodes(self) -> int:
        """Workers with the same groups count different episodes; those of other groups count the same ones."""
        by_groups: dict[tuple[str, ...], int] = {}
        for name, report in self.last.items():
            if report.window is not None and not report.rank:
                groups = tuple(sorted(report.window.returns))
                seen = report.episodes + self.ended.get(name, 0)
                by_groups[groups] = by_groups.get(groups, 0) + seen
        return max(by_groups.values(), default=0)


def _group_returns(windows: list[EpisodeWindow]) -> dict[str, float]:
    sums: dict[str, tuple[float, int]] = {}
    for window in windows:
        for group, total in window.returns.items():
            before, count = sums.get(group, (0.0, 0))
            sums[group] = (before + total, count + window.counts[group])
    return {group: total / count for group, (total, count) in sums.items() if count}


def _means(sums: totals.Summed) -> dict[str, float]:
    means = {}
    for node, out in sums.out.items():
        times, prefix = sums.updates.get(node, 0), node.rpartition("/")[0]
        for name, value in out.items():
            if times:
                means[f"{prefix}/{name}" if prefix else name] = value / times
    return means


def _mean_and_most(sums: StalenessSums) -> tuple[float, int]:
    return (sums.total / sums.count if sums.count else 0.0), sums.most
