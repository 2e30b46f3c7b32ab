"""The state of a run that the parts of a session share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runnel.config import run_config
from runnel.config.run_config import RunConfig
from runnel.errors import HostLost, printable
from runnel.execution.building import BuiltRun
from runnel.execution.callbacks import Callbacks
from runnel.execution.policies.opponents import Opponents
from runnel.execution.run_stats import RunCounters, RunStats
from runnel.execution.snapshots.evaluation_task import MakeEvaluator, make_evaluator_of
from runnel.execution.snapshots.policy_recorder import PolicyRecorder
from runnel.execution.supervision.machine_pool import MachinePool
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.events import EventLog
from runnel.recording.requests import Waiting
from runnel.reporting.live_view import forgiving
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.single_process.program import Program


@dataclass
class SessionState:
    """One for a session; every part of it reads and changes it."""

    run_dir: Path
    config: dict[str, Any]
    built: BuiltRun  # the requested run, on the machines that are present
    stats: RunStats
    pool: MachinePool
    callbacks: Callbacks
    quiet: bool
    resumed: bool
    make_evaluator: MakeEvaluator = make_evaluator_of  # for evaluation in this process
    begun: bool = False  # from then on the run directory describes this session
    program: Program | None = None
    interrupted: bool = False
    asked: str = ""  # the signal that did, or the callback
    reason: str | None = None  # why the run did not end as it should
    rest: ProgressDelta | None = None  # what workers reported while they paused for the last checkpoint
    newest_checkpoint: Path | None = None  # of this session
    newest_metrics: Mapping[str, Any] = field(default_factory=dict)  # the line that metrics.jsonl was given last
    says: Callable[[str], None] | None = None  # shows a line, once there is a view
    checkpoint_asked: bool = False  # by a request
    ended: bool = False  # its result is written
    run_config: RunConfig = field(init=False)
    checkpoints: Checkpoints = field(init=False)
    events: EventLog = field(init=False)
    policies: PolicyRecorder = field(init=False)
    requests: Waiting = field(init=False)
    opponents: Opponents = field(init=False)

    def __post_init__(self) -> None:
        self.run_config = run_config.from_json(self.config)
        self.checkpoints, self.events = Checkpoints(self.run_dir), EventLog(self.run_dir)
        self.requests = Waiting(self.run_dir)
        self.policies = PolicyRecorder(
            self.run_dir, self.config, self.run_config, self.built, self.report_event, lambda: self.interrupted,
            self.pool.standalone, self.make_evaluator,
        )  # fmt: skip
        self.opponents = Opponents(self.run_dir, self.built, self.run_config.seed, self.policies, self.report_event)

    @property
    def counters(self) -> RunCounters:
        return self.stats.counters

    @property
    def steps(self) -> int:
        """Steps of environments in this process; -1 before there are any."""
        return -1 if self.program is None else self.program.steps + self.policies.steps

    def report_event(self, event: str, **details: Any) -> None:
        """Records an event, and counts restarts, environment failures and cut episodes."""
        if event == "restart":
            self.counters.restarts += 1
            reason = f"{details['worker']} {details['reason']}"
            self.counters.restart_reasons[reason] = self.counters.restart_reasons.get(reason, 0) + 1
        elif event == "environment":
            self.counters.environment_failures += int(details.get("times", 1))
        elif event == "evaluation":
            self.policies.left_out += int(details.get("skipped", 0))
        elif event == "cut":
            self.counters.cut_episodes += int(details.get("episodes", 1))
        self.events.record(event, **details)

    def report_lost(self, lost: HostLost, action: str) -> None:
        """Records that a machine is lost."""
        reason = str(lost).removeprefix(f"{lost.host} ")
        self.report_event("restart", worker=lost.host, reason=reason, action=action)

    def say(self, text: str) -> None:
        """Shows a line to the user."""
        if self.says is not None:
            self.says(text)
        elif not self.quiet and sys.stdout is not None:
            print(printable(text), file=forgiving(sys.stdout), flush=True)
