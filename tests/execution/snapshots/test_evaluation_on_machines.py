"""Evaluation workers on other machines, which are agents of this one; a machine is lost when its agent is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from toys import Drift, Reinforce

import runnel
from runnel.distributions import load
from runnel.errors import HostLost
from runnel.execution.run import Run, read_result
from runnel.execution.snapshots.evaluation_task import EvaluationTask, task_of
from runnel.execution.snapshots.evaluation_workers import MOST_TRIES, EvaluationWorkers
from runnel.execution.snapshots.evaluators import InProcessEvaluators, wait_for
from runnel.launch.cluster import Cluster
from runnel.launch.host import HostChannels, WorkerOrder
from runnel.launch.host_launcher import LocalHostLauncher
from runnel.launch.standalone import ClusterStandalone
from runnel.planning.machine import DRIVER, Machine
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.events import read_events
from runnel.runtime.programs import snapshots
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.snapshots import TakenSnapshot

PER_ITERATION = 32
EVERY = 4 * PER_ITERATION
EPISODES = 7


def machines(names: str, cpus: int = 1) -> LocalHostLauncher:
    return LocalHostLauncher([Machine(cpus, ("cpu:0",), name) for name in names])


def task_and_snapshot(**settings: Any) -> tuple[EvaluationTask, TakenSnapshot]:
    built = runnel.build(Reinforce(), "evaluated:Walk", "inline", envs=4)
    state = Loop(built.graph).init_state(jax.numpy.uint32(1), "agent")
    state = state._replace(params={**state.params, "b": jax.numpy.float32([0.0, 1.0])})  # rather to the right
    task = task_of(built, settings, EPISODES, 11, explore=True)
    return task, snapshots.take({"agent": state}, {"agent": 4}, 128, 128)


def played_here(task: EvaluationTask, snapshot: TakenSnapshot) -> Any:
    here = InProcessEvaluators(task)
    try:
        here.submit(snapshot)
        (done,) = here.poll()
        return done.played
    finally:
        here.close()


class Evaluating:
    """Three evaluation workers on a cluster of two machines with a CPU each."""

    def __init__(self, logs: Path, **settings: Any):
        self.task, self.snapshot = task_and_snapshot(**settings)
        self.launcher = machines("ab")
        self.cluster = Cluster(self.launcher)
        self.cluster.logs = logs
        self.events: list[dict[str, Any]] = []
        self.evaluators = EvaluationWorkers(
            self.task, 3, logs, 60.0, lambda event, **details: self.events.append(details),
            lambda: ClusterStandalone(self.cluster),
        )  # fmt: skip

    def played(self) -> Any:
        (done,) = wait_for(self.evaluators, lambda: False, 120.0)
        assert done.played is not None, done.problem
        return done.played

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline
            assert not self.evaluators.poll()

    def close(self) -> None:
        self.evaluators.close()
        self.cluster.shutdown()
        self.launcher.close()


@pytest.fixture
def evaluating(tmp_path: Path) -> Iterator[Callable[..., Evaluating]]:
    made: list[Evaluating] = []

    def make(**settings: Any) -> Evaluating:
        made.append(Evaluating(tmp_path / "logs", **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def assert_same_episodes(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(found.lengths, wanted.lengths)
    np.testing.assert_array_equal(found.returns["agent"], wanted.returns["agent"])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_results_are_the_same_wherever_the_workers_run(evaluating: Callable[..., Evaluating], tmp_path: Path) -> None:
    there = evaluating()
    there.evaluators.submit(there.snapshot)
    assert_same_episodes(there.played(), played_here(there.task, there.snapshot))
    assert there.evaluators.hosts == {"evaluator-0": "a", "evaluator-1": "b", "evaluator-2": DRIVER}
    assert not there.events
    for name in there.evaluators.hosts:
        assert (tmp_path / "logs" / f"{name}.log").exists()
    # A worker group that comes and goes on the same machines leaves them alone.
    pids = {name: process.pid for name, process in there.cluster.standalone.items()}
    there.cluster.open({name: HostChannels((f"actor-{name}",), (), ()) for name in "ab"})
    there.cluster.close(1.0)
    there.evaluators.submit(there.snapshot)
    there.played()
    assert {name: process.pid for name, process in there.cluster.standalone.items()} == pids
    there.evaluators.close()
    deadline = time.monotonic() + 30
    while any(map(is_running, pids.values())):
        assert time.monotonic() < deadline
        there.cluster.listen()


@pytest.mark.slow
def test_workers_of_a_lost_machine_play_again_elsewhere(evaluating: Callable[..., Evaluating]) -> None:
    there = evaluating(slow_s=0.02)
    there.evaluators.submit(there.snapshot)
    there.until(there.evaluators.all_play)  # all are playing
    os.kill(there.launcher.pid("b"), signal.SIGKILL)
    with pytest.raises(HostLost) as lost:
        there.until(lambda: False)
    assert lost.value.host == "b"
    there.cluster.drop("b")
    there.launcher.offer(Machine(1, ("cpu:0",), "c"))  # a machine that joins is used by those that start later
    assert there.cluster.finds_another(60.0)
    assert there.cluster.join() == (["c"], {})
    assert_same_episodes(there.played(), played_here(*task_and_snapshot()))
    assert there.evaluators.hosts == {"evaluator-0": "a", "evaluator-1": "c", "evaluator-2": DRIVER}
    (event,) = there.events
    assert (event["worker"], event["reason"]) == ("evaluator-1", "was on b, which is lost")
    assert event["action"] == "started again: c"


@pytest.mark.slow
def test_a_machine_that_is_silent_for_a_while_is_waited_for(evaluating: Callable[..., Evaluating]) -> None:
    """Longer than a worker may be silent that hangs."""
    there = evaluating(slow_s=0.3)
    there.evaluators.hang_after_s = 4.0
    there.evaluators.submit(there.snapshot)
    there.until(there.evaluators.all_play)
    agent = there.launcher.pid("b")
    os.kill(agent, signal.SIGSTOP)
    try:
        mail = there.cluster.agents["b"].mail
        there.until(lambda: time.monotonic() > mail.heard + 6.0)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert_same_episodes(there.played(), played_here(*task_and_snapshot()))
    assert not there.events


@pytest.mark.slow
def test_one_that_is_killed_or_cannot_start_on_its_machine_is_replaced(
    evaluating: Callable[..., Evaluating], tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    canary.touch()
    there = evaluating(kills=str(canary))
    there.evaluators.submit(there.snapshot)
    assert_same_episodes(there.played(), played_here(*task_and_snapshot()))
    (event,) = there.events
    assert event["action"] == "replaced"
    assert "9" in event["reason"]
    # An agent that cannot start it says why, and that is an attempt.
    other = there.cluster.standalone["evaluator-0"]
    there.cluster.start_standalone("a", _order("no-such", "runnel.no_such_module:main"))
    there.until(lambda: there.cluster.standalone["no-such"].exit_status() is not None)
    assert "no_such_module" in there.cluster.standalone["no-such"].tail()
    assert other.exit_status() is None


def _order(name: str, entry: str) -> WorkerOrder:
    return WorkerOrder(name, entry, {}, False, {"JAX_PLATFORMS": "cpu"}, (), (), (), ())


# Whole runs


def train(run_dir: Path, launcher: Any = "local", algorithm: Any = None, environment: Any = "evaluated:Walk",
          **more: Any) -> Run:  # fmt: skip
    given = {"envs": 4, "steps": 3 * EVERY, "seed": 3, "quiet": True, "run_dir": run_dir, **more}
    distribution = given.pop("distribution", None) or load("coarse")(actors=2)
    return runnel.train(algorithm or Reinforce(), environment, distribution, launcher=launcher, **given)


def bits(run: Run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.states)]


def evaluated(run: Run) -> list[tuple[int, list[float], list[int]]]:
    found = read_evaluations(run.run_dir)
    return [(each["env_steps"], each["returns"], each["lengths"]) for each in found]


def test_a_run_on_machines_has_the_evaluations_of_a_run_on_one(tmp_path: Path) -> None:
    given = {"eval_every": EVERY, "eval_episodes": 5, "eval_wait": True}
    alone = train(tmp_path / "alone", distribution="inline", eval_workers=0, **given)
    run = train(tmp_path / "run", machines("ab", cpus=3), eval_workers=2, **given)
    assert evaluated(run) == evaluated(alone)
    assert [at for at, *_ in evaluated(run)] == [0, EVERY, 2 * EVERY, 3 * EVERY]
    assert bits(run) == bits(alone)
    result = read_result(tmp_path / "run")
    assert result is not None  # what the run has written is read again
    places = result["evaluation_workers"]
    # Three workers of six CPUs are the run's: two on one machine, one on the other.
    assert {place["name"]: place["host"] for place in places}.keys() == {"evaluator-0", "evaluator-1"}
    assert all(place["host"] in "ab" for place in places)
    assert "evaluation_workers" not in alone.result


@pytest.mark.slow
def test_a_run_that_loses_a_machine_has_all_evaluations(tmp_path: Path) -> None:
    """Also where more evaluation workers are lost with it than attempts are made."""
    given: Any = {
        "eval_every": EVERY, "eval_episodes": 12, "eval_wait": True, "steps": 12 * EVERY, "checkpoint_every_s": 0.5
    }  # fmt: skip
    alone = train(tmp_path / "alone", eval_workers=0, **given)
    launcher = LocalHostLauncher([Machine(3, ("cpu:0",), "a"), Machine(12, ("cpu:0",), "b")])
    run_dir = tmp_path / "run"

    def kill() -> None:
        deadline = time.monotonic() + 120
        while len(read_evaluations(run_dir)) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(launcher.pid("b"), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    workers = MOST_TRIES + 3
    run = train(run_dir, launcher, eval_workers=workers, eval_env_settings={"slow_s": 0.01}, **given)
    thread.join()
    assert run.result["status"] == "finished"
    assert any(reason.startswith("b ") for reason in run.result["restart_reasons"])
    assert evaluated(run) == evaluated(alone)
    assert bits(run) == bits(alone)
    assert {place["host"] for place in run.result["evaluation_workers"]} <= {"a", DRIVER}
    moved = [event for event in read_events(run_dir) if event["event"] == "evaluator"]
    assert {event["reason"] for event in moved} == {"was on b, which is lost"}


@pytest.mark.slow
def test_a_machine_that_is_lost_in_the_last_evaluation_costs_no_training(tmp_path: Path) -> None:
    """The last checkpoint is written: the run will not return to it."""
    launcher, run_dir = machines("ab", cpus=3), tmp_path / "run"

    def kill() -> None:
        deadline = time.monotonic() + 120
        while not (run_dir / "checkpoints" / "latest").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(launcher.pid("b"), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    given: Any = {"eval_every": 10**6, "eval_episodes": 6}
    run = train(
        run_dir, launcher, eval_workers=3, eval_env_settings={"slow_s": 0.3}, checkpoint_every_s=1e6, **given
    )  # fmt: skip
    thread.join()
    assert run.result["status"] == "finished"
    kinds = {event["event"]: event for event in read_events(run_dir)}
    assert kinds["restart"]["action"] == "evaluated on the machines that are left"
    assert kinds["evaluator"]["reason"] == "was on b, which is lost"
    assert "rollback" not in kinds
    alone = train(tmp_path / "alone", distribution="inline", eval_workers=0, **given)
    assert evaluated(run) == evaluated(alone)
    assert [at for at, *_ in evaluated(run)] == [0, 3 * EVERY]
    assert bits(run) == bits(alone)


@pytest.mark.slow
def test_stored_policies_reach_workers_on_other_machines(tmp_path: Path) -> None:
    """They arrive with the initial state: a machine needs no access to the store."""
    given: Any = {"algorithm": Drift(), "environment": "toys:Tag", "steps": 256}
    source = train(tmp_path / "source", distribution="inline", **(given | {"seed": 8}))
    policies = {"init_from": {"hunter": source.run_dir}, "frozen": {"runners": source.run_dir}}
    alone = train(tmp_path / "alone", distribution="inline", **given, **policies)
    both = train(tmp_path / "both", machines("ab", cpus=2), **given, **policies)
    assert {worker["host"] for worker in both.result["workers"]} == {"a", "b"}
    assert bits(both) == bits(alone)
    np.testing.assert_array_equal(both.states["runners"].params["sum"], source.states["runners"].params["sum"])
    assert float(both.states["runners"].params["sum"]) != 0.0  # with which it would begin otherwise
