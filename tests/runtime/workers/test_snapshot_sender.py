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
from runnel.runtime.programs.snapshots import SnapshotSchedule
from runnel.runtime.workers import snapshot_sender
from runnel.runtime.workers.snapshot_sender import SnapshotSender


class Line:
    """To a launcher that keeps what it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[Any, Any]] = []

    def send_arrays(self, header: Any, arrays: Any) -> None:
        self.received.append((header, arrays))


def sender(line: Line, schedule: SnapshotSchedule) -> SnapshotSender:
    node = SimpleNamespace(group="agent", traits=SimpleNamespace(learns=True))
    context = SimpleNamespace(line=line)
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

    monkeypatch.setattr(snapshot_sender, "as_numpy", slow)
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
