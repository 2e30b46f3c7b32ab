"""One row of a stack: the member's progress, its end, and its records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from runnel.execution.building import BuiltRun
from runnel.execution.members.backend import WaitingMember
from runnel.execution.run_stats import RunCounters
from runnel.runtime.programs import totals
from runnel.runtime.programs.metric_window import MetricWindow
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.single_process.cohort import Called


@dataclass
class StackRow:
    """One member and its progress."""

    member: WaitingMember
    built: BuiltRun
    counters: RunCounters = field(default_factory=RunCounters)
    window: MetricWindow = field(default_factory=MetricWindow)
    progress: ProgressDelta | None = None  # of the last call
    evaluation: dict[str, Any] | None = None  # the newest
    best: dict[str, Any] | None = None
    highest: float = -math.inf  # of the mean returns of evaluations
    status: str = ""  # how it ended; "" while it trains
    reason: str = ""

    @property
    def target(self) -> float:
        """The mean return that ends the member, for the program; NaN once the member has ended."""
        if self.status:
            return math.nan
        wanted = self.member.asked.stop_at_return
        return math.inf if wanted is None or self.window.scored else wanted

    def take(self, called: Called, window: Any, place: int, per_iteration: int) -> None:
        """Adds the member's progress in one call."""
        total = jax.tree.map(lambda x: x[place], called.totals)
        progress, ended = totals.read_host(called.iterations, total, window, bool(called.reached[place]))
        self.window.add(ended)
        wanted = self.member.asked.stop_at_return
        self.progress = self.window.apply(progress, math.inf if wanted is None else wanted)
        self.counters.add(self.progress, per_iteration)
        self.counters.skipped_updates += sum(self.progress.broken.values())

    def ends(self) -> tuple[str, str] | None:
        """The status and reason with which the member ends now, if it does."""
        assert self.progress is not None
        if self.progress.broken and self.member.asked.on_nan != "skip":
            what = f"{next(iter(self.progress.broken))} was not finite at update {self.counters.updates:,}"
            return "failed", f"{what}; no such value has entered the learner's state"
        return ("finished", "") if self.progress.reached else None

    def evaluated(self, found: dict[str, Any] | None) -> None:
        if found is None:
            return
        self.evaluation = found
        if self.best is None or found["score"] > self.best["score"]:
            self.best = found
        self.highest = max(self.highest, found["mean_return"])

    def has_reached(self, target: float | None) -> bool:
        """Whether an evaluation has found the return that ends it."""
        return target is not None and self.highest >= target

    def saved(self, wall_seconds: float) -> dict[str, Any]:
        """The member's counters, in the form of a single run's checkpoint."""
        return {**asdict(self.counters), **self.window.saved(), "wall_seconds": wall_seconds}

    def continue_from(self, counters: Mapping[str, Any]) -> None:
        self.counters = RunCounters.of(counters)
        self.window.load(self.counters.env_sums, self.counters.env_episodes)

    def result(self, wall_seconds: float, startup_s: float | None, speed: float | None) -> dict[str, Any]:
        """The content of the member's result.json."""
        config, counters = self.member.config, self.counters
        evaluated = {} if self.evaluation is None else {
            "evaluation": self.evaluation, "best": self.best, "highest_eval_return": self.highest,
        }  # fmt: skip
        return {
            "status": self.status, "algorithm": self.built.plan.algorithm.lower(),
            "environment": config["environment"]["name"], "distribution": self.built.plan.distribution,
            "seed": self.member.asked.seed, "env_steps": counters.env_steps, "updates": counters.updates,
            "episodes": counters.episodes, "cut_episodes": 0, "mean_return": counters.mean_return,
            **({"group_returns": counters.group_returns} if counters.group_returns else {}),
            **({"env": counters.env} if counters.env else {}),
            "wall_seconds": wall_seconds, "startup_seconds": startup_s, "steps_per_second": speed,
            "staleness_mean": 0.0, "staleness_max": 0, "restarts": 0, "restart_reasons": {},
            "environment_failures": 0, "skipped_updates": counters.skipped_updates, **evaluated, "workers": [],
            "streams": [], "bottleneck": None, **({"reason": self.reason} if self.reason else {}),
        }  # fmt: skip
