"""A bell: how a worker with many streams sleeps until any of them has something for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from os import sched_yield
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

SPIN_S = 50e-6
"""How long a wait looks again and again before it sleeps: longer than a wake-up costs, shorter than anyone minds."""

NAP_S = 0.02
"""The longest sleep without looking: a peer killed between its last commit and its ring must not stall anyone."""


class Bell(ABC):
    """One per worker, rung by anybody who made something this worker may wait for. Only its owner waits on it."""

    spin_s: float

    @abstractmethod
    def ring(self) -> None:
        """Wakes the owner if it sleeps. What was stored before is seen by the check that follows."""

    def wait(self, ready: Callable[[], T | None], timeout_s: float) -> T | None:
        """Calls `ready` until it gives something other than None, and gives that; None once `timeout_s` has passed."""
        found = ready()
        if found is not None or timeout_s <= 0:
            return found
        now = monotonic()
        end = now + timeout_s
        spin_end = min(end, now + self.spin_s)
        while monotonic() < spin_end:
            sched_yield()  # where workers outnumber cores, the one waited for may need this one
            found = ready()
            if found is not None:
                return found
        try:
            while True:
                # In this order nothing is missed: who rings before the announcement made it before this check, and
                # who rings after it wakes us.
                self._announce()
                found = ready()
                left = end - monotonic()
                if found is not None or left <= 0:
                    return found
                self._nap(min(left, NAP_S))
                found = ready()  # at once: whoever rang has waited long enough
                if found is not None:
                    return found
        finally:
            self._awake()

    @abstractmethod
    def beat(self) -> None:
        """Tells whoever watches that the owner is alive and goes on. Costs next to nothing."""

    @abstractmethod
    def beats(self) -> int:
        """How often the owner said so."""

    @abstractmethod
    def beat_at(self, steps: int) -> None:
        """Beats, and tells how many steps the owner has taken in all."""

    @abstractmethod
    def steps(self) -> int:
        """How many those were when it told last."""

    @abstractmethod
    def sleeps(self) -> bool:
        """Whether the owner waits for something, and has given up looking for it."""

    @abstractmethod
    def _announce(self) -> None:
        """Says that the owner is about to sleep: from now on a ring wakes it."""

    @abstractmethod
    def _nap(self, timeout_s: float) -> None:
        """Sleeps until a ring that came after the announcement, or for `timeout_s`."""

    @abstractmethod
    def _awake(self) -> None:
        """Says that the owner no longer sleeps: rings need do nothing."""
