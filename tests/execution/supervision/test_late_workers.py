"""What is shown of the workers that a run waits for."""

from supervision import DUMP, WAITING, Clock, FakeProcess, spec

from runnel.execution.supervision.late_workers import SILENT, displayed_phase, late_workers, not_at_work
from runnel.execution.supervision.liveness import DeadlockDetector, HeartbeatMonitor
from runnel.execution.supervision.worker_record import WorkerRecord


def test_workers_that_are_late_are_named() -> None:
    phases = {"actor-0": "starting", "actor-1": "starting", "learner": "compiling", "store": "working"}
    assert not_at_work(phases) == "starting: actor-0, actor-1; compiling: learner"
    assert not_at_work({"actor": "working"}) == "waiting for the first update"
    assert not_at_work({"actor-0": SILENT, "learner": "waiting"}) == "no heartbeat: actor-0"


def test_in_its_first_iteration_a_worker_may_compile_wait_or_hang() -> None:
    clock = Clock()
    heartbeats, deadlocks = HeartbeatMonitor(60.0, clock), DeadlockDetector(60.0, clock)
    actor, learner = WorkerRecord(spec("actor-0")), WorkerRecord(spec("learner"))

    def shown() -> list[str]:
        return [displayed_phase(record, heartbeats, deadlocks) for record in (actor, learner)]

    assert shown() == ["starting", "starting"]
    actor.phase = learner.phase = "compiling"
    assert shown() == ["compiling", "compiling"]
    deadlocks.note(learner, ("unrolls", 0.3))
    assert shown() == ["compiling", "waiting"]
    heartbeats.overdue_s(actor, 7, lambda: False)
    clock.now = 4.0
    assert shown() == [SILENT, "waiting"]
    actor.phase = "working"
    assert shown() == [SILENT, "waiting"]
    heartbeats.overdue_s(actor, 8, lambda: False)
    assert shown() == ["working", "waiting"]


def test_a_run_waits_for_workers_that_hang_not_for_those_that_wait_or_compile() -> None:
    clock = Clock()
    heartbeats, deadlocks = HeartbeatMonitor(60.0, clock), DeadlockDetector(60.0, clock)
    compiling = DUMP.replace("/home/me/simulator.py", "/x/site-packages/jax/_src/compiler.py")
    tracebacks = {"actor-0": DUMP, "actor-1": compiling, "actor-2": "", "learner": WAITING}
    records = {name: WorkerRecord(spec(name), phase="working") for name in tracebacks}
    processes = {name: FakeProcess(name, text) for name, text in tracebacks.items()}
    processes["actor-2"].is_stopped = True
    records["learner"].state = "pausing"

    def late() -> str:
        return late_workers(records, processes, heartbeats, deadlocks)

    for record in records.values():
        heartbeats.overdue_s(record, 1, lambda: False)
    assert late() == "learner, in _value (/x/site-packages/jax/_src/array.py, line 631)"  # all send heartbeats
    clock.now = 2.0
    assert late() == "actor-0, in step (/home/me/simulator.py, line 12); actor-2, which is stopped"
    for name in ("actor-0", "actor-2"):
        heartbeats.overdue_s(records[name], 2, lambda: False)
    assert late().startswith("learner, in ")
    heartbeats.overdue_s(records["learner"], 2, lambda: False)
    records["learner"].state, records["actor-1"].state = "saved", "saving"
    assert late().startswith("actor-1, in ")  # all have paused, and one has not saved yet
