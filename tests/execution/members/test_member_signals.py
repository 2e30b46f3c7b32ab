"""A signal ends members at any moment, also before any of them trains."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import PBT, LogUniform
from runnel.algorithms.ppo import PPO
from runnel.execution.members import fused_members, stacked_members
from runnel.execution.members.fused_members import FusedMembers, SharedPrograms
from runnel.execution.members.processes import MemberProcesses
from runnel.execution.members.stacked_run import StackedRun
from runnel.runtime.single_process.shared_program import SharedProgram
from runnel.system.signals import TOGETHER_S

SMALL = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
TASK = "gymnax:CartPole-v1"
PER_ITERATION = 8 * 4
STEPS = 50 * PER_ITERATION


def interrupting(call: Callable[..., Any], after: int = 0) -> Callable[..., Any]:
    """The same function; a signal is sent during its call number `after`."""
    calls = 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if calls == after:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(TOGETHER_S / 2)  # the handler is called in here
        calls += 1
        return call(*args, **kwargs)

    return interrupted


def train(run_dir: Path, **more: Any) -> runnel.Members:
    return runnel.train_members(SMALL, TASK, seeds=3, envs=4, steps=STEPS, run_dir=run_dir, quiet=True, **more)


def steps_of(found: runnel.Members) -> list[int]:
    return [run["env_steps"] for run in found.result["runs"]]


def test_members_that_are_interrupted_while_they_are_compiled_do_not_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_members, "that_fit", interrupting(fused_members.that_fit))
    found = train(tmp_path / "all")
    assert (found.result["status"], steps_of(found)) == ("interrupted", [0, 0, 0])
    assert runnel.resume_members(found.run_dir, quiet=True).result["status"] == "finished"


@pytest.mark.parametrize("after", [0, 1, 2])
def test_members_that_are_interrupted_while_they_begin_do_not_train_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(fused_members, "member_session", interrupting(fused_members.member_session, after))
    found = train(tmp_path / "all")
    assert found.result["status"] == "interrupted"
    assert max(steps_of(found)) < STEPS
    again = runnel.resume_members(found.run_dir, quiet=True)
    assert (again.result["status"], steps_of(again)) == ("finished", [STEPS] * 3)


def test_a_process_that_is_started_when_a_signal_comes_is_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    begin = MemberProcesses.start

    def slowly(self: MemberProcesses, member: Any) -> Any:
        process = begin(self, member)
        started.append(process)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TOGETHER_S / 2)
        return process

    monkeypatch.setattr(MemberProcesses, "start", slowly)
    found = runnel.train_members(
        SMALL, "CartPole-v1", "inline", seeds=3, envs=4, steps=10**7, run_dir=tmp_path / "all", quiet=True
    )
    assert len(started) == 1
    assert started[0].poll() is not None
    assert found.result["status"] == "interrupted"


def test_a_stack_that_is_interrupted_before_it_begins_does_not_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runnel.execution.members.training, "STACKED_ABOVE", 2)
    monkeypatch.setattr(stacked_members, "StackedRun", interrupting(StackedRun))
    found = train(tmp_path / "all")
    assert (found.result["status"], steps_of(found)) == ("interrupted", [0, 0, 0])
    assert runnel.resume_members(found.run_dir, quiet=True).result["status"] == "finished"


def test_a_stack_that_is_interrupted_keeps_what_it_has_trained(tmp_path: Path) -> None:
    """By a signal to the process, as a user sends it, in the midst of training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runnel.execution.members.training, "STACKED_ABOVE", 2)
        patch.setattr(StackedRun, "call", interrupting_from_thread(StackedRun.call))
        found = runnel.train_members(SMALL, TASK, seeds=3, envs=4, steps=10**8, run_dir=tmp_path / "all", quiet=True)
    assert found.result["status"] == "interrupted"
    (steps,) = set(steps_of(found))
    assert 0 < steps < 10**8
    again = runnel.resume_members(found.run_dir, steps=steps + PER_ITERATION, quiet=True)
    assert (again.result["status"], steps_of(again)) == ("finished", [steps + PER_ITERATION] * 3)


def interrupting_from_thread(call: Callable[..., Any]) -> Callable[..., Any]:
    once = threading.Event()

    def interrupted(*args: Any) -> Any:
        found = call(*args)
        if not once.is_set():
            once.set()
            os.kill(os.getpid(), signal.SIGINT)
        return found

    return interrupted


def test_a_population_that_is_interrupted_while_it_is_traced_does_not_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedPrograms, "separation", interrupting(SharedPrograms.separation))
    rule = PBT(every=STEPS, perturb={"learning_rate": LogUniform(1e-4, 1e-2)})
    found = runnel.train_population(
        SMALL, TASK, rule=rule, members=2, envs=4, steps=STEPS, run_dir=tmp_path / "all", quiet=True
    )
    assert (found.result["status"], steps_of(found)) == ("interrupted", [0, 0])


def test_a_sweep_that_is_interrupted_while_it_is_traced_does_not_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SharedPrograms, "separation", interrupting(SharedPrograms.separation))
    found = runnel.sweep(
        SMALL, TASK, over={"learning_rate": LogUniform(1e-4, 1e-2)}, trials=2, seeds=1, winner_seeds=0, envs=4,
        steps=STEPS, run_dir=tmp_path / "all", quiet=True,
    )  # fmt: skip
    assert found.result["status"] == "interrupted"
    assert [run["env_steps"] for run in found.result["runs"]] == [0, 0]


def test_a_member_that_reaches_its_return_needs_nothing_of_the_program_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may have regrouped without it before its session is over."""
    leave = SharedProgram.leave

    def forget(self: SharedProgram, member: int) -> None:
        leave(self, member)
        if self.stands_at(member) is not None:
            self.take_out(member)

    said: list[str] = []
    news = FusedMembers.news
    monkeypatch.setattr(SharedProgram, "leave", forget)
    monkeypatch.setattr(FusedMembers, "news", lambda self: said.extend(news(self)) or [])
    found = train(tmp_path / "all", stop_at_return=12.0)
    assert [run["status"] for run in found.result["runs"]] == ["finished"] * 3
    assert not [text for text in said if "failed" in text]
