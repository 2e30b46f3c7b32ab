"""Which workers a run waits for, in words: at its start, and when a pause takes long."""

from __future__ import annotations

from collections.abc import Mapping

from runnel.execution.supervision.fault_policy import stuck
from runnel.execution.supervision.hang_watch import HELD_S, SHOWN_S
from runnel.execution.supervision.liveness import DeadlockDetector, HeartbeatMonitor
from runnel.execution.supervision.worker_record import WorkerRecord, named
from runnel.launch.site import WorkerProcess
from runnel.system.tracebacks import Frame, place, read

SILENT = "no heartbeat"

MOST_STACKS = 16
"""Of how many workers the stacks are read: each takes a tenth of a second."""


def displayed_phase(record: WorkerRecord, heartbeats: HeartbeatMonitor, deadlocks: DeadlockDetector) -> str:
    """A worker's phase as it is displayed.

    Its first iteration is reported as compiling, but the worker may also wait or hang in it. Only a hanging worker
    sends no heartbeats.
    """
    if record.phase != "starting" and heartbeats.silence_s(record) > SHOWN_S:
        return SILENT
    return "waiting" if record.phase == "compiling" and deadlocks.waits(record) else record.phase


def not_at_work(phases: Mapping[str, str]) -> str:
    """Which workers are still starting or compiling: `starting: actor-0, actor-1; compiling: learner`."""
    shown = ("starting", "compiling", SILENT)
    by_phase = {phase: [worker for worker in phases if phases[worker] == phase] for phase in shown}
    late = [f"{phase}: {named(workers)}" for phase, workers in by_phase.items() if workers]
    return "; ".join(late) or "waiting for the first update"


def late_workers(
    records: Mapping[str, WorkerRecord], processes: Mapping[str, WorkerProcess], heartbeats: HeartbeatMonitor,
    deadlocks: DeadlockDetector,
) -> str:  # fmt: skip
    """The workers that a run waits for, each with its place in the code.

    These are the workers that hang, if there are any. Otherwise they are those that were asked for something and do not
    wait for another worker.
    """
    silent = [n for n in processes if not records[n].paused and heartbeats.silence_s(records[n]) > HELD_S]
    late = stuck({name: _stack(processes, name) for name in silent[:MOST_STACKS]})
    others = len(silent) - MOST_STACKS
    if not late:
        asked = _asked(records)
        names = [name for name in asked if not deadlocks.waits(records[name])] or asked
        late, others = {name: _stack(processes, name) for name in names[:MOST_STACKS]}, len(names) - MOST_STACKS
    shown = [f"{name}, in {place(stack)}" if stack else _without_stack(processes, name) for name, stack in late.items()]
    return "; ".join([*shown, *([f"{others} more"] if others > 0 else [])])


def _asked(records: Mapping[str, WorkerRecord]) -> list[str]:
    for state in ("pausing", "saving"):
        if any(record.state == state for record in records.values()):
            return sorted(name for name, record in records.items() if record.state == state)
    return sorted(name for name, record in records.items() if not record.paused)


def _without_stack(processes: Mapping[str, WorkerProcess], name: str) -> str:
    process = processes.get(name)
    return f"{name}, which is stopped" if process is not None and process.stopped() else name


def _stack(processes: Mapping[str, WorkerProcess], name: str) -> list[Frame]:
    """A worker's stack; empty for a stopped process, which the request would wake up."""
    process = processes.get(name)
    return [] if process is None or process.stopped() else read(process.tracebacks())
