"""Runs over several hosts. Here each is an agent of this machine, with its own memory, processes and sockets."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kill_runs import assert_same, final_state

import runnel
from runnel.distributions import load
from runnel.launch.host_launcher import AgentInvitation, JoinedHost, LocalHostLauncher
from runnel.planning.machine import Machine
from runnel.recording.events import read_events
from runnel.recording.metrics import read_metrics

SMALL = {"unroll": 16, "hidden": (16,)}


def machines(names: str, cpus: int = 2) -> list[Machine]:
    return [Machine(cpus, ("cpu:0",), name) for name in names]


def hosts(names: str = "ab", cpus: int = 2) -> LocalHostLauncher:
    return LocalHostLauncher(machines(names, cpus))


class Visited(LocalHostLauncher):
    """At the driver's port there is a stranger, once."""

    def start(self, invitation: AgentInvitation) -> list[JoinedHost]:
        with socket.create_connection(("127.0.0.1", int(invitation.address.rpartition(":")[2]))) as stranger:
            stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 4)
        return super().start(invitation)


def train(algorithm: str, distribution: Any, run_dir: Path, launcher: Any = "local", **more: Any) -> dict[str, Any]:
    settings = SMALL | ({"minibatches": 2, "epochs": 1} if algorithm == "ppo" else {})
    told = {"envs": 8, "steps": 4096, "seed": 3, "quiet": True, "settings": settings, **more}
    return runnel.train(algorithm, "CartPole-v1", distribution, run_dir=run_dir, launcher=launcher, **told).result


def meanwhile(done: Callable[[], Any], do: Callable[[], Any]) -> threading.Thread:
    """Does something in another thread once something is so."""

    def wait() -> None:
        deadline = time.monotonic() + 120
        while not done() and time.monotonic() < deadline:
            time.sleep(0.05)
        do()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def under_way(run_dir: Path) -> Callable[[], bool]:
    return lambda: (run_dir / "checkpoints" / "latest").exists() and len(read_metrics(run_dir)) > 1


slow = pytest.mark.slow
SYNCHRONOUS = [
    pytest.param("ppo", load("coarse")(actors=2), id="coarse"),
    pytest.param("ppo", load("fine")(actors=2), id="fine", marks=slow),
    pytest.param("ppo", load("environments")(actors=2), id="environments", marks=slow),
    pytest.param("ppo", load("replicated")(learners=2), id="replicated", marks=slow),
]
FREE = [
    pytest.param("a2c", load("central")(actors=2), id="central", marks=slow),
    pytest.param("impala", load("async")(actors=2), id="async"),
    pytest.param("impala", load("async")(actors=2, learners=2), id="async, two learners", marks=slow),
    pytest.param("dqn", load("async")(actors=2), id="async with replay", marks=slow),
    pytest.param("impala", load("decoupled")(actors=2, inference=2), id="decoupled", marks=slow),
    pytest.param("impala", load("decoupled")(actors=2, inference=1), id="decoupled, steps cross", marks=slow),
]


@pytest.mark.parametrize(("algorithm", "distribution"), SYNCHRONOUS)
def test_synchronous_runs_are_bitwise_those_of_one_machine(algorithm: str, distribution: Any, tmp_path: Path) -> None:
    alone = train(algorithm, distribution, tmp_path / "alone")
    both = train(algorithm, distribution, tmp_path / "both", hosts())
    assert both["status"] == "finished"
    assert both["env_steps"] == alone["env_steps"]
    assert {worker["host"] for worker in both["workers"]} == {"a", "b"}
    assert_same(final_state(tmp_path / "both"), final_state(tmp_path / "alone"))
    for worker in both["workers"]:
        assert (tmp_path / "both" / "logs" / f"{worker['name']}.log").exists()


@pytest.mark.parametrize(("algorithm", "distribution"), FREE)
def test_free_runs_train_and_bound_staleness(algorithm: str, distribution: Any, tmp_path: Path) -> None:
    result = train(algorithm, distribution, tmp_path / "run", Visited(machines("ab")), steps=20_000)
    assert result["status"] == "finished"
    assert result["network"]["rejected"]["reasons"] == {"no handshake": 1}
    assert sum(result["network"]["rejected"]["addresses"].values()) == 1
    (rejected,) = [event for event in read_events(tmp_path / "run") if event["event"] == "rejected"]
    assert (rejected["worker"], rejected["times"]) == ("the driver", 1)
    assert result["env_steps"] >= 20_000
    assert {worker["host"] for worker in result["workers"]} == {"a", "b"}
    assert result["staleness_max"] <= runnel.build(algorithm, "CartPole-v1").algorithm.max_staleness


