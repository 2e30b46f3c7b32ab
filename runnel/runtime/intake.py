"""Taking unrolls or gradients from many workers: all of them in order, or the oldest that have come. NumPy only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runnel.runtime.ports import In, Station
from runnel.transport.stream import Message


class Taken(NamedTuple):
    """What one source gave: a message of each of its streams."""

    source: int
    version: int  # the iteration whose parameters it was begun with
    messages: list[Message]


class Intake:
    """Sources with one or more streams each, which give their messages together.

    Without a limit, every source gives once in every iteration, in order. With a limit, whoever has something gives,
    the oldest first, `take` at a time; and what would become older than `limit` iterations is waited for. A source
    has room for `limit` more at most, so that never more than `take` of them are due at once: this is what bounds
    staleness, however unequal the sources are.
    """

    def __init__(self, station: Station, sources: Sequence[Sequence[In]], take: int, limit: int | None, cause: str):
        self.station, self.sources, self.take, self.limit, self.cause = station, sources, take, limit, cause
        self._waiting: deque[Taken] = deque()

    def collect(self, iteration: int) -> list[Taken]:
        """What the iteration is to be made of."""
        if self.limit is None:
            return [self._receive(k) for k in range(len(self.sources))]
        found = self._enough(iteration)
        if found is None:
            found = self.station.wait(lambda: self._enough(iteration), self.cause)
        return found

    def ready(self, iteration: int) -> bool:
        """Whether `collect` would not wait."""
        if self.limit is None:
            return all(port.peek() for ports in self.sources for port in ports)
        return self._enough(iteration, taking=False) is not None

    def release(self, taken: Iterable[Taken]) -> None:
        for each in taken:
            for port, message in zip(self.sources[each.source], each.messages, strict=True):
                port.release(message)

    def drain(self) -> None:
        """Throws away what has come."""
        self.release(self._waiting)
        self._waiting.clear()
        for ports in self.sources:
            for port in ports:
                port.drain()

    def _receive(self, k: int) -> Taken:
        messages = [port.receive() for port in self.sources[k]]
        return Taken(k, messages[0].version, messages)

    def _enough(self, iteration: int, taking: bool = True) -> list[Taken] | None:
        assert self.limit is not None
        begun = [ports[0].reader.begun() for ports in self.sources]  # before looking for messages: none is missed
        for k, ports in enumerate(self.sources):
            while all(port.peek() for port in ports):
                self._waiting.append(self._receive(k))
        arrived = [len([w for w in self._waiting if w.source == k]) for k in range(len(self.sources))]
        # What is begun and not taken now will be at least one iteration older.
        due = [k for k, version in enumerate(begun) if version is not None and iteration + 1 - version > self.limit]
        if any(not arrived[k] for k in due) or len(self._waiting) < self.take:
            return None
        if not taking:
            return []
        oldest = sorted(self._waiting, key=lambda taken: (taken.version, taken.source))[: self.take]
        self._waiting = deque(taken for taken in self._waiting if taken not in oldest)
        return sorted(oldest, key=lambda taken: (taken.source, taken.version))
