"""Counters and speed of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from runnel.runtime.programs.totals import ProgressDelta, ReuseSums
from runnel.runtime.usage import UsageReport

MOST = 2**62


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST


def _is_number(value: Any) -> bool:
    return (type(value) in (int, float) and -MOST <= value <= MOST) or (type(value) is float and math.isfinite(value))


COUNTED: dict[str, Callable[[Any], bool]] = {
    "int": _is_count,
    "float": lambda x: _is_number(x) and x >= 0,
    "float | None": lambda x: x is None or _is_number(x),
    "dict[str, float]": lambda x: isinstance(x, dict) and all(v is None or _is_number(v) for v in x.values()),
    "dict[str, int]": lambda x: isinstance(x, dict) and all(_is_count(v) for v in x.values()),
}
"""The valid values of a counter, by type."""


@dataclass
class RunCounters:
    """Totals of a run since its beginning, across resumptions."""

    iterations: int = 0
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    wall_seconds: float = 0.0
    cut_episodes: int = 0
    mean_return: float | None = None
    mean_length: float | None = None
    group_returns: dict[str, float] = field(default_factory=dict)  # where there are several groups
    restarts: int = 0
    restart_reasons: dict[str, int] = field(default_factory=dict)
    environment_failures: int = 0
    skipped_updates: int = 0  # refused, because something was not finite
    learner_return: float | None = None  # the mean return as learning sees it, where the environment reports its own
    env: dict[str, float] = field(default_factory=dict)  # metrics of the environment: means over the newest episodes
    env_sums: dict[str, float] = field(default_factory=dict)  # in a checkpoint: their window, see `MetricWindow`
    env_episodes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def problem(cls, kept: Mapping[str, Any]) -> str | None:
        """The reason why counters of a checkpoint are invalid; None if they are valid."""
        known = {each.name: each.type for each in fields(cls)}
        for name, value in kept.items():
            if name not in known or not COUNTED[str(known[name])](value):
                return f"counters.json has {name[:40]} {str(value)[:40]!r}, which no run counts"
        return None

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> RunCounters:
        """The counters stored with a checkpoint."""
        return cls(**kept)

    def add(self, progress: ProgressDelta, steps_per_iteration: int) -> None:
        self.iterations += progress.iterations
        steps = progress.iterations * steps_per_iteration if progress.env_steps is None else progress.env_steps
        self.env_steps += steps
        self.updates += progress.updates
        self.episodes += progress.episodes
        self.mean_return, self.mean_length = progress.mean_return, progress.mean_length
        self.group_returns = progress.group_returns if len(progress.group_returns) > 1 else {}
        self.learner_return, self.env = progress.learner_return, progress.env


@dataclass
class Rate:
    """Environment steps per second since the first update, and over the last seconds."""

    started: tuple[float, int] | None = None
    stopped: tuple[float, int] | None = None
    window: list[tuple[float, int]] = field(default_factory=list)

    def start(self, steps: int) -> None:
        self.started = (time.monotonic(), steps)
        self.window = [self.started]

    def now(self, steps: int) -> float | None:
        """The rate over the last five seconds or so."""
        if self.started is None:
            return None
        self.window.append((time.monotonic(), steps))
        while len(self.window) > 2 and self.window[-1][0] - self.window[1][0] > 5:
            self.window.pop(0)
        return _slope(self.window[0], self.window[-1])

    def exclude(self, seconds: float) -> None:
        """Excludes `seconds` that were not spent on training, such as an evaluation, from the rate."""
        if self.started is not None:
            self.started = (self.started[0] + seconds, self.started[1])
            self.window = [(at + seconds, steps) for at, steps in self.window]

    def stop(self, steps: int) -> None:
        """Ends the measurement: the last checkpoint, for example, is not training."""
        self.stopped = (time.monotonic(), steps)

    def overall(self) -> float | None:
        return _slope(self.started, self.stopped) if self.started and self.stopped else None


@dataclass
class RunStats:
    """A run's counters and clocks, and the metrics computed from them."""

    began: float  # this stretch of the run, by the monotonic clock
    counters: RunCounters = field(default_factory=RunCounters)
    rate: Rate = field(default_factory=Rate)
    startup_s: float | None = None  # to the first update
    staleness: tuple[float, int] = (0.0, 0)  # its mean and the highest, since this process began to train
    reuse: ReuseSums = field(default_factory=lambda: ReuseSums(0, 0))  # likewise
    learnt: dict[str, float] = field(default_factory=dict)  # by name: the newest outputs of learning

    def add(self, progress: ProgressDelta, steps_per_iteration: int) -> None:
        self.counters.add(progress, steps_per_iteration)
        self.staleness, self.reuse = progress.staleness, progress.reuse
        self.learnt.update(progress.out)

    def first_update(self) -> None:
        """Begins the measurement of the rate after the compilation."""
        self.startup_s = time.monotonic() - self.began
        self.rate.start(self.counters.env_steps)

    def wall_seconds(self) -> float:
        return self.counters.wall_seconds + time.monotonic() - self.began

    def metrics(self, progress: ProgressDelta, lately: UsageReport) -> dict[str, Any]:
        """A line of metrics.jsonl."""
        counters = self.counters
        return {
            "env_steps": counters.env_steps,
            "iterations": counters.iterations,
            "updates": counters.updates,
            "episodes": counters.episodes,
            "mean_return": counters.mean_return,
            "mean_length": counters.mean_length,
            "steps_per_second": self.rate.now(counters.env_steps),
            "wall_seconds": self.wall_seconds(),
            "restarts": counters.restarts,
            "environment_failures": counters.environment_failures,
            "skipped_updates": counters.skipped_updates,
            "staleness_mean": progress.staleness[0],
            "staleness_max": progress.staleness[1],
            **self._reused(),
            **lately.metrics(),
            **{f"learn/{name}": value for name, value in progress.out.items()},
            **{f"return/{group}": value for group, value in counters.group_returns.items()},
            **self._learner_return(),
            **{f"env/{name}": value for name, value in counters.env.items()},
        }

    def last_metrics(self, progress: ProgressDelta, lately: UsageReport) -> dict[str, Any]:
        """The last line of metrics. If its stretch has no update, it has the newest outputs of learning."""
        return self.metrics(progress._replace(out={**self.learnt, **progress.out}), lately)

    def _learner_return(self) -> dict[str, float]:
        value = self.counters.learner_return
        return {} if value is None else {"learner_return": value}

    def _reused(self) -> dict[str, int]:
        repeated, dropped = self.reuse
        return {"reused_updates": repeated, "reuses_dropped": dropped} if repeated or dropped else {}

    def result(self) -> dict[str, Any]:
        """The statistics in result.json."""
        counters = self.counters
        return {
            "env_steps": counters.env_steps,
            "updates": counters.updates,
            "episodes": counters.episodes,
            "cut_episodes": counters.cut_episodes,
            "mean_return": counters.mean_return,
            **({"group_returns": counters.group_returns} if counters.group_returns else {}),
            **self._learner_return(),
            **({"env": counters.env} if counters.env else {}),
            "wall_seconds": self.wall_seconds(),
            "startup_seconds": self.startup_s,
            "steps_per_second": self.rate.overall(),
            "staleness_mean": self.staleness[0],
            "staleness_max": self.staleness[1],
            **self._reused(),
            "restarts": counters.restarts,
            "restart_reasons": counters.restart_reasons,
            "environment_failures": counters.environment_failures,
            "skipped_updates": counters.skipped_updates,
        }


def _slope(start: tuple[float, int], end: tuple[float, int]) -> float | None:
    return (end[1] - start[1]) / (end[0] - start[0]) if end[0] > start[0] and end[1] > start[1] else None
