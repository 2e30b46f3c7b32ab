"""A bell, on which a worker with many streams sleeps until any of them is ready."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from os import sched_yield
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

SPIN_S = 50e-6
"""The seconds for which a wait polls before it sleeps: longer than a wake-up costs, and short enough not to waste a
core."""

NAP_S = 0.02
"""The longest sleep between two checks: a peer killed between its last commit and its ring must not stall a reader."""


class Bell(ABC):
    """One per worker. Peers ring it after producing something that the worker may wait for; only its owner waits on
    it."""

    spin_s: float

    @abstractmethod
    def ring(self) -> None:
        """Wakes the owner if it sleeps. Its next check sees everything stored before the ring."""

    def wait(self, ready: Callable[[], T | None], timeout_s: float) -> T | None:
        """Calls `ready` until it returns something other than None, and returns that; None after `timeout_s`."""
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
                # In this order nothing is missed: what was made before the announcement is found by this check, and a
                # ring after it wakes us.
                self.announce()
                found = ready()
                left = end - monotonic()
                if found is not None or left <= 0:
                    return found
                self.nap(min(left, NAP_S))
                found = ready()  # at once: the peer that rang has waited long enough
                if found is not None:
                    return found
        finally:
            self.awake()

    @abstractmethod
    def beat(self) -> None:
        """Sends a heartbeat: the owner is alive and makes progress. Costs almost nothing."""

    @abstractmethod
    def beats(self) -> int:
        """The number of heartbeats that the owner has sent."""

    @abstractmethod
    def beat_at(self, steps: int) -> None:
        """Sends a heartbeat with the total number of steps that the owner has taken."""

    @abstractmethod
    def steps(self) -> int:
        """The steps that the owner published last."""

    @abstractmethod
    def sleeps(self) -> bool:
        """Whether the owner waits for something and no longer polls for it."""

    @abstractmethod
    def announce(self) -> None:
        """Publishes that the owner is about to sleep: from now on a ring wakes it."""

    @abstractmethod
    def nap(self, timeout_s: float) -> bool:
        """Sleeps until the next ring since the announcement, or for `timeout_s`; returns whether it was rung."""

    @abstractmethod
    def awake(self) -> None:
        """Publishes that the owner no longer sleeps: rings need do nothing."""
