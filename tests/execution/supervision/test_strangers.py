"""Strangers at the ports of a run, and what is left of a run without descriptors."""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT, SUPPORT

import runnel
from runnel.algorithms.ppo import PPO
from runnel.execution.supervision.fault_policy import retry_for_descriptors
from runnel.launch import cluster
from runnel.launch.host_launcher import AgentInvitation, JoinedHost, LocalHostLauncher
from runnel.launch.rejections import EVERY_S, NONE, RejectionLog
from runnel.planning.machine import Machine
from runnel.recording.events import read_events
from runnel.recording.metrics import read_metrics
from runnel.transport import shared_memory
from runnel.transport.admission import MOST_WAITING
from runnel.transport.curve import Call, Door, new_keys
from runnel.transport.stream import Field

IDLE = 1_100
DESCRIPTORS = 1_024


class Driver:
    """A run over agents of this machine, in a process of its own."""

    def __init__(self, run_dir: Path, steps: int, **told: Any) -> None:
        self.run_dir = run_dir
        argv = {"run_dir": str(run_dir), "steps": steps, "descriptors": DESCRIPTORS, **told}
        path = os.pathsep.join([str(ROOT), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, SUPPORT / "cluster_driver.py", json.dumps(argv)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            text=True,
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline())
        self.port: int = ready["port"]
        self.agents: dict[str, int] = ready["agents"]

    def offer(self, name: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()

    def until(self, done: Callable[[], Any], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert self.process.poll() is None, "the run has ended"
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.05)

    def under_way(self) -> bool:
        return (self.run_dir / "checkpoints" / "latest").exists() and len(read_metrics(self.run_dir)) > 1

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.run_dir) if event["event"] == name]

    def result(self) -> dict[str, Any]:
        assert self.process.wait(240.0) == 0
        return json.loads((self.run_dir / "result.json").read_text())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


HOLD = """
import resource, socket, sys
many = int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, many + 100), hard))
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), 10) for _ in range(many)]
print("held", flush=True)
sys.stdin.read()
"""


