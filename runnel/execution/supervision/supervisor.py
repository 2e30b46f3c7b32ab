"""Supervision of a run's workers: their messages, their heartbeats, and the replacement of those that are lost.

A worker that dies, hangs or raises is replaced alone if its journal and streams hold all of its state. Any other loss
raises `StateLost`: all workers must return to a checkpoint (`checkpoint_protocol.py`). Several learners that form one
program are lost together, and the fault is attributed to the one that caused it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

from runnel.config.run_config import RunConfig
from runnel.errors import MalformedMessage, OutOfDescriptors, StateLost, WorkerFailed
from runnel.execution.snapshots.collector import SnapshotCollector
from runnel.execution.supervision.fault_policy import (
    Fault,
    RestartBudget,
    ended,
    hung,
    raised,
    retry_for_descriptors,
    to_blame,
)
from runnel.execution.supervision.hang_watch import SHOWN_S
from runnel.execution.supervision.late_workers import MOST_STACKS, displayed_phase, late_workers, not_at_work
from runnel.execution.supervision.liveness import DeadlockDetector, HeartbeatMonitor
from runnel.execution.supervision.progress import ProgressAggregator
from runnel.execution.supervision.worker_group import WorkerGroup
from runnel.execution.supervision.worker_record import Replacement, WorkerRecord
from runnel.recording.events import ReportEvent
from runnel.runtime.control_messages import (
    Command,
    EpisodesEnded,
    Event,
    Failed,
    Load,
    Pause,
    Paused,
    Phase,
    PhaseName,
    ProgressReport,
    ReadyToLoad,
    Saved,
    SnapshotLeftOut,
    SnapshotTaken,
    Status,
    parse_report,
)
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.workers.usage_meter import UsageMeter
from runnel.system import startup

POLL_S = 0.05
"""How long one wait for reports lasts, and how often all workers are looked at, however many reports arrive."""

COMPILING = 3
"""How many times as long as a compiling worker may be silent a wait goes on while workers compile: half an hour, or
more with a longer `--hang-after`."""

HURRY_S = 30.0
"""How long any wait for workers may last once the user waits for the run to end."""


class Supervisor:
    """The driver's side of the control protocol, with one record per worker.

    It is one class because every wait is for all workers at once: while one is asked for something, any other may
    report, hang or die, and must be heard and replaced.
    """

    def __init__(
        self, group: WorkerGroup, progress: ProgressAggregator, usage: UsageMeter, config: RunConfig,
        report_event: ReportEvent, clock: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.group, self.progress, self.usage, self.report_event = group, progress, usage, report_event
        self.records = {name: WorkerRecord(spec) for name, spec in group.specs.items()}
        self.budget = RestartBudget(config.restarts)
        self.heartbeats = HeartbeatMonitor(config.hang_after_s)
        self.deadlocks = DeadlockDetector(config.hang_after_s)
        self.snapshots = SnapshotCollector(list(group.graph.states))
        self._clock = clock
        self._hurried_at: float | None = None  # when the user began to wait for the end
        self._oom_kills = group.oom_kills()
        self._looked_at: float | None = None  # when all workers were looked at last
        self._checked_at: float | None = None  # the look after which deadlocks were looked for last
        self._compiling = False  # whether any of them compiled then

    # Commands

    def send(self, name: str, command: Command) -> None:
        try:
            self.group.processes[name].control.send(command.to_json())
            self.group.ring(name)
        except (BrokenPipeError, TimeoutError, KeyError):
            pass  # `listen` notices that the process has ended

    def pause(self, name: str, at_iteration: int = 0) -> None:
        record = self.records[name]
        record.state, record.pause_at = "pausing", at_iteration
        self.send(name, Pause(at_iteration))

    def load(self, name: str, arrays: worker_checkpoint.Arrays, rejoins: bool = False, suspect: bool = False) -> None:
        command = Load(rejoins, suspect).to_json()
        with contextlib.suppress(BrokenPipeError, TimeoutError):  # `listen` notices that the process has ended
            retry_for_descriptors(lambda: self.group.processes[name].control.send_arrays(command, arrays))

    # Waiting

    def hurry(self) -> None:
        """The user waits for the run to end."""
        self._hurried_at = self._hurried_at or self._clock()

    def wait_until(self, done: Callable[[], bool], limit_s: float, what: str) -> None:
        """Supervises until `done`; raises `WorkerFailed` after `limit_s`.

        Time in which a worker compiles does not count, up to `COMPILING` times what its heartbeats allow.
        """
        began = seen = self._clock()
        compiled_s, most_s, shown = 0.0, COMPILING * self.heartbeats.limits["compiling"], False
        while not done():
            self.listen(POLL_S)
            now = self._clock()
            if self._hurried_at is not None:
                began, limit_s = max(began, self._hurried_at), min(limit_s, HURRY_S)
                if now > began + SHOWN_S and not shown:
                    shown = True
                    end = f"ends without a checkpoint after {limit_s:.0f} s; once more ends at once"
                    self.report_event("interrupted", reason=f"waits for {self._late()}", action=end)
            elif self._compiling:
                compiled_s += now - seen
                began = now if compiled_s <= most_s else began
            seen = now
            if now > began + limit_s:
                late, logs = self._late(), self.group.run_dir / "logs"
                besides = f", besides {most_s:.0f} s in which workers compiled" if compiled_s > most_s else ""
                raise WorkerFailed(f"no {what} within {limit_s:.0f} s{besides}: waited for {late}; see {logs}")

    def _late(self) -> str:
        return late_workers(self.records, self.group.processes, self.heartbeats, self.deadlocks)

    # Reports

    def listen(self, seconds: float) -> None:
        """Handles the workers' reports, ends and missing heartbeats; waits at most `seconds` for the first."""
        for name in self.group.poll(seconds):
            failed = self.receive(name)
            status = self.group.processes[name].exit_status()
            if status is not None:
                failed = failed or self.receive(name)
            if failed is not None:
                self._lost(raised(name, failed))
            elif status is not None:
                kills, self._oom_kills = self._oom_kills, self.group.oom_kills()
                tail = self.group.processes[name].tail().strip()
                self._lost(ended(name, status, tail, kills != self._oom_kills))
        now = self._clock()
        if self._looked_at is None or now >= self._looked_at + POLL_S:
            self._looked_at = now
            self._look()

    def _look(self) -> None:
        """Looks at every worker's heartbeats and phase."""
        self._compiling = any(record.phase == "compiling" for record in self.records.values())
        for name, process in list(self.group.processes.items()):
            record, beats = self.records[name], self.group.beats(name)
            if beats is None:  # its host is not heard from, which the cluster looks after
                record.heartbeat = None
                continue
            silence_s = self.heartbeats.overdue_s(record, beats, process.stopped)
            if silence_s is not None and not self._waits_for_compiler(name, silence_s):
                self._hung(name, silence_s)

    def receive(self, name: str) -> Failed | None:
        """Takes all that a worker has sent; returns its failure, if it reported one."""
        try:
            return self._receive_all(name)
        except (OutOfDescriptors, MalformedMessage) as error:  # the message is lost
            return Failed(type(error).__name__, str(error), traceback="")

    def _receive_all(self, name: str) -> Failed | None:
        control, record = self.group.processes[name].control, self.records[name]
        while (message := control.receive()) is not None:
            match parse_report(message.value):
                case Status() as status:
                    record.status = status
                    self.deadlocks.note(record, status.waiting)
                    self._note_phase(name, status.phase)
                    self.usage.add(name, status)
                case Phase(phase):
                    record.phase = phase
                case ProgressReport() as report:
                    self.progress.add(name, report)
                case EpisodesEnded(sums):
                    self.progress.metric_window.add(sums)
                case Paused(iteration):
                    record.note_pause(iteration)
                case Saved():
                    record.state, record.saved = "saved", dict(message.arrays)
                case SnapshotTaken() as taken:
                    self.snapshots.add(taken, message.arrays)
                case SnapshotLeftOut(mark):
                    if self.snapshots.leave_out(mark):
                        reason = f"the snapshot at {mark:,} steps was skipped: newer ones waited to be sent"
                        self.report_event(
                            "evaluation", reason=reason, action="they are evaluated", skipped=1, show=False
                        )
                case ReadyToLoad():
                    record.state = "ready"
                case Event(event, details):
                    self.report_event(event, worker=name, **details)
                case Failed() as failed:
                    return failed
        return None

    def _note_phase(self, name: str, phase: PhaseName) -> None:
        record = self.records[name]
        record.phase = phase
        startup.phase(self._not_at_work)
        if phase == "working" and record.replacement is not None:
            (since, fault), record.replacement = record.replacement, None
            self.report_event("recovered", worker=name, action="at work again", after=fault.reason,
                              seconds=time.monotonic() - since)  # fmt: skip

    def _not_at_work(self) -> str:
        """Which workers are not at work yet: computed only where it is shown, by another thread."""
        processes, records = self.group.processes, self.records
        shown = {n: displayed_phase(records[n], self.heartbeats, self.deadlocks) for n in list(processes)}
        return not_at_work(shown)

    # Faults

    def _waits_for_compiler(self, name: str, silence_s: float) -> bool:
        """Whether a learner sends no heartbeat because another of the same program, which does, compiles."""
        mates = [self.records[mate] for mate in self.group.unit(name) - {name}]
        compiles = any(m.phase == "compiling" and self.heartbeats.silence_s(m) < silence_s / 2 for m in mates)
        return (
            compiles
            and silence_s <= COMPILING * self.heartbeats.limits["compiling"]
            and not self.group.processes[name].stopped()
        )

    def _hung(self, name: str, silence_s: float) -> None:
        """Gives up a worker that hangs. Of learners that are one program, one hangs and the others wait for it."""
        processes = self.group.processes
        mates = [
            m for m in self.group.unit(name) - {name} if self.heartbeats.silence_s(self.records[m]) > silence_s / 2
        ]
        together = [name, *(mate for mate in mates if mate in processes)]
        stopped = {mate: processes[mate].stopped() for mate in together}
        tracebacks = {mate: processes[mate].tracebacks() for mate in together}
        name = next((mate for mate in together if stopped[mate]), None) or to_blame(tracebacks)
        fault = hung(name, silence_s, self.records[name].phase, tracebacks[name], stopped[name])
        # Not shown: `_lost` shows the same reason with what is done about it.
        self.report_event("hang", worker=name, reason=fault.reason, tracebacks=tracebacks[name], show=False)
        self._lost(fault)

    def check_deadlock(self) -> None:
        """Raises `StateLost` if all workers wait for each other."""
        if self._checked_at is not None and self._checked_at == self._looked_at:
            return  # a report may be new, but nobody's heartbeats are: workers are looked at several times a second
        self._checked_at = self._looked_at
        fault = self.deadlocks.fault(self.records)
        if fault is None:
            return
        some = list(self.group.processes.items())[:MOST_STACKS]
        tracebacks = "\n".join(f"{name}:\n{process.tracebacks()}" for name, process in some)
        self.report_event("hang", worker=fault.worker, reason=fault.reason, tracebacks=tracebacks, show=False)
        self.budget.spend(fault._replace(detail=tracebacks), self.progress.worked)
        self.report_event("restart", worker=fault.worker, reason=fault.reason, action="all go back to a checkpoint")
        raise StateLost(f"{fault.worker} {fault.reason}")

    def _lost(self, fault: Fault) -> None:
        """Replaces a worker alone, or raises `StateLost`."""
        fault = self._cause(fault)
        name = fault.worker
        before = self.records[name]
        # A worker that was still starting had no journal. Others have not waited for it yet.
        alone = self.group.replaceable(name) and before.phase != "starting"
        self.group.reap(name)
        try:
            self.budget.spend(fault, self.progress.worked)
        except Exception:
            self.report_event("budget", worker=name, reason=fault.reason, action="the run ends", detail=fault.detail)
            raise
        action = "replaced" if alone and not fault.lost else "all go back to a checkpoint"
        self.report_event("restart", worker=name, reason=fault.reason, action=action, detail=fault.detail)
        self.records[name] = WorkerRecord(before.spec)
        if fault.lost or not alone:
            raise StateLost(f"{name} {fault.reason}")
        self.records[name].replacement = Replacement(time.monotonic(), fault)
        retry_for_descriptors(lambda: self.group.start([name]))
        self.load(name, {}, rejoins=True, suspect=fault.crashed)
        if before.asked_to_pause:
            self.pause(name)

    def _cause(self, fault: Fault) -> Fault:
        """The fault of the learner that was killed, where another of the same program noticed it first."""
        for mate in self.group.unit(fault.worker) - {fault.worker}:
            process = self.group.processes.get(mate)
            status = process.wait(0.2) if process is not None and fault.error is None else None
            if process is not None and status is not None and status < 0:
                return ended(mate, status, process.tail().strip())
        return fault

    def restart(self, names: Iterable[str], since: float, recovers: bool = True) -> None:
        """Starts these workers' processes again and makes a new record for every worker: all return to a checkpoint.

        `recovers`: because something was lost, so that it is reported when they are at work again.
        """
        names = set(names)
        for name in names:
            self.group.reap(name)
        self.group.clear()
        fault_reason = "went back to a checkpoint"
        for name, record in self.records.items():
            replacement = Replacement(since, Fault(name, fault_reason, "", crashed=False))
            self.records[name] = WorkerRecord(record.spec, replacement=replacement if recovers else None)
        retry_for_descriptors(lambda: self.group.start([name for name in self.records if name in names]))
