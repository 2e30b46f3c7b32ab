"""Collects unrolls or gradients of many workers: one of each in order, or the oldest that have arrived. NumPy only."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runnel.runtime.workers.ports import InPort, WorkerContext
from runnel.transport.stream import Message


class Collected(NamedTuple):
    """The messages of one source: one of each of its streams."""

    source: int
    iteration: int  # of the parameters that it began with
    messages: list[Message]


class BatchCollector:
    """Collects from sources, each with one or more streams, whose messages belong together.

    With `in_order`, one message of every source is taken in every iteration. Without, the oldest that have arrived
    are taken, `take` at a time; and the collector waits for a message that would become older than `limit_iterations`,
    early enough to take all that are due. Sources have room for no more than can be taken within the limit:
    this bounds staleness, however unequal the sources are.
    """

    def __init__(
        self, context: WorkerContext, sources: Sequence[Sequence[InPort]], take: int, limit_iterations: int, cause: str,
        in_order: bool = False,
    ):  # fmt: skip
        self.context, self.sources, self.take, self.cause = context, sources, take, cause
        self.limit_iterations, self.in_order = limit_iterations, in_order
        self._waiting: deque[Collected] = deque()

    def collect(self, iteration: int) -> list[Collected]:
        """The messages of an iteration; waits for them."""
        if self.in_order:
            return [self._receive(k) for k in range(len(self.sources))]
        found = self._enough(iteration)
        if found is None:
            found = self.context.wait(lambda: self._enough(iteration), self.cause)
        return found

    def ready(self, iteration: int) -> bool:
        """Whether `collect` would not wait."""
        if self.in_order:
            return all(port.peek() for ports in self.sources for port in ports)
        return self._enough(iteration, taking=False) is not None

    def may_skip(self, iteration: int) -> bool:
        """Whether an iteration may go by in which nothing is taken: all that is due can be taken in later ones."""
        begun = self._look()
        rest = sorted([taken.iteration for taken in self._waiting] + begun)
        oldest = self.limit_iterations
        return all(iteration + 1 + k // self.take - made_with <= oldest for k, made_with in enumerate(rest))

    def release(self, taken: Iterable[Collected]) -> None:
        for each in taken:
            for port, message in zip(self.sources[each.source], each.messages, strict=True):
                port.release(message)

    def give_back(self, taken: Iterable[Collected]) -> None:
        """Messages that were collected and not read wait again. Those that are taken in order cannot."""
        assert not self.in_order
        self._waiting.extend(taken)

    def drain(self) -> bool:
        """Discards what has arrived; returns whether anything had."""
        found = [bool(self._waiting)]
        self.release(self._waiting)
        self._waiting.clear()
        found += [port.drain() for ports in self.sources for port in ports]
        return any(found)

    def _receive(self, k: int) -> Collected:
        messages = [port.receive() for port in self.sources[k]]
        return Collected(k, messages[0].iteration, messages)

    def _enough(self, iteration: int, taking: bool = True) -> list[Collected] | None:
        """The oldest that have arrived, if all others can still be taken in time; None where more must arrive first."""
        begun = self._look()
        if len(self._waiting) < self.take:
            return None
        oldest = sorted(self._waiting, key=lambda taken: (taken.iteration, taken.source))
        rest = sorted([taken.iteration for taken in oldest[self.take :]] + begun)
        # Those that are left are taken in later iterations, the oldest first, `take` at a time.
        for k, begun_with in enumerate(rest):
            if begun and iteration + 1 + k // self.take - begun_with > self.limit_iterations:
                return None
        if not taking:
            return []
        self._waiting = deque(oldest[self.take :])
        return sorted(oldest[: self.take], key=lambda taken: (taken.source, taken.iteration))

    def _look(self) -> list[int]:
        """Takes in what has arrived; returns the iterations of unrolls that have begun and not arrived."""
        while True:
            begun = [ports[0].reader.begun() for ports in self.sources]
            came = [k for k, ports in enumerate(self.sources) if all(port.peek() for port in ports)]
            if not came:  # asked after `begun`: so nothing was on its way in between
                return [begun_with for begun_with in begun if begun_with is not None]
            self._waiting.extend(self._receive(k) for k in came)
