"""When a worker is given up, and when a run is."""

import signal
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from runnel.distributions import load
from runnel.errors import EnvironmentFailed, UserError, WorkerFailed
from runnel.execution.building import build
from runnel.execution.distributed_program import DistributedProgram
from runnel.execution.fault_policy import (
    DeadlockDetector,
    HeartbeatMonitor,
    RestartBudget,
    ended,
    hung,
    raised,
    replaceable,
    to_blame,
)
from runnel.planning.pace import staleness_in_iterations
from runnel.recording.events import EventLog, read_events
from runnel.runtime.control_messages import Failed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def killed(worker: str = "actor-0"):
    return ended(worker, -signal.SIGKILL, "")


def test_as_many_replacements_as_the_budget_says_within_its_window():
    clock = Clock()
    budget = RestartBudget(most=3, window_s=60.0, clock=clock)
    for _ in range(3):
        budget.spend(killed(), learnt=0)
    clock.now = 61.0
    for _ in range(3):
        budget.spend(killed(), learnt=0)
    with pytest.raises(
        WorkerFailed, match=r"actor-0 was killed by signal 9 \(SIGKILL\), and is not replaced after 3 within"
    ):
        budget.spend(killed(), learnt=0)


def test_a_worker_that_fails_whenever_it_starts_ends_the_run_with_its_own_traceback():
    budget = RestartBudget()
    fault = raised("learner", Failed("ValueError", "no", "Traceback: here"))
    for _ in range(4):
        budget.spend(fault, learnt=0)
    with pytest.raises(WorkerFailed, match=r"learner failed: no, 5 times in a row(.|\n)*Traceback: here"):
        budget.spend(fault, learnt=0)


def test_a_worker_that_fails_now_and_then_does_not():
    budget = RestartBudget()
    for learnt in range(8):
        budget.spend(ended("actor-1", 1, "log"), learnt=learnt)


def test_who_is_killed_from_outside_is_not_to_blame():
    budget = RestartBudget()
    for _ in range(8):
        budget.spend(killed(), learnt=0)


@pytest.mark.parametrize(("told", "error"), [({"user": True}, UserError), ({"final": True}, EnvironmentFailed)])
def test_what_a_new_worker_cannot_mend_ends_the_run_at_once(told, error):
    fault = raised("actor-0", Failed("ValueError", "bad", "", **told))
    with pytest.raises(error, match="bad"):
        RestartBudget().spend(fault, learnt=0)


def test_what_killed_a_worker_is_told_by_name():
    assert ended("a", -11, "").reason == "was killed by signal 11 (SIGSEGV)"
    assert ended("a", -11, "").crashed
    assert not killed().crashed
    assert ended("a", -9, "", oom=True).reason.endswith("perhaps because memory ran out")
    assert ended("a", 3, "").reason == "ended with status 3"
    stuck, stopped = (hung("a", 5.2, "working", "stacks", stopped) for stopped in (False, True))
    assert stuck.reason == "gave no sign of life for 5 s while working (--hang-after)"
    assert stuck.crashed
    assert stopped.reason == "was stopped and gave no sign of life for 5 s while working (--hang-after)"
    assert not stopped.crashed


def test_everybody_who_waits_for_everybody_is_found_out():
    clock = Clock()
    standstill, workers = DeadlockDetector(10.0, clock), ["actor", "learner"]
    standstill.hear("actor", ("parameters", 11.0))
    assert standstill.fault(workers) is None  # the learner may be at work
    standstill.hear("learner", ("unrolls", 9.0))
    assert standstill.fault(workers) is None
    clock.now = 6.0
    standstill.hear("learner", ("unrolls", 15.0))
    assert standstill.fault(workers) is None  # nothing was heard of the actor since, so it waits no more
    standstill.hear("actor", ("parameters", 17.0))
    assert standstill.fault(workers) is None  # what ends a wait may be on its way
    clock.now = 7.1
    fault = standstill.fault(workers)
    assert fault is not None
    assert fault.reason == "has waited for 10 s (--hang-after): actor for parameters, learner for unrolls"
    standstill.hear("actor", None)
    assert standstill.fault(workers) is None


DUMP = """
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/x/site-packages/runnel/runtime/compile_watch.py", line 30 in _watch

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/home/me/simulator.py", line 12 in step
  File "/x/site-packages/gymnasium/core.py", line 327 in step
"""
WAITING = """
Current thread 0x00007f02 (most recent call first):
  File "/x/site-packages/jax/_src/array.py", line 631 in _value
  File "/x/site-packages/runnel/runtime/worker.py", line 340 in _learner_boundary
"""


def test_a_hang_is_told_with_file_and_line_of_the_users_code():
    fault = hung("actor-1", 2.4, "working", DUMP, stopped=False)
    assert fault.reason == (
        "gave no sign of life for 2 s while working (--hang-after), in step (/home/me/simulator.py, line 12)"
    )
    assert "line 631" in hung("learner", 2.4, "working", WAITING, stopped=False).reason


