"""A learner's next batch is taken while the device is at work, and given back before a pause."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
import pytest
from sources import Source

from runnel.algorithms.impala import IMPALA
from runnel.distributions.asynchronous import Async
from runnel.distributions.decoupled import Decoupled
from runnel.graph.flow import trace
from runnel.runtime.workers.batch_collector import BatchCollector
from runnel.runtime.workers.ports import WorkerContext
from runnel.runtime.workers.prefetch import LOOK_S, Prefetch
from runnel.runtime.workers.trainer import Trainer
from runnel.transport import in_process
from runnel.types import Box, Discrete, EnvSpec

T = TypeVar("T")
UPDATE = 7
"""The iteration that will learn from the next batch."""


class Batch(NamedTuple):
    give_back: Callable[[], None]


class Device(in_process.InProcessBell):
    """A device that computes until a moment, and a worker whose sleeps are the only time that passes."""

    def __init__(self, done_s: float, arrives_s: float | None, pause_s: float = 1.0) -> None:
        super().__init__()
        self.now_s, self.done_s, self.arrives_s, self.pause_s = 0.0, done_s, arrives_s, pause_s
        self.asked: list[int] = []
        self.taken_at: float | None = None
        self.returned = 0
        self.context = WorkerContext("learner", self, self)  # type: ignore[arg-type]
        self.prefetch = Prefetch(self.context, self.ready, self.make, lambda: self.now_s < self.done_s)  # type: ignore[arg-type]

    def ready(self, iteration: int) -> bool:
        self.asked.append(iteration)
        return self.arrives_s is not None and self.now_s >= self.arrives_s

    def make(self) -> Batch:
        self.taken_at = self.now_s

        def give_back() -> None:
            self.returned += 1

        return Batch(give_back)

    def wait(self, ready: Callable[[], T | None], timeout_s: float) -> T | None:
        found = ready()
        if found is None:
            self.now_s += timeout_s
        return found

    # The line to the supervisor

    closed = False

    def send(self, value: Any, *, timeout_s: float) -> None:
        pass

    def receive(self, timeout_s: float = 0) -> Any:
        self.context.pausing = self.now_s >= self.pause_s


def test_a_batch_that_arrives_during_the_update_is_taken_then() -> None:
    device = Device(done_s=0.05, arrives_s=0.02)
    device.prefetch.look(UPDATE)
    assert device.taken_at == pytest.approx(0.02, abs=2 * LOOK_S)
    assert device.prefetch.take() is not None
    assert device.prefetch.take() is None
    assert set(device.asked) == {UPDATE}  # the staleness that decides is that of the update that learns from it


def test_a_batch_that_is_there_at_once_is_taken_at_once() -> None:
    device = Device(done_s=0.05, arrives_s=0.0)
    device.prefetch.look(UPDATE)
    assert device.taken_at == 0.0


def test_what_was_learnt_is_not_held_up_where_no_batch_arrives() -> None:
    device = Device(done_s=0.05, arrives_s=None)
    device.prefetch.look(UPDATE)
    assert device.now_s == pytest.approx(0.05, abs=2 * LOOK_S)
    assert device.prefetch.take() is None


def test_a_pause_ends_the_wait() -> None:
    device = Device(done_s=10.0, arrives_s=None, pause_s=0.03)
    device.prefetch.look(UPDATE)
    assert device.now_s == pytest.approx(0.03, abs=2 * LOOK_S)


def test_a_pause_returns_what_was_prefetched_once() -> None:
    device = Device(done_s=0.05, arrives_s=0.01)
    device.prefetch.look(UPDATE)
    device.prefetch.give_back()
    device.prefetch.give_back()
    assert device.returned == 1
    assert device.prefetch.take() is None


class Leaf:
    def __init__(self, done: bool) -> None:
        self.done = done

    def is_ready(self) -> bool:
        return self.done


@pytest.mark.parametrize("done", [[True, True], [True, False]])
def test_the_device_is_at_work_until_every_part_of_the_state_is_there(done: list[bool]) -> None:
    states = {"agent": [np.float32(1), jnp.ones(2), *map(Leaf, done)]}
    trainer: Any = SimpleNamespace(carry=SimpleNamespace(states=states))
    assert Trainer.at_work(trainer) == (not all(done))


def test_messages_that_are_given_back_are_collected_again_or_drained() -> None:
    context = WorkerContext("learner", in_process.InProcessBell(), None)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    made = [Source(context, 2, rng, 1) for _ in range(2)]
    intake = BatchCollector(context, [[source.port] for source in made], len(made), 4, "unrolls")
    while not intake.ready(0):
        for source in made:
            source.tick(0)
    taken = intake.collect(0)
    intake.give_back(taken)
    assert intake.ready(0)
    again = intake.collect(0)
    assert [each.messages for each in again] == [each.messages for each in taken]
    intake.give_back(again)
    assert intake.drain()
    assert all(source.port.reader.pending() == 0 for source in made)


@pytest.mark.parametrize("distribution", [Async, Decoupled])
def test_a_distribution_switches_it_off(distribution: Any) -> None:
    graph = trace(IMPALA(unroll=4, hidden=(8,)), EnvSpec.single("toy", Box((3,)), Discrete(5)), 8)
    assert distribution().layout(graph).fragments[-1].prefetch
    assert not distribution(prefetch=False).layout(graph).fragments[-1].prefetch
