"""When a worker is given up, and when a run is."""

import signal

import pytest
from supervision import DUMP, WAITING, Clock

from runnel.distributions import load
from runnel.errors import EnvironmentFailed, UserError, WorkerFailed
from runnel.execution.building import build
from runnel.execution.supervision.fault_policy import (
    RestartBudget,
    ended,
    hung,
    raised,
    replaceable,
    to_blame,
)
from runnel.runtime.control_messages import Failed


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


def test_what_killed_a_worker_is_named():
    assert ended("a", -11, "").reason == "was killed by signal 11 (SIGSEGV)"
    assert ended("a", -11, "").crashed
    assert not killed().crashed
    assert ended("a", -9, "", oom=True).reason.endswith("perhaps because memory ran out")
    assert ended("a", 3, "").reason == "ended with status 3"
    stuck, stopped = (hung("a", 5.2, "working", "stacks", stopped) for stopped in (False, True))
    assert stuck.reason == "sent no heartbeat for 5 s while working (--hang-after)"
    assert stuck.crashed
    assert stopped.reason == "was stopped and sent no heartbeat for 5 s while working (--hang-after)"
    assert not stopped.crashed


def test_a_hang_is_reported_with_file_and_line_of_the_users_code():
    fault = hung("actor-1", 2.4, "working", DUMP, stopped=False)
    assert fault.reason == (
        "sent no heartbeat for 2 s while working (--hang-after), in step (/home/me/simulator.py, line 12)"
    )
    assert "line 631" in hung("learner", 2.4, "working", WAITING, stopped=False).reason


def test_who_waits_for_others_in_one_program_is_not_blamed_for_their_hang():
    assert to_blame({"learner-0": WAITING, "learner-1": DUMP}) == "learner-1"
    assert to_blame({"learner-0": DUMP, "learner-1": WAITING}) == "learner-0"
    assert to_blame({"learner-0": WAITING, "learner-1": WAITING}) == "learner-0"


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
    found = {f.name: replaceable(f, built.plan, built.graph) for f in built.plan.fragments}
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
