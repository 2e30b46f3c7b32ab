"""Snapshots of the states that a learner holds: copied on the device, then fetched and sent while it goes on."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import NamedTuple

import jax
import jax.numpy as jnp

from runnel.recording.parameters import as_numpy, parameter_leaves
from runnel.runtime.control_messages import SnapshotTaken
from runnel.runtime.programs.carry import Carry
from runnel.runtime.programs.snapshots import ASKED, BEGINNING, SnapshotSchedule
from runnel.runtime.workers.assembly import Assignment
from runnel.types import Array


class _Copied(NamedTuple):
    header: SnapshotTaken
    leaves: dict[str, Array]  # by name; the learner's own arrays are overwritten by the next update


class SnapshotSender:
    """Takes snapshots at a learner's boundaries. Learning waits for the copy on the device; a thread does the rest."""

    def __init__(self, a: Assignment, schedule: SnapshotSchedule, env_steps: int):
        # Learners of one SPMD program all have the same state: the first sends it.
        learnt = dict.fromkeys(node.group for node in a.training_nodes if node.traits.learns)
        self._groups = list(learnt) if a.spmd is None or not a.spec.replica else []
        self._line, self.schedule = a.context.line, schedule
        self._before = env_steps or BEGINNING
        self._copied: queue.Queue[_Copied] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._copy = jax.jit(lambda leaves: jax.tree.map(jnp.copy, leaves))

    def boundary(self, carry: Carry, env_steps: int, requested: bool = False) -> None:
        """Between two iterations: takes a snapshot of each group if one is due or requested."""
        mark = self.schedule.mark(self._before, env_steps)
        self._before = env_steps
        for due in [*([mark] if mark is not None else []), *([ASKED] if requested else [])]:
            for group in self._groups:
                leaves = self._copy(parameter_leaves(carry.states[group]))
                header = SnapshotTaken(group, due, env_steps, int(carry.updates[group]))
                self._copied.put(_Copied(header, leaves))
                self._begin()

    def flush(self) -> None:
        """Waits until all are sent: the supervisor waits for them."""
        self._copied.join()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="snapshots", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            header, leaves = self._copied.get()
            try:
                # Where the driver is gone, or does not read for half a minute, the worker's own reports notice it.
                with contextlib.suppress(BrokenPipeError, TimeoutError):
                    arrays = {name: as_numpy(leaf) for name, leaf in leaves.items()}
                    self._line.send_arrays(header.to_json(), arrays)
            finally:
                self._copied.task_done()