def test_a_hang_is_shown_once_with_what_was_done_about_it(tmp_path):
    shown = []
    log = EventLog(tmp_path, shown.append)
    process = SimpleNamespace(stopped=lambda: False, stacks=lambda: DUMP)
    crew = SimpleNamespace(processes={"actor-1": process}, unit=lambda name: {name})

    def lost(fault):
        log.record("restart", worker=fault.worker, reason=fault.reason, action="replaced")

    fleet: Any = SimpleNamespace(crew=crew, _phases={"actor-1": "working"}, tell=log.record, _lost=lost)
    DistributedProgram._hangs(fleet, "actor-1", 2.4)
    assert len(shown) == 1
    assert shown[0].endswith("in step (/home/me/simulator.py, line 12); replaced")
    assert [event["event"] for event in read_events(tmp_path)] == ["hang", "restart"]


def test_who_waits_for_others_in_one_program_is_not_blamed_for_their_hang():
    assert to_blame({"learner-0": WAITING, "learner-1": DUMP}) == "learner-1"
    assert to_blame({"learner-0": DUMP, "learner-1": WAITING}) == "learner-0"
    assert to_blame({"learner-0": WAITING, "learner-1": WAITING}) == "learner-0"


def test_who_is_waited_for_is_who_hangs_not_who_waits_or_compiles():
    clock = Clock()
    compiling = DUMP.replace("/home/me/simulator.py", "/x/site-packages/jax/_src/compiler.py")
    texts = {"actor-0": DUMP, "actor-1": compiling, "actor-2": "", "learner": WAITING}
    stopped = {"actor-2"}
    processes = {n: SimpleNamespace(stopped=lambda n=n: n in stopped, stacks=lambda n=n: texts[n]) for n in texts}
    fleet: Any = SimpleNamespace(
        crew=SimpleNamespace(processes=processes, posts=texts), patience=HeartbeatMonitor(60.0, clock), paused=set(),
        standstill=DeadlockDetector(60.0, clock), _pausing={"learner"},
    )  # fmt: skip
    fleet._stack, fleet._silent = partial(DistributedProgram._stack, fleet), partial(DistributedProgram._silent, fleet)
    for name in texts:
        fleet.patience.silent(name, 1, "working", lambda: False)
    assert (
        DistributedProgram._late(fleet) == "learner, in _value (/x/site-packages/jax/_src/array.py, line 631)"
    )  # all beat
    clock.now = 2.0
    assert (
        DistributedProgram._late(fleet)
        == "actor-0, in step (/home/me/simulator.py, line 12); actor-2, which is stopped"
    )
    for name in ("actor-0", "actor-2"):
        fleet.patience.silent(name, 2, "working", lambda: False)
    assert DistributedProgram._late(fleet).startswith("learner, in ")


def test_silence_is_measured_from_the_last_beat_and_depends_on_the_phase():
    clock = Clock()
    patience = HeartbeatMonitor(2.0, clock=clock)
    stopped, runs = (lambda: True), (lambda: False)
    assert patience.silent("a", 1, "working", runs) is None
    clock.now = 1.9
    assert patience.silent("a", 1, "working", runs) is None
    clock.now = 3.0
    assert patience.silent("a", 1, "working", runs) == 3.0
    assert patience.silent("a", 1, "compiling", runs) is None
    assert patience.silent("a", 1, "compiling", stopped) == 3.0
    assert patience.silent("a", 2, "working", runs) is None
    patience.begin("a")
    clock.now = 9.0
    assert patience.silent("a", 2, "working", runs) is None


WHO = {
    ("ppo", "coarse"): {"actor": True, "learner": False},
    ("ppo", "fine"): {"environment": True, "learner": False},
    ("impala", "async"): {"actor": True, "learner": False},
    ("impala", "decoupled"): {"environment": True, "inference": True, "learner": False},
    ("a2c", "central"): {"worker": True, "server": False},
    ("dqn", "central"): {"worker": False, "server": False},  # each has a replay of its own
    ("ppo", "replicated"): {"replica": False},
}


@pytest.mark.parametrize(("algorithm", "distribution"), WHO)
def test_who_can_be_replaced_alone(algorithm: str, distribution: str):
    try:
        built = build(algorithm, "CartPole-v1", load(distribution)())
    except UserError as error:
        pytest.skip(str(error))
    free = staleness_in_iterations(built.plan, built.graph) > 0
    found = {f.name: replaceable(f, built.graph, free) for f in built.plan.fragments}
    assert found == WHO[algorithm, distribution]


def test_a_replacement_without_a_journal_to_go_on_from_needs_a_checkpoint_and_is_not_to_blame() -> None:
    """The worker before it was killed before its first entry: every further replacement finds the same."""
    fault = raised("actor-0", Failed("StateLost", "the journal has no entry", ""))
    assert fault.lost
    assert not fault.crashed
    assert fault.error is None
    budget = RestartBudget(most=10)
    for _ in range(10):
        budget.spend(fault, learnt=0)  # never too many in a row: nothing is wrong with the worker
    assert not raised("actor-0", Failed("ValueError", "the journal has no entry", "")).lost