def test_a_lost_host_changes_nothing_of_a_synchronous_run(tmp_path: Path) -> None:
    distribution = load("coarse")(actors=2)
    train("ppo", distribution, tmp_path / "calm", steps=16_384)
    machines, lost = hosts("abc"), []
    run_dir = tmp_path / "run"

    def lose(progress: runnel.Progress) -> None:
        if progress.checkpoint is not None and not lost:
            lost.append(progress.env_steps)
            os.kill(machines.pid("b"), signal.SIGKILL)

    result = train(
        "ppo", distribution, run_dir, machines, steps=16_384, checkpoint_every_s=0.2, on_update=lose,
        callback_every_s=0.0,
    )  # fmt: skip
    assert lost
    assert result["status"] == "finished"
    assert any(reason.startswith("b ") for reason in result["restart_reasons"])
    assert {worker["host"] for worker in result["workers"]} <= {"a", "c"}
    assert_same(final_state(run_dir), final_state(tmp_path / "calm"))


@slow
def test_a_worker_lost_on_another_host_is_replaced_there(tmp_path: Path) -> None:
    distribution, run_dir = load("coarse")(actors=2), tmp_path / "run"
    train("ppo", distribution, tmp_path / "calm", steps=60_000)

    def kill() -> None:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    own = (entry / "comm").read_text().strip() == "actor-1"
                    if own and os.stat(entry).st_uid == os.getuid():
                        os.kill(int(entry.name), signal.SIGKILL)
                except OSError:
                    continue

    thread = meanwhile(under_way(run_dir), kill)
    result = train("ppo", distribution, run_dir, hosts(), steps=60_000, checkpoint_every_s=1.0)
    thread.join()
    assert result["restart_reasons"] == {"actor-1 was killed by signal 9 (SIGKILL)": 1}
    assert not any(event["event"] == "rollback" for event in read_events(run_dir))
    assert_same(final_state(run_dir), final_state(tmp_path / "calm"))


@slow
def test_a_host_that_joins_is_used(tmp_path: Path) -> None:
    machines, run_dir = hosts("a"), tmp_path / "run"
    thread = meanwhile(under_way(run_dir), lambda: machines.offer(Machine(2, ("cpu:0",), "b")))
    result = train("impala", load("async")(actors=2), run_dir, machines, steps=100_000, checkpoint_every_s=1.0)
    thread.join()
    assert result["status"] == "finished"
    assert {worker["host"] for worker in result["workers"]} == {"a", "b"}
    assert sum(worker["fragment"] == "actor" for worker in result["workers"]) == 4  # twice the CPUs, twice the actors
    assert any(event["event"] == "joined" for event in read_events(run_dir))


def test_the_last_host_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.execution.supervision.machine_pool.ANOTHER_S", 0.5)
    machines, run_dir = hosts("a"), tmp_path / "run"
    thread = meanwhile(under_way(run_dir), lambda: os.kill(machines.pid("a"), signal.SIGKILL))
    with pytest.raises(runnel.errors.RunFailed, match="the last machine"):
        train("impala", load("async")(actors=2), run_dir, machines, steps=10**9, checkpoint_every_s=1.0)
    thread.join()


@slow
def test_the_last_host_comes_back(tmp_path: Path) -> None:
    machines, run_dir = hosts("a"), tmp_path / "run"

    def kill() -> None:
        os.kill(machines.pid("a"), signal.SIGKILL)
        time.sleep(3.0)
        machines.offer(Machine(2, ("cpu:0",), "a"))

    thread = meanwhile(under_way(run_dir), kill)
    result = train("impala", load("async")(actors=2), run_dir, machines, steps=100_000, checkpoint_every_s=1.0)
    thread.join()
    assert result["status"] == "finished"
    assert {worker["host"] for worker in result["workers"]} == {"a"}
