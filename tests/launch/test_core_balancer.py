"""Workers that wait for each other change places on uneven cores; on even ones they stay where they are."""

import dataclasses
import os
import subprocess
import sys
import threading
import time
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel import train
from runnel.distributions import load
from runnel.execution.building import build
from runnel.execution.supervision.worker_group import barrier_workers
from runnel.launch import core_balancer
from runnel.launch.core_balancer import CoreBalancer, StepProgress, core_of, move, nodes
from runnel.planning.machine import Machine
from runnel.planning.plan import REST, Barrier, Distribution, Fragment, Layout

HERE = sorted(os.sched_getaffinity(0))

several_cores = pytest.mark.skipif(len(HERE) < 2, reason="there is one core only")


@pytest.fixture
def busy():
    """A process that is always at work, and tells when it began to be."""
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


class Cores:
    """Cores, each so fast, with a worker on each of the first; it is on `core_of` and `move` that all depends."""

    def __init__(self, speeds, workers, monkeypatch):
        self.speeds, self.done, self.moves = list(speeds), dict.fromkeys(range(1000, 1000 + workers), 0.0), 0
        self.where = {pid: core for core, pid in enumerate(self.done)}
        self.length = float("inf")  # of an unroll, in steps
        monkeypatch.setattr(core_balancer, "nodes", lambda cores: [list(range(len(self.speeds)))])
        monkeypatch.setattr(core_balancer, "core_of", self.where.get)
        monkeypatch.setattr(core_balancer, "move", self._move)
        self.workers = CoreBalancer(lambda: self.progress())

    def _move(self, pid, core):
        self.moves += 1
        self.where[pid] = core

    def progress(self):
        return {pid: StepProgress(int(done), done >= self.length) for pid, done in self.done.items()}

    def look(self):
        """A while passes, and then comes a look."""
        for pid, core in self.where.items():
            self.done[pid] = min(self.length, self.done[pid] + self.speeds[core])
        assert len(set(self.where.values())) == len(self.where), "two workers are on one core"
        self.workers.look()

    def unroll(self, length):
        """How many looks it takes until everybody has taken so many steps."""
        self.length = min(self.done.values()) + length
        looks = 0
        while min(self.done.values()) < self.length:
            self.look()
            looks += 1
        return looks


@given(st.lists(st.sampled_from([2.0, 3.0, 4.0]), min_size=2, max_size=12), st.integers(0, 3))
def test_on_uneven_cores_all_come_to_the_end_together(speeds, empty):
    with pytest.MonkeyPatch.context() as patch:
        cores = Cores([*speeds, *[3.0] * empty], len(speeds), patch)
        best = 400 * len(speeds) / sum(speeds)
        for _ in range(5):
            assert cores.unroll(400) <= 1.06 * best + 1


def test_where_cores_are_even_no_worker_is_moved(monkeypatch):
    cores = Cores([3.0] * 6, 6, monkeypatch)
    for _ in range(5):
        cores.unroll(100)
    assert cores.moves == 0


def test_where_steps_are_short_no_worker_is_moved_for_noise(monkeypatch):
    cores, random = Cores([300.0] * 6, 6, monkeypatch), Random(0)
    for _ in range(50):
        cores.length = min(cores.done.values()) + 2000
        while min(cores.done.values()) < cores.length:
            cores.speeds = [300.0 + random.uniform(-15, 15) for _ in cores.speeds]
            cores.look()
    assert cores.moves == 0


def test_where_steps_are_short_a_slow_core_is_shared_still(monkeypatch):
    cores = Cores([300.0, 300.0, 100.0, 300.0], 4, monkeypatch)
    assert cores.unroll(30_000) <= 1.06 * 30_000 / 250 + 1


def test_a_core_that_becomes_slow_is_shared_by_all(monkeypatch):
    cores = Cores([3.0] * 4, 4, monkeypatch)
    cores.unroll(300)
    cores.speeds[2] = 1.0
    assert cores.unroll(300) <= 1.06 * 300 / 2.5 + 1


def test_who_waits_for_something_else_is_not_moved(monkeypatch):
    cores = Cores([3.0, 3.0], 2, monkeypatch)
    told = {}
    cores.progress = lambda: told

    def look(behind, ahead, waits):
        told.update({1000: StepProgress(behind, waits), 1001: StepProgress(ahead)})
        cores.workers.look()

    look(0, 0, waits=False)
    look(1, 2, waits=False)  # it is the slower one
    for ahead in range(4, 20, 2):
        look(1, ahead, waits=True)
    assert cores.moves == 0
    look(1, 20, waits=False)
    assert cores.moves == 2


