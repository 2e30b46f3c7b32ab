"""Combines the snapshots of a run's learners: one of each group, taken at the same mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runnel.runtime.control_messages import SnapshotTaken
from runnel.runtime.programs.snapshots import ASKED, TakenSnapshot


class SnapshotCollector:
    """Collects snapshots that learners of several groups send separately; those of one mark form a snapshot of the
    run."""

    def __init__(self, groups: Sequence[str]):
        self.groups = set(groups)
        self._parts: dict[int, dict[str, tuple[SnapshotTaken, dict[str, np.ndarray]]]] = {}  # by mark and group
        self._whole: list[TakenSnapshot] = []
        self._newest = ASKED  # mark of a whole snapshot
        self._left_out: set[int] = set()  # newer marks that will never be complete

    def add(self, taken: SnapshotTaken, arrays: Mapping[str, np.ndarray]) -> None:
        if taken.mark in self._left_out:
            return
        parts = self._parts.setdefault(taken.mark, {})
        parts[taken.group] = (taken, dict(arrays))
        if parts.keys() != self.groups:
            return
        del self._parts[taken.mark]
        # A mark that one learner passed over, because a later one was due at once, will never be complete. One that
        # was asked for still will.
        self._parts = {mark: rest for mark, rest in self._parts.items() if mark > taken.mark or mark == ASKED}
        self._newest = max(self._newest, taken.mark)
        self._left_out = {mark for mark in self._left_out if mark > self._newest}
        self._whole.append(
            TakenSnapshot(
                taken.mark,
                min(header.env_steps for header, _ in parts.values()),
                {group: header.version for group, (header, _) in parts.items()},
                {group: own for group, (_, own) in parts.items()},
            )
        )

    def leave_out(self, mark: int) -> bool:
        """A learner left out its part of this mark; those of the others are dropped. Returns whether this is news."""
        if mark <= self._newest or mark in self._left_out:
            return False
        self._left_out.add(mark)
        self._parts.pop(mark, None)
        return True

    def fetch(self) -> list[TakenSnapshot]:
        """The complete snapshots since the last call, oldest first."""
        whole, self._whole = self._whole, []
        return whole

    def clear(self) -> None:
        """Drops incomplete snapshots when all learners return to a checkpoint."""
        self._parts, self._whole, self._newest, self._left_out = {}, [], ASKED, set()
