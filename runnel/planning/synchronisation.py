"""How the ends of a cut edge wait for each other: `Barrier` and `BoundedStaleness`.

`slacks.py` adds slacks up to each group's staleness bound, and `pace.py` says in which order unrolls are taken. Waiting
itself is in `runtime/workers/unroll_gate.py`, for actors, and `runtime/workers/batch_collector.py`, for learners.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, Literal

from runnel.errors import UserError


class Synchronisation(abc.ABC):
    """How the ends of a cut edge wait for each other. Others read these properties and do not ask for the class."""

    @property
    @abc.abstractmethod
    def slack(self) -> int:
        """By how many updates the source may run ahead of the target. 0: both wait for each other."""

    @property
    def asynchronous(self) -> bool:
        """Whether the source may run ahead at all, as far as the algorithm tolerates it."""
        return True

    @property
    def every_step(self) -> bool:
        """Whether environments and what acts for them wait for each other at every step."""
        return False

    @abc.abstractmethod
    def __str__(self) -> str:
        """What errors and plans call it."""


@dataclass(frozen=True)
class Barrier(Synchronisation):
    """Both ends wait for each other, every step or every unroll."""

    every: Literal["step", "unroll"] = "unroll"

    def __post_init__(self) -> None:
        if self.every not in ("step", "unroll"):
            raise UserError(f"found Barrier(every={self.every!r}), expected 'step' or 'unroll'")

    @property
    def slack(self) -> int:
        return 0

    @property
    def asynchronous(self) -> bool:
        return False

    @property
    def every_step(self) -> bool:
        return self.every == "step"

    def __str__(self) -> str:
        return f"barrier every {self.every}"


@dataclass(frozen=True)
class BoundedStaleness(Synchronisation):
    """The source runs ahead of the target, by at most `max_staleness` updates."""

    max_staleness: int

    def __post_init__(self) -> None:
        if not is_whole(self.max_staleness, 0):
            raise UserError(
                f"found BoundedStaleness({self.max_staleness!r}), expected a whole number of updates, 0 or more"
            )

    @property
    def slack(self) -> int:
        return self.max_staleness

    def __str__(self) -> str:
        return f"asynchronous, staleness at most {self.max_staleness}"


def is_whole(value: Any, least: int) -> bool:
    """Whether a value is a whole number, `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
