"""Snapshots of a learner's states, which it does not wait for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import State

from runnel.recording.parameters import as_numpy
from runnel.runtime.programs import snapshots
from runnel.runtime.programs.snapshots import BEGINNING, MOST_WAITING, SnapshotSchedule
from runnel.runtime.workers.snapshot_sender import SnapshotSender


class Line:
    """To a launcher that keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[Any, Any]] = []

    def send_arrays(self, header: Any, arrays: Any) -> None:
        self.received.append((header, arrays))

    def send(self, message: Any) -> None:
        self.received.append((message.to_json(), {}))


class Held(Line):
    """One that sends nothing until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.sending, self.go_on = threading.Event(), threading.Event()

    def send_arrays(self, header: Any, arrays: Any) -> None:
        self.sending.set()
        assert self.go_on.wait(60)
        super().send_arrays(header, arrays)


def sender(line: Line, schedule: SnapshotSchedule) -> SnapshotSender:
    node = SimpleNamespace(group="agent", traits=SimpleNamespace(learns=True))
    context = SimpleNamespace(line=line, send=line.send, bell=SimpleNamespace(beat=lambda: None))
    assignment: Any = SimpleNamespace(training_nodes=[node], spmd=None, context=context)
    return SnapshotSender(assignment, schedule, env_steps=0)


def carry(value: float) -> Any:
    return SimpleNamespace(states={"agent": State({"w": jnp.full(5, value)}, ())}, updates={"agent": jnp.int32(value)})


def test_a_learner_goes_on_while_a_snapshot_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetching, go_on, line = threading.Event(), threading.Event(), Line()

    def slow(leaf: jax.Array) -> np.ndarray:
        fetching.set()
        assert go_on.wait(60)
        return as_numpy(leaf)

    monkeypatch.setattr(snapshots, "as_numpy", slow)
    taken = sender(line, SnapshotSchedule((10,)))
    first = carry(1.0)
    taken.boundary(first, 10)
    assert fetching.wait(60)
    first.states["agent"].params["w"].delete()  # as an update does that is given the state's memory
    taken.boundary(carry(2.0), 20)
    assert line.received == []
    go_on.set()
    taken.flush()
    for (header, arrays), value in zip(line.received, (1, 2), strict=True):
        assert (header["env_steps"], header["version"]) == (10 * value, value)
        np.testing.assert_array_equal(arrays["params/w"], np.full(5, value))


def test_snapshots_are_sent_when_they_are_due_or_asked_for() -> None:
    line = Line()
    taken = sender(line, SnapshotSchedule((10,)))
    for env_steps, asked in ((0, False), (4, False), (8, True), (12, False), (16, False), (20, True)):
        taken.boundary(carry(env_steps), env_steps, asked)
    taken.flush()
    assert [(header["env_steps"], header["mark"]) for header, _ in line.received] == [
        (0, 0), (8, -1), (12, 10), (20, 20), (20, -1)
    ]  # fmt: skip


def test_few_copies_wait_however_slowly_they_are_sent() -> None:
    """The oldest that only an evaluation is due for is left out; never that of step 0, nor one that is to be kept."""
    line = Held()
    taken = sender(line, SnapshotSchedule((10, 40), optional=(10,)))
    taken._before = BEGINNING
    for env_steps in (0, 10, 20, 30, 40, 50, 60):
        taken.boundary(carry(env_steps), env_steps)
        assert line.sending.wait(60)
        assert len(taken._copies._waiting) <= MOST_WAITING
    assert [header["mark"] for header, _ in line.received] == [10, 20, 30, 50]  # reported at once
    assert all("group" not in header for header, _ in line.received)
    line.received.clear()
    line.go_on.set()
    taken.flush()
    assert [(header["mark"], header["version"]) for header, _ in line.received] == [(0, 0), (40, 40), (60, 60)]


def test_a_learner_waits_where_all_that_wait_are_needed() -> None:
    line = Held()
    taken = sender(line, SnapshotSchedule((10,)))
    for env_steps in (10, 20, 30):
        taken.boundary(carry(env_steps), env_steps)
        assert line.sending.wait(60)
    learner = threading.Thread(target=taken.boundary, args=(carry(40), 40))
    learner.start()
    learner.join(0.2)
    assert learner.is_alive()
    line.go_on.set()
    learner.join(60)
    taken.flush()
    assert [header["mark"] for header, _ in line.received] == [10, 20, 30, 40]


def test_what_cannot_be_sent_ends_the_learner() -> None:
    class Broken(Line):
        def send_arrays(self, header: Any, arrays: Any) -> None:
            raise ValueError("no such message")

    taken = sender(Broken(), SnapshotSchedule((10,)))
    taken.boundary(carry(10), 10)
    with pytest.raises(ValueError, match="no such message"):
        taken.flush()


def test_a_driver_that_does_not_read_for_a_while_receives_every_snapshot() -> None:
    class Stopped(Line):
        attempts = 0

        def send_arrays(self, header: Any, arrays: Any) -> None:
            self.attempts += 1
            if self.attempts <= 2:
                raise TimeoutError
            super().send_arrays(header, arrays)

    line = Stopped()
    taken = sender(line, SnapshotSchedule((10,)))
    taken.boundary(carry(10), 10)
    taken.flush()
    assert line.attempts == 3
    assert len(line.received) == 1