def wait(done: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """A process that may not open another file, while those that it has open stay so."""
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    lowest = next(number for number in itertools.count() if number not in used)
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        lift(pid)


def lift(pid: int) -> None:
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


def named(name: str, ancestor: int) -> int:
    """The process of that name that descends from another."""

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid = int(entry.name)
            if (entry / "comm").read_text().strip() == name:
                while pid > 1:
                    pid = parent(pid)
                    if pid == ancestor:
                        return int(entry.name)
    raise AssertionError(f"there is no {name}")


@pytest.fixture
def drive() -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def start(*args: Any, **told: Any) -> Driver:
        made.append(Driver(*args, **told))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


@contextlib.contextmanager
def idle(port: int, many: int = IDLE) -> Iterator[None]:
    """So many connections from this machine that say nothing; one that is closed is made again, ten times a second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, soft + 2 * many), hard))
    ends: list[socket.socket] = []
    over = threading.Event()

    def closed(end: socket.socket) -> bool:
        try:
            return end.recv(4096) == b""  # a greeting is no answer
        except OSError as error:
            return not isinstance(error, BlockingIOError)

    def connect() -> socket.socket:
        end = socket.socket()
        end.settimeout(0.5)  # the kernel may have no room for it yet; it is made again
        with contextlib.suppress(OSError):
            end.connect(("127.0.0.1", port))
        end.setblocking(False)
        return end

    def hold() -> None:
        while not over.wait(0.1):
            for number in [number for number, end in enumerate(ends) if closed(end)]:
                ends[number].close()
                ends[number] = connect()

    ends += [connect() for _ in range(many)]
    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        for end in ends:
            end.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_idle_connections_hold_few_descriptors_and_keep_no_machine_out() -> None:
    keys, ann = new_keys(), new_keys()
    door = Door(keys)
    door.admit("ann", ann.public)
    before = descriptors(os.getpid())
    strangers = subprocess.Popen(
        [sys.executable, "-c", HOLD, door.address.rpartition(":")[2], str(IDLE)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert strangers.stdin is not None
    assert strangers.stdout is not None
    with strangers, strangers.stdin, strangers.stdout:
        assert strangers.stdout.readline() == b"held\n"
        wait(lambda: door.rejected.reasons["no handshake"] >= IDLE - MOST_WAITING)
        wait(lambda: descriptors(os.getpid()) <= before + MOST_WAITING + 8)
        call = Call(ann, door.address, keys.public)
        wait(lambda: call.send([b"hello"]))
        wait(lambda: door.receive() is not None)
        call.close()
    assert door.rejected.addresses == {"127.0.0.1": door.rejected.reasons.total()}
    door.close()


def test_a_machine_that_connects_before_its_key_is_known_is_no_stranger() -> None:
    keys, ann = new_keys(), new_keys()
    door = Door(keys)
    call = Call(ann, door.address, keys.public)
    wait(lambda: call.send([b"too early"]) or door.rejected.reasons["unknown key"])
    door.admit("ann", ann.public)
    wait(lambda: call.send([b"hello"]))
    wait(lambda: door.receive() is not None)
    assert not door.rejected.reasons.total()
    assert not door.rejected.addresses.total()
    call.close()
    door.close()


def test_rejected_connections_are_reported_as_sums_and_not_too_often() -> None:
    now = [0.0]
    log = RejectionLog(lambda: now[0])

    def counts(number: int) -> dict[str, Any]:
        return {"a": {"reasons": {"no handshake": number}, "addresses": {"10.0.0.9": number}}}

    assert log.report({"a": NONE}) == []
    (told,) = log.report(counts(1))
    assert told["reason"] == "1 connection was rejected at its port (1 no handshake), from 10.0.0.9 (1)"
    now[0] = EVERY_S / 2
    assert log.report(counts(1_100)) == []
    now[0] = 1.5 * EVERY_S
    (told,) = log.report(counts(2_001))
    assert told["reason"] == "2,000 connections were rejected at its port (2,000 no handshake), from 10.0.0.9 (2,000)"
    assert (told["worker"], told["times"], told["addresses"]) == ("a", 2_000, {"10.0.0.9": 2_000})
    assert log.report(counts(2_001), at_once=True) == []
    (told,) = log.report(counts(3), at_once=True)  # another process on that machine
    assert told["times"] == 3


# Without a descriptor for an event loop, orbax leaves the loop and what was to run in it to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_running_out_of_descriptors_costs_a_checkpoint_at_most(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def metrics() -> int:
        return len(read_metrics(run))

    def exhaust() -> None:
        wait(lambda: (run / "checkpoints" / "latest").exists())
        with no_descriptors(os.getpid()):
            time.sleep(0.5)
        before = metrics()
        wait(lambda: metrics() > before)
        os.kill(os.getpid(), signal.SIGTERM)  # ends with a checkpoint

    thread = threading.Thread(target=exhaust)
    thread.start()
    small = PPO(unroll=8, minibatches=2, epochs=1, hidden=(16,))
    result = runnel.train(small, "CartPole-v1", envs=4, steps=10**9, run_dir=run, quiet=True, checkpoint_every_s=0.05)
    thread.join()
    assert result.result["status"] == "interrupted"
    assert "reason" not in result.result  # a last checkpoint was written
    gc.collect()  # here, and not in another test


def test_a_worker_is_started_once_there_are_descriptors_again() -> None:
    made: list[shared_memory.SharedRing] = []
    with no_descriptors(os.getpid()):
        threading.Timer(0.7, lambda: lift(os.getpid())).start()
        made.append(retry_for_descriptors(lambda: shared_memory.create((Field((1,), "float32"),), 2)))
    made[0].close()


class Joining(LocalHostLauncher):
    """A machine that cannot be started at first."""

    failures = 1

    def add(self, invitation: AgentInvitation, name: str) -> JoinedHost:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().add(invitation, name)


def test_a_machine_that_cannot_join_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "JOIN_AGAIN_S", 0.5)
    hosts = Joining([Machine(1, ("cpu:0",), "a")])
    run = cluster.Cluster(hosts)
    try:
        hosts.offer(Machine(1, ("cpu:0",), "b"))
        assert run.finds_another(20.0)
        assert run.join() == ([], {"b": "[Errno 24] Too many open files"})
        assert run.finds_another(20.0)
        assert run.join() == (["b"], {})
    finally:
        run.shutdown()


@pytest.mark.slow
def test_idle_connections_neither_end_a_run_nor_keep_a_machine_from_joining(
    drive: Callable[..., Driver], tmp_path: Path
) -> None:
    driver = drive(tmp_path / "run", 400_000)
    driver.until(driver.under_way)
    with idle(driver.port):
        driver.offer("b")
        driver.until(lambda: driver.events("joined"), 30.0)
        result = driver.result()
    assert result["status"] == "finished"
    assert {worker["host"] for worker in result["workers"]} == {"a", "b"}
    assert result["network"]["rejected"]["reasons"]["no handshake"] >= IDLE - MOST_WAITING
    assert result["network"]["rejected"]["addresses"].keys() == {"127.0.0.1"}
    assert driver.events("rejected")[0]["worker"] == "the driver"


@pytest.mark.slow
@pytest.mark.parametrize("who", ["driver", "agent"])
def test_a_run_survives_a_while_without_descriptors(drive: Callable[..., Driver], tmp_path: Path, who: str) -> None:
    driver = drive(tmp_path / "run", 2_400_000)  # longer than it takes until a machine is tried again
    driver.until(driver.under_way)
    pid = driver.process.pid if who == "driver" else driver.agents["a"]
    with no_descriptors(pid):
        if who == "driver":
            driver.offer("b")
        else:
            os.kill(named("actor-0", pid), signal.SIGKILL)
        time.sleep(5.0)
    result = driver.result()
    assert result["status"] == "finished"
    if who == "driver":
        assert {worker["host"] for worker in result["workers"]} == {"a", "b"}
    else:
        assert list(result["restart_reasons"]) == ["actor-0 was killed by signal 9 (SIGKILL)"]
