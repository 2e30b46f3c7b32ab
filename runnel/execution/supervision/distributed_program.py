"""The program of a plan of several workers. To a session it is a program like any other, whatever workers do.

`run` returns from time to time while the workers continue. `supervisor.py` replaces lost workers; if one cannot be
replaced alone, `run` and `save` raise `StateLost`, and `load` returns all workers to a checkpoint, in the processes
that are alive.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from runnel.config import run_config
from runnel.environment import is_traceable, reports_return
from runnel.execution.building import BuiltRun
from runnel.execution.supervision.checkpoint_protocol import CheckpointProtocol
from runnel.execution.supervision.progress import ProgressAggregator
from runnel.execution.supervision.supervisor import POLL_S, Supervisor
from runnel.execution.supervision.worker_group import WorkerGroup
from runnel.launch.site import Site
from runnel.planning.channels import derive_channels
from runnel.planning.machine import HERE
from runnel.planning.plan import Machine
from runnel.recording.events import ReportEvent, ignore_event
from runnel.runtime.control_messages import Go, Status, Stop, TakeSnapshot
from runnel.runtime.programs.carry import Carry, StateChange
from runnel.runtime.programs.metric_window import MetricWindow
from runnel.runtime.programs.snapshots import TakenSnapshot
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.single_process.program import carry_types
from runnel.runtime.usage import UsageReport
from runnel.runtime.workers.usage_meter import UsageMeter, Watched
from runnel.transport.memory import arrays_bytes
from runnel.types import PyTree

STOP_S = 5.0
"""How long workers may take to end when asked."""

START_S = 300.0
"""How long learners may take to start."""


class DistributedProgram:
    """All workers of a plan; implements `Program`."""

    def __init__(
        self, built: BuiltRun, config: dict[str, Any], run_dir: Path, site: Site, machines: Sequence[Machine],
        report_event: ReportEvent = ignore_event,
    ):  # fmt: skip
        self.built, self.run_config = built, run_config.from_json(config)
        self.graph, self.plan = built.graph, built.plan
        self.steps = 0  # in this process
        self.carry: Carry | None = None  # of the newest checkpoint
        self.host = not is_traceable(built.environment)
        self.topology = derive_channels(self.plan, self.graph, self.host)
        self.group = WorkerGroup(built, self.topology, config, run_dir, site, machines)
        self.learners = self.group.learners
        self.progress = ProgressAggregator(self.learners, reports_return(built.environment))
        self.usage = _usage_meter(self.group)
        self.supervisor = Supervisor(self.group, self.progress, self.usage, self.run_config, report_event)
        self._checkpoints = CheckpointProtocol(self.supervisor)
        self._initial: worker_checkpoint.Arrays = {}
        self._until_env_steps = 0
        self._started = self._loaded = False
        self._exchanged: dict[str, PyTree] | None = None  # what workers were given and have not continued from yet
        try:
            self.group.start()
        except BaseException:
            self.close()
            raise

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> ProgressDelta:
        """Trains for at most `iterations` iterations; returns after about `seconds` seconds."""
        if not self._loaded:
            self.load(None)
        until = self.progress.env_steps + iterations * self.graph.steps_per_iteration
        # Learners know only what they learn from: where the environment reports its own score, it is decided here.
        for_learners = None if math.isinf(target) or self.metric_window.scored else target
        self._go(Go(until, for_learners), stop)
        deadline = time.monotonic() + seconds
        while True:
            self.supervisor.listen(POLL_S)
            self.supervisor.check_deadlock()
            self.usage.sample()
            advanced = self.progress.env_steps < self.progress.reached_env_steps()
            ended = self._learners_paused() or self.progress.target_reached()
            if ended or stop() or (time.monotonic() > deadline and advanced):
                break
        return self.progress.progress(target)

    @property
    def metric_window(self) -> MetricWindow:
        return self.progress.metric_window

    def _go(self, go: Go, stop: Callable[[], bool]) -> None:
        """Starts or continues the workers; if they are at work already, only learners need to know a new end."""
        records = self.supervisor.records
        if not self._started or any(record.paused for record in records.values()):
            self.supervisor.wait_until(lambda: self._learners_paused() or stop(), START_S, "start")
            for name in self.group.processes:
                self.supervisor.send(name, go)
            for record in records.values():
                record.state = "running"
            self._started, self._exchanged = True, None
            self.usage.skip()
        elif go.until_env_steps != self._until_env_steps:
            for name in self.learners:
                self.supervisor.send(name, go)
        self._until_env_steps = go.until_env_steps

    def _learners_paused(self) -> bool:
        return all(self.supervisor.records[name].paused for name in self.learners)

    def begin_from(self, states: Mapping[str, PyTree]) -> None:
        for group, state in states.items():
            self._initial |= worker_checkpoint.leaf_arrays(names.initial(group), state)

    def exchange(self, change: StateChange) -> tuple[ProgressDelta, int]:
        """All workers pause, and continue from what they saved with other states: so actors that are an unroll ahead
        act again, as they would have in one process."""
        saved = self.save()
        rest, carry = self.progress.progress(), saved["carry"]
        states = change(carry.states, carry.updates)
        known = self.metric_window.saved()
        carry = carry._replace(states={**carry.states, **states})
        saved = {**saved, "carry": carry}
        cut = self._load(saved, self.progress.env_steps, recovers=False)
        self._exchanged = saved
        self.metric_window.load(known["env_sums"], known["env_episodes"])  # type: ignore[arg-type]
        return rest, cut

    def rest(self) -> ProgressDelta:
        """The progress that workers have reported while they paused."""
        return self.progress.progress()

    def snapshots(self, wait: bool = False) -> list[TakenSnapshot]:
        del wait  # learners that pause have sent theirs
        return self.supervisor.snapshots.fetch()

    def ask_for_snapshot(self) -> None:
        for name in self.learners:
            self.supervisor.send(name, TakeSnapshot())

    def listen(self, seconds: float) -> None:
        self.supervisor.listen(seconds)

    def hurry(self) -> None:
        self.supervisor.hurry()

    # Usage

    def learnt(self) -> tuple[Any, Any] | None:
        return None if self.carry is None else (self.carry.states, self.carry.updates)

    def measure(self) -> None:
        self.usage.begin()

    def report(self, recent: bool = False) -> UsageReport:
        report = self.usage.report(recent)
        hosts = {name: "" if host == HERE else host for name, host in self.group.hosts.items()}
        # Workers that compute gradients for a learner elsewhere also count updates, which are the learner's.
        workers = (
            replace(w, updates=w.updates if w.name in self.learners else None, host=hosts[w.name])
            for w in report.workers
        )
        return replace(report, workers=tuple(workers))

    def statuses(self) -> dict[str, Status]:
        """By worker: its newest status."""
        return {name: r.status for name, r in self.supervisor.records.items() if r.status is not None}

    # Checkpoints

    def save(self) -> dict[str, PyTree]:
        """Pauses all workers between two iterations and joins their parts.

        Workers that have been given other states and have not continued yet still are as these: they are not asked,
        because those that act would wait for parameters that the learner publishes when it continues.
        """
        if self._exchanged is not None:
            return self._exchanged
        arrays = {names.SEED: np.asarray(self.run_config.seed, np.uint32)} | self._checkpoints.save()
        saved = worker_checkpoint.join(
            arrays, carry_types(self.graph, self.built.environment), self.topology, self.host
        )
        self.carry = saved["carry"]
        return saved

    def load(self, saved: dict[str, PyTree] | None, env_steps: int = 0) -> int:
        """Makes all workers continue from a checkpoint, or from the beginning; returns how many episodes were cut."""
        return self._load(saved, env_steps, recovers=True)

    def _load(self, saved: dict[str, PyTree] | None, env_steps: int, recovers: bool) -> int:
        """`recovers`: because something was lost."""
        self._exchanged = None
        if self._loaded:
            self._checkpoints.reset(recovers)
            self.supervisor.snapshots.clear()
            self._started = False
        self._loaded = True
        arrays: worker_checkpoint.Arrays = dict(self._initial)
        cut = 0
        self.progress.begin()
        if saved is not None:
            self.carry = saved["carry"]
            agents = {group: spec.agents for group, spec in self.graph.spec.groups.items()}
            arrays = worker_checkpoint.split(saved, self.topology, agents)
            cut = int(np.sum(saved["host"]["cut"])) if saved["host"] else 0
            arrays[names.ENV_STEPS] = np.asarray(env_steps)
            versions = sum(int(count) for name, count in arrays.items() if names.counts_updates(name))
            self.progress.begin(env_steps, int(arrays[names.ITERATION]), versions)
        self._checkpoints.load(arrays)
        return cut

    def close(self) -> None:
        """Stops every worker and frees what they used."""
        processes = self.group.processes
        for name, process in processes.items():
            if process.exit_status() is None:
                self.supervisor.send(name, Stop())
        deadline = time.monotonic() + STOP_S
        for process in processes.values():
            process.wait(max(0.0, deadline - time.monotonic()))
        for name in processes:
            self.supervisor.receive(name)
        self.group.close(STOP_S)


def _usage_meter(group: WorkerGroup) -> UsageMeter:
    fragments = {name: spec.fragment for name, spec in group.specs.items()}
    streams = [
        Watched(fragments[stream.source], fragments[stream.target], stream.kind, fill, arrays_bytes(stream.schema))
        for stream, fill in group.streams()
    ]
    return UsageMeter(fragments, streams)
