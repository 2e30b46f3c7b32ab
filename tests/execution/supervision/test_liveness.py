"""Heartbeats of single workers, and deadlocks among all."""

from supervision import Clock, spec

from runnel.execution.supervision.liveness import DeadlockDetector, HeartbeatMonitor
from runnel.execution.supervision.worker_record import WorkerRecord


def test_silence_is_measured_from_the_last_beat_and_depends_on_the_phase():
    clock = Clock()
    monitor, record = HeartbeatMonitor(2.0, clock), WorkerRecord(spec("a"), phase="working")
    stopped, runs = (lambda: True), (lambda: False)
    assert monitor.silence_s(record) == 0.0
    assert monitor.overdue_s(record, 1, runs) is None
    clock.now = 1.9
    assert monitor.overdue_s(record, 1, runs) is None
    assert monitor.silence_s(record) == 1.9
    clock.now = 3.0
    assert monitor.overdue_s(record, 1, runs) == 3.0
    record.phase = "compiling"
    assert monitor.overdue_s(record, 1, runs) is None
    assert monitor.overdue_s(record, 1, stopped) == 3.0
    record.phase = "working"
    assert monitor.overdue_s(record, 2, runs) is None
    clock.now = 9.0
    assert monitor.overdue_s(WorkerRecord(record.spec, phase="working"), 2, runs) is None  # a new process
    assert monitor.overdue_s(record, 2, runs) == 6.0


def test_a_deadlock_is_found_when_all_workers_wait():
    clock = Clock()
    detector = DeadlockDetector(10.0, clock)
    actor, learner = WorkerRecord(spec("actor")), WorkerRecord(spec("learner"))
    records = {"actor": actor, "learner": learner}
    detector.note(actor, ("parameters", 11.0))
    assert detector.waits(actor)
    assert not detector.waits(learner)
    assert detector.fault(records) is None  # the learner may be at work
    detector.note(learner, ("unrolls", 9.0))
    assert detector.fault(records) is None
    clock.now = 6.0
    assert not detector.waits(actor)
    detector.note(learner, ("unrolls", 15.0))
    assert detector.fault(records) is None  # the actor has not repeated its report, so it waits no more
    detector.note(actor, ("parameters", 17.0))
    assert detector.fault(records) is None  # the message that ends a wait may be on its way
    clock.now = 7.1
    fault = detector.fault(records)
    assert fault is not None
    assert fault.reason == "has waited for 10 s (--hang-after): actor for parameters, learner for unrolls"
    detector.note(actor, None)
    assert detector.fault(records) is None


def test_a_learner_at_its_end_does_not_hide_that_all_others_wait():
    clock = Clock()
    detector = DeadlockDetector(10.0, clock)
    actor, done = WorkerRecord(spec("actor")), WorkerRecord(spec("learner"), state="paused")
    records = {"actor": actor, "learner": done}
    assert detector.fault({"learner": done}) is None
    for clock.now in (0.0, 1.1):
        detector.note(actor, ("parameters", 11.0 + clock.now))
        fault = detector.fault(records)
    assert fault is not None
    assert fault.reason == "has waited for 10 s (--hang-after): actor for parameters"
