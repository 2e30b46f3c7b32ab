"""Workers that wait for each other take turns on the cores; nobody is held, and strangers are left alone."""

import dataclasses
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel import train
from runnel.building import build
from runnel.crew import abreast
from runnel.distributions import load
from runnel.launch import carousel
from runnel.launch.carousel import Carousel, Ring, core_of, delay_of, move, nodes
from runnel.machine import Machine
from runnel.plan import REST, Barrier, Distribution, Fragment, Layout

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


@pytest.fixture
def moves(monkeypatch):
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(carousel, "move", lambda pid, core: found.append((pid, core)))
    return found


@given(st.integers(1, 12), st.data())
def test_everybody_is_on_every_core_once_in_a_round_and_finds_it_empty(count, data):
    riders = data.draw(st.lists(st.integers(100, 200), unique=True, max_size=count - 1 or 1))
    ring, where = Ring(range(count)), {}

    def moved(pid, core):
        assert core not in where.values() or (len(riders) == count)
        where[pid] = core
        seen[pid].append(core)

    seen: dict[int, list[int]] = {pid: [] for pid in riders}
    for pid in riders:
        ring.seat(pid)
        where[pid] = ring.places.index(pid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carousel, "move", moved)
        for _ in range(count):
            ring.turn()
    assert all(sorted(cores) == list(range(count)) for cores in seen.values())


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
    assert delay_of(busy.pid) == 0.0


def test_who_comes_is_seated_who_goes_leaves_room_and_too_many_do_not_ride(moves, monkeypatch):
    monkeypatch.setattr(carousel, "nodes", lambda cores: [[0, 1], [2]])
    monkeypatch.setattr(carousel, "core_of", {1: 2, 2: 2, 3: 0, 4: 0}.get)
    riders = [1, 2, 3, 4]
    ride = Carousel(lambda: riders)
    ride.turn()
    assert sorted(moves) == [(1, 2), (2, 1), (3, 0)]  # 1 where it was; 2 would have been, had there been room
    riders.remove(2)
    moves.clear()
    ride.turn()
    assert {pid for pid, _ in moves} == {1, 3, 4}
    assert {core for pid, core in moves if pid != 1} == {0, 1}


def test_cores_are_kept_with_the_memory_that_is_near_them(tmp_path, monkeypatch):
    monkeypatch.setattr(carousel, "NODES", tmp_path)
    assert nodes({3, 1}) == [[1, 3]]
    for node, cpulist in {"node0": "0-1,4\n", "node1": "2-3", "node2": "\n", "node3": "what"}.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(cpulist)
    assert nodes({0, 1, 2, 4, 9}) == [[0, 1, 4], [2], [9]]
    assert nodes({2}) == [[2]]


@pytest.mark.parametrize("delayed", [True, False])
def test_that_workers_wait_for_a_core_is_noticed(moves, monkeypatch, delayed):
    monkeypatch.setattr(carousel, "delay_of", lambda pid: 0.5 * time.monotonic() if delayed else 0.0)
    monkeypatch.setattr(carousel, "TURN_S", 0.001)
    ride = Carousel(lambda: [os.getpid()])
    assert ride.crowded_after(0.05) == delayed
    assert moves


def test_they_are_left_alone_for_longer_each_time(monkeypatch):
    monkeypatch.setattr(carousel, "LOOK_S", 0.01)
    monkeypatch.setattr(carousel, "REST_S", 0.04)
    looked, enough = [], threading.Event()

    def crowded_after(seconds):
        looked.append(time.monotonic())
        if len(looked) == 5:
            enough.set()
        return True

    ride = Carousel(list)
    monkeypatch.setattr(ride, "crowded_after", crowded_after)
    ride.start()
    assert enough.wait(30)
    ride.close()
    rests = [after - before for before, after in pairwise(looked[:5])]
    assert all(rest >= least for rest, least in zip(rests, (0.01, 0.02, 0.04, 0.04), strict=True))


def test_it_ends_at_once(monkeypatch):
    monkeypatch.setattr(carousel, "TURN_S", 600.0)
    ride = Carousel(list)
    ride.start()
    began = time.monotonic()
    ride.close()
    assert time.monotonic() < began + 60


# Who rides


@pytest.mark.parametrize("name", ["coarse", "fine", "replicated", "environments", "async", "decoupled", "inline"])
def test_only_workers_that_play_unrolls_and_wait_for_each_other_take_turns(name):
    algorithm = "impala" if name in ("async", "decoupled") else "ppo"
    built = build(algorithm, "CartPole-v1", load(name)(), 8, machine=Machine(8, ("cpu:0",)))
    assert abreast(built.plan, built.graph) == (["actor-0", "actor-1"] if name == "coarse" else [])


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
    assert abreast(built.plan, built.graph) == ["hand-0", "hand-1", "hand-2"]


@pytest.mark.parametrize("cpus", [3, 2])
def test_a_run_moves_its_actors_where_there_is_a_core_for_everybody(tmp_path, monkeypatch, cpus):
    moved = set()
    really = carousel.move
    monkeypatch.setattr(carousel, "move", lambda pid, core: (moved.add(pid), really(pid, core)))
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: Machine(cpus, ("cpu:0",))))
    run = train("ppo", "CartPole-v1", "coarse", envs=8, steps=4_000, run_dir=tmp_path / "run", quiet=True)
    assert run.result["status"] == "finished"
    assert len(moved) == (2 if cpus == 3 else 0)
    assert "runnel-carousel" not in [thread.name for thread in threading.enumerate()]
