"""Streams, bells and parameters between threads of one process."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from runnel.transport import bell, memory
from runnel.transport.parameter_store import Parameters, checked, kept
from runnel.transport.ring import Ring, SlotLayout
from runnel.transport.stream import Schema


def create(schema: Schema, slots: int) -> Ring:
    """A ring in memory of this process."""
    layout = SlotLayout(schema, slots)
    return Ring(memory.zeros(layout.size), layout, new=True)


class InProcessBell(bell.Bell):
    """A lock that a sleeping owner tries to acquire, and that a ring releases; a superfluous ring costs one check.

    Threads of one interpreter take turns, so spinning would only delay the other thread.
    """

    def __init__(self, spin_s: float = 0.0) -> None:
        self.spin_s = spin_s
        self._sleeping = False
        self._beats = self._steps = 0
        self._lock = allocate_lock()
        self._lock.acquire()

    def ring(self) -> None:
        if self._sleeping:
            with suppress(RuntimeError):  # another ring was first
                self._lock.release()

    def beat(self) -> None:
        self._beats += 1

    def beats(self) -> int:
        return self._beats

    def beat_at(self, steps: int) -> None:
        self._beats += 1
        self._steps = steps

    def steps(self) -> int:
        return self._steps

    def sleeps(self) -> bool:
        return self._sleeping

    def announce(self) -> None:
        self._sleeping = True

    def nap(self, timeout_s: float) -> bool:
        return self._lock.acquire(timeout=timeout_s)

    def awake(self) -> None:
        self._sleeping = False


class InProcessStore:
    """A parameter store in one process: its own writer and reader. Publishing swaps one reference."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._newest: Parameters | None = None
        self._bells: tuple[bell.Bell, ...] = ()

    def writer(self, bells: Sequence[bell.Bell] = ()) -> InProcessStore:
        self._bells = tuple(bells)
        return self

    def reader(self) -> InProcessStore:
        return self

    def publish(self, arrays: Sequence[Any], version: int, iteration: int) -> None:
        self._newest = Parameters(version, iteration, [kept(a) for a in checked(arrays, self.schema)])
        for each in self._bells:
            each.ring()

    def version(self) -> int:
        newest = self._newest
        return -1 if newest is None else newest.version

    def iteration(self) -> int:
        newest = self._newest
        return -1 if newest is None else newest.iteration

    def read(self) -> Parameters:
        if self._newest is None:
            raise ValueError("nothing was published yet: wait until iteration() is 0 or more")
        return self._newest

    def close(self) -> None:
        """There is nothing to release."""
