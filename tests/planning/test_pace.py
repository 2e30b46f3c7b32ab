"""Unrolls that are taken in order are never further behind than their learner allows, and nobody waits for ever."""

from typing import Any

import numpy as np
import pytest
from aging import Ages, Between
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.distributions.central import Central
from runnel.execution.building import build
from runnel.planning.pace import Pace, paces
from runnel.planning.slacks import updates_per_iteration
from runnel.runtime.programs.versions import Acted, Staleness, in_time, together
from runnel.runtime.workers.batch_collector import BatchCollector
from runnel.runtime.workers.ports import InPort, OutPort, WorkerContext
from runnel.runtime.workers.stream_headers import UnrollHeader, ValueHeader
from runnel.transport import in_process
from runnel.transport.stream import Field


class Store:
    """What a learner has published."""

    def __init__(self):
        self.newest = -1

    def iteration(self):
        return self.newest


class Edge:
    """A stream from one worker to another of replicas in rotation."""

    def __init__(self, context, slots):
        bell = in_process.InProcessBell()
        ring = in_process.create((Field((1,), "<i8"),), slots)
        self.out = OutPort(context, ring.writer(bell, bell), "value")
        self.port = InPort(context, ring.reader(bell, bell), "value")


class Actor:
    """One block: begins an unroll when it may, and takes a few ticks for it."""

    def __init__(self, outs, store, lead, draw):
        self.outs, self.store, self.lead, self.draw = outs, store, lead, draw
        self.unroll, self.left, self.begun_with = 0, 0, None

    def tick(self):
        out = self.outs[self.unroll % len(self.outs)]
        if self.begun_with is None:
            if out.free() and in_time({"": self.store}, self.unroll, {"": self.lead}):
                self.begun_with, self.left = self.store.iteration(), self.draw()
                out.claim(self.begun_with)
        elif self.left:
            self.left -= 1
        else:
            out.send(UnrollHeader(self.unroll, self.begun_with), [self.begun_with], self.begun_with)
            self.unroll, self.begun_with = self.unroll + 1, None


class Stage:
    """One replica of a map, or the learner: takes its iterations in order, and passes on the oldest iteration."""

    def __init__(self, iteration, replicas, collect, outs, draw):
        self.iteration, self.replicas, self.collect, self.outs, self.draw = iteration, replicas, collect, outs, draw
        self.value, self.left = None, 0

    def tick(self):
        if self.value is None:
            self.value, self.left = self.collect(self.iteration), self.draw()
        elif self.left:
            self.left -= 1
        elif self.outs is None:
            self.iteration, self.value = self.iteration + self.replicas, None
        elif (out := self.outs[self.iteration % len(self.outs)]).free():
            out.send(ValueHeader(1, 0), [self.value])
            self.iteration, self.value = self.iteration + self.replicas, None


def from_actors(context, ports):
    intake = BatchCollector(context, [[port] for port in ports], len(ports), 0, "unrolls", in_order=True)

    def collect(iteration):
        if not intake.ready(iteration):
            return None
        taken = intake.collect(iteration)
        intake.release(taken)
        return min(each.iteration for each in taken)

    return collect


def from_stage(ports):
    def collect(iteration):
        port = ports[iteration % len(ports)]
        if not port.peek():
            return None
        message = port.receive()
        port.release(message)
        return int(message.arrays[0][0])

    return collect


@given(
    st.integers(1, 6), st.lists(st.sampled_from([0, 1, 5, 30]), min_size=1, max_size=4),
    st.lists(st.integers(1, 3), max_size=3), st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_nothing_is_older_than_the_limit_behind_any_chain(limit, slowness, replicas, seed):
    nobody: Any = None
    rng, context, store = np.random.default_rng(seed), WorkerContext("any", in_process.InProcessBell(), nobody), Store()

    def drawing(slow):
        return lambda: int(rng.integers(0, slow + 1))

    sizes = [*replicas, 1]  # the last is the learner
    unrolls = [[Edge(context, min(limit + 1, 4)) for _ in range(sizes[0])] for _ in slowness]
    actors = [
        Actor([edge.out for edge in own], store, limit, drawing(s)) for own, s in zip(unrolls, slowness, strict=True)
    ]
    collects = [from_actors(context, [own[r].port for own in unrolls]) for r in range(sizes[0])]
    stages = []
    for size, after in zip(sizes, [*sizes[1:], 0], strict=True):
        edges = [[Edge(context, 2) for _ in range(after)] for _ in range(size)]
        stages += [
            Stage(r, size, collects[r], [e.out for e in edges[r]] or None, drawing(5)) for r in range(size)
        ]  # fmt: skip
        collects = [from_stage([own[r].port for own in edges]) for r in range(after)]
    learner, idle, seen = stages[-1], 0, -1
    store.newest = 0
    while learner.iteration < 30:
        for each in rng.permutation(np.asarray([*actors, *stages], object)):
            each.tick()
        if learner.value is not None:
            assert learner.iteration - learner.value <= limit
        store.newest = learner.iteration
        idle, seen = (idle + 1 if seen == learner.iteration else 0), learner.iteration
        assert idle < 2000, "everybody waits"


def planned(algorithm, distribution):
    built = build(algorithm, "CartPole-v1", distribution, 4)
    return built.plan, built.graph


@pytest.mark.parametrize(
    ("algorithm", "layout", "limit", "ahead"),
    [
        (Ages(), Between(), 4, None),  # the learner takes what has come
        (Ages(maps=1), Between(), 4, None),  # and maps it itself
        (Ages(maps=1), Between(mappers=(1,)), 4, 4),
        (Ages(maps=1), Between(mappers=(1,), bound=2), 2, 2),
        (Ages(maps=1), Between(mappers=(1,), sync=True), 0, 0),
        (Ages(bound=0, maps=1), Between(mappers=(1,)), 0, 0),
        (Ages(replayed=1), Between(stores=True), 4, 4),
        (Ages(replayed=3), Between(stores=True), 1, 1),  # four updates would be the second iteration's second
        (Ages(replayed=3, bound=1_000), Between(bound=1_000), 333, None),
        (Ages(learns=2), Between(), 1, None),  # the second update of an iteration is 3 updates late
        (Ages(learns=2, bound=5), Between(bound=5), 2, None),
    ],
)
def test_a_plan_says_how_far_ahead_actors_may_be(algorithm, layout, limit, ahead):
    plan, graph = planned(algorithm, layout)
    assert paces(plan, graph) == {"agent": Pace(limit, in_order=ahead is not None)}


def test_gradients_are_gathered_as_they_come():
    plan, graph = planned("a2c", Central(actors=2))
    assert [pace.in_order for pace in paces(plan, graph).values()] == [False]
    assert updates_per_iteration(graph, "agent") == 1


def test_staleness_is_that_of_every_unroll_and_of_the_oldest():
    staleness = Staleness()
    staleness.add(7, together([Acted.of([5, 7]), Acted.of([4]), Acted()]))
    staleness.add(8, Acted())  # an iteration of nothing
    assert staleness.json() == [2 + 0 + 3, 3, 3]
