"""Snapshots of the states that a learner holds: copied on the device, then fetched and sent while it goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from runnel.runtime.control_messages import SnapshotLeftOut, SnapshotTaken
from runnel.runtime.programs.carry import Carry
from runnel.runtime.programs.snapshots import ASKED, BEGINNING, SnapshotCopies, SnapshotSchedule, TakenSnapshot
from runnel.runtime.workers.assembly import Assignment


class SnapshotSender:
    """Takes snapshots at a learner's boundaries. Learning waits for the copy on the device; a thread does the rest."""

    def __init__(self, a: Assignment, schedule: SnapshotSchedule, env_steps: int):
        # Learners of one SPMD program all have the same state: the first sends it.
        learnt = dict.fromkeys(node.group for node in a.training_nodes if node.traits.learns)
        self._groups = list(learnt) if a.spmd is None or not a.spec.replica else []
        self._context, self.schedule = a.context, schedule
        self._before = env_steps or BEGINNING
        self._copies = SnapshotCopies(self._send, self._report_left_out, a.context.bell.beat)

    def boundary(self, carry: Carry, env_steps: int, requested: bool = False) -> None:
        """Between two iterations: takes a snapshot of each group if one is due or requested."""
        before, self._before = self._before, env_steps
        mark = self.schedule.mark(before, env_steps)
        if not self._groups:
            return
        states = {group: carry.states[group] for group in self._groups}
        if mark is not None:
            needed = self.schedule.needed(before, env_steps)
            self._copies.take(mark, env_steps, states, carry.updates, needed)  # type: ignore[arg-type]
        if requested:
            self._copies.take(ASKED, env_steps, states, carry.updates)  # type: ignore[arg-type]

    def flush(self) -> None:
        """Waits until all are sent: the supervisor waits for them."""
        self._copies.flush()

    def _send(self, taken: TakenSnapshot) -> None:
        for group, arrays in taken.arrays.items():
            header = SnapshotTaken(group, taken.mark, taken.env_steps, taken.versions[group]).to_json()
            if not self._sent(header, arrays):
                return

    def _sent(self, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> bool:
        """Sends it, however long the driver does not read; returns whether the driver is still there."""
        while True:
            try:
                self._context.line.send_arrays(header, arrays)
            except TimeoutError:  # nothing of it was sent: while the driver is stopped (Ctrl-Z), so is the worker
                continue
            except BrokenPipeError:  # the worker's own reports notice it
                return False
            return True

    def _report_left_out(self, mark: int) -> None:
        self._context.send(SnapshotLeftOut(mark))
