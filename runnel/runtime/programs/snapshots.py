"""When a run's parameters are kept, and the copies that are taken of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from runnel.recording.parameters import as_numpy, parameter_leaves
from runnel.types import PyTree

BEGINNING: Final = -1
"""Environment steps before a run has begun: it is at step 0 afterwards, which is a mark of every schedule."""


@dataclass(frozen=True)
class SnapshotSchedule:
    """Snapshots are due at every multiple of some numbers of environment steps, 0 included."""

    periods: tuple[int, ...] = ()

    def mark(self, before: int, now: int) -> int | None:
        """The newest multiple among the steps after `before`, up to `now`; None where there is none."""
        marks = [now // period * period for period in self.periods]
        return max((mark for mark in marks if mark > before), default=None)

    def next_mark(self, now: int) -> int | None:
        """The first multiple after `now`."""
        return min(((now // period + 1) * period for period in self.periods), default=None)


ASKED: Final = -1
"""The mark of a snapshot that was asked for, and not due."""

NO_SNAPSHOTS: Final = SnapshotSchedule()


@dataclass(frozen=True)
class TakenSnapshot:
    """All groups' parameters at one moment of training."""

    mark: int  # the multiple that was due, or ASKED
    env_steps: int
    versions: dict[str, int]  # by group
    arrays: dict[str, dict[str, np.ndarray]]  # by group: the parameters by name


def take(states: Mapping[str, PyTree], versions: Mapping[str, int], env_steps: int, mark: int = ASKED) -> TakenSnapshot:
    """Copies the parameters of these states to the host."""
    arrays = {group: {n: as_numpy(leaf) for n, leaf in parameter_leaves(s).items()} for group, s in states.items()}
    return TakenSnapshot(mark, env_steps, {group: int(versions[group]) for group in states}, arrays)


@dataclass
class SnapshotTaker:
    """Takes snapshots of a program that has all states in its own process."""

    schedule: SnapshotSchedule
    env_steps: int = BEGINNING  # up to which marks were looked for
    taken: list[TakenSnapshot] = field(default_factory=list)

    def reached(self, env_steps: int, states: Mapping[str, PyTree], versions: Mapping[str, int]) -> bool:
        """Training has come so far; returns whether a snapshot was due, and is taken."""
        mark = self.schedule.mark(self.env_steps, env_steps)
        self.env_steps = env_steps
        if mark is not None:
            self.taken.append(take(states, versions, env_steps, mark))
        return mark is not None

    def ask(self, states: Mapping[str, PyTree], versions: Mapping[str, int]) -> None:
        """Takes one at once."""
        self.taken.append(take(states, versions, max(0, self.env_steps)))

    def fetch(self) -> list[TakenSnapshot]:
        """Those taken since the last call."""
        taken, self.taken = self.taken, []
        return taken