def test_a_replaced_worker_begins_again_and_does_not_fall_behind_for_that(monkeypatch):
    cores = Cores([3.0] * 3, 3, monkeypatch)
    cores.unroll(100)
    cores.where[2000], cores.done[2000] = cores.where.pop(1001), cores.done.pop(1001) - 50
    assert cores.unroll(100) <= 55  # it is 50 steps behind, on a core that is as fast as any
    assert cores.moves == 0


def test_no_worker_is_moved_away_from_its_memory(monkeypatch):
    cores = Cores([3.0, 1.0], 2, monkeypatch)
    monkeypatch.setattr(core_balancer, "nodes", lambda _: [[0], [1]])
    apart = CoreBalancer(cores.progress)
    cores.workers = apart
    cores.unroll(50)
    assert cores.moves == 0


@several_cores
def test_a_worker_comes_to_every_core_and_may_use_all_of_them_afterwards(busy):
    deadline, seen = time.monotonic() + 30, set()
    while seen != set(HERE) and time.monotonic() < deadline:
        for core in HERE:
            move(busy.pid, core)
            seen.add(core_of(busy.pid))
    assert seen == set(HERE)
    assert sorted(os.sched_getaffinity(busy.pid)) == HERE


@several_cores
def test_a_worker_that_keeps_to_one_core_is_left_there(busy):
    os.sched_setaffinity(busy.pid, {HERE[0]})
    for core in HERE:
        move(busy.pid, core)
    assert os.sched_getaffinity(busy.pid) == {HERE[0]}


def test_who_has_ended_is_passed_over(busy):
    busy.kill()
    busy.wait()
    move(busy.pid, HERE[0])
    assert core_of(busy.pid) is None


def test_cores_are_kept_with_the_memory_that_is_near_them(tmp_path, monkeypatch):
    monkeypatch.setattr(core_balancer, "NODES", tmp_path)
    assert nodes({3, 1}) == [[1, 3]]
    for node, cpulist in {"node0": "0-1,4\n", "node1": "2-3", "node2": "\n", "node3": "what"}.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(cpulist)
    assert nodes({0, 1, 2, 4, 9}) == [[0, 1, 4], [2], [9]]
    assert nodes({2}) == [[2]]


def test_it_ends_at_once(monkeypatch):
    monkeypatch.setattr(core_balancer, "TURN_S", 600.0)
    workers = CoreBalancer(dict)
    workers.start()
    began = time.monotonic()
    workers.close()
    assert time.monotonic() < began + 60


# Which workers are balanced


@pytest.mark.parametrize("name", ["coarse", "fine", "replicated", "environments", "async", "decoupled", "inline"])
def test_only_actors_that_synchronise_after_each_unroll_are_balanced(name):
    algorithm = "impala" if name in ("async", "decoupled") else "ppo"
    built = build(algorithm, "CartPole-v1", load(name)(), 8, machine=Machine(8, ("cpu:0",)))
    assert barrier_workers(built.plan, built.graph) == (["actor-0", "actor-1"] if name == "coarse" else [])


@dataclasses.dataclass(frozen=True)
class Mine(Distribution):
    """Like `coarse`, under other names."""

    every: str = "unroll"

    def layout(self, graph):
        return Layout(
            (Fragment("hand", ("environment", "act", "rollout"), replicas=3), Fragment("head", (REST,))),
            Barrier(self.every),  # type: ignore[arg-type]
        )


def test_a_distribution_of_ones_own_has_it_too():
    built = build("ppo", "CartPole-v1", Mine(), 6, machine=Machine(8, ("cpu:0",)))
    assert barrier_workers(built.plan, built.graph) == ["hand-0", "hand-1", "hand-2"]


@pytest.mark.parametrize("cpus", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_looks_after_its_actors_where_there_is_a_core_for_each(tmp_path, monkeypatch, cpus):
    seen: dict[int, int] = {}

    class Watched(CoreBalancer):
        def look(self):
            seen.update({pid: worker.steps for pid, worker in self._progress().items()})
            super().look()

    monkeypatch.setattr("runnel.launch.host.CoreBalancer", Watched)
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: Machine(cpus, ("cpu:0",))))
    run = train("ppo", "CartPole-v1", "coarse", envs=8, steps=8_000, run_dir=tmp_path / "run", quiet=True)
    assert run.result["status"] == "finished"
    if cpus == 2:
        assert len(seen) == 2
        assert all(0 < steps <= run.result["env_steps"] // 8 for steps in seen.values())  # of each environment
    else:
        assert not seen
    assert "runnel-core-balancer" not in [thread.name for thread in threading.enumerate()]
