"""Whether workers make progress: heartbeats of each, and deadlocks among all.

The state of both is in the workers' records, so that a new record starts from nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from runnel.execution.supervision.fault_policy import Fault
from runnel.execution.supervision.worker_record import Heartbeat, ReportedWait, WorkerRecord, named


class HeartbeatMonitor:
    """Finds workers without a heartbeat for longer than their phase allows.

    A working worker beats with every step, a waiting one ten times a second. Starting and compiling have longer limits,
    except for a process that was stopped by a signal: it does neither.
    """

    def __init__(self, working_s: float, clock: Callable[[], float] = time.monotonic):
        self.limits = {"working": working_s, "starting": max(300.0, working_s), "compiling": max(600.0, working_s)}
        self._clock = clock

    def silence_s(self, record: WorkerRecord) -> float:
        """Seconds since the last heartbeat; 0 before the first one was seen."""
        return 0.0 if record.heartbeat is None else self._clock() - record.heartbeat.at

    def overdue_s(self, record: WorkerRecord, beats: int, stopped: Callable[[], bool]) -> float | None:
        """Takes the worker's count of heartbeats; returns its silence if that is too long."""
        if record.heartbeat is None or record.heartbeat.beats != beats:
            record.heartbeat = Heartbeat(beats, self._clock())
            return None
        silence_s = self.silence_s(record)
        overdue = silence_s > self.limits[record.phase] or (silence_s > self.limits["working"] and stopped())
        return silence_s if overdue else None


class DeadlockDetector:
    """Finds that all workers wait for each other: each sends heartbeats, and none will continue.

    A learner that has paused by itself, at the end of training, will not continue either.
    """

    FRESH_S = 5.0
    """A report is valid this long; a waiting worker repeats it several times a second."""
    CONFIRM_S = 1.0
    """A deadlock must last this long: the message that ends a wait may be on its way."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic):
        self.limit_s, self._clock = limit_s, clock
        self._noticed: float | None = None

    def note(self, record: WorkerRecord, waiting: tuple[str, float] | None) -> None:
        """A worker reported the cause of its wait and for how long it has waited, or that it does not wait."""
        record.wait = None
        if waiting is not None:
            cause, seconds = waiting
            record.wait = ReportedWait(self._clock(), seconds, cause)

    def waits(self, record: WorkerRecord) -> bool:
        """Whether a worker waits for another."""
        return record.wait is not None and self._fresh(record.wait)

    def fault(self, records: Mapping[str, WorkerRecord]) -> Fault | None:
        """The fault of all workers together, if all have waited for too long."""
        now = self._clock()
        working = {name: record for name, record in records.items() if not record.paused}
        waits = {name: record.wait for name, record in working.items() if record.wait is not None}
        overdue = (self._fresh(wait) and wait.seconds > self.limit_s for wait in waits.values())
        if not waits or len(waits) < len(working) or not all(overdue):
            self._noticed = None
            return None
        self._noticed = now if self._noticed is None else self._noticed
        if now - self._noticed < self.CONFIRM_S:
            return None
        causes = named([f"{name} for {wait.cause}" for name, wait in waits.items()])
        return Fault("everybody", f"has waited for {self.limit_s:.0f} s (--hang-after): {causes}", "", crashed=True)

    def _fresh(self, wait: ReportedWait) -> bool:
        return wait.at > self._clock() - self.FRESH_S
