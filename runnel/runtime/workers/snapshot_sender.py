"""Snapshots of the states that a learner holds: copied on the device, fetched while it goes on, and sent when ready."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from runnel.recording.parameters import as_numpy, parameter_leaves
from runnel.runtime.control_messages import SnapshotTaken
from runnel.runtime.programs.carry import Carry
from runnel.runtime.programs.snapshots import ASKED, BEGINNING, SnapshotSchedule
from runnel.runtime.workers.assembly import Assignment
from runnel.types import Array


class _Pending(NamedTuple):
    header: SnapshotTaken
    leaves: dict[str, Array]  # by name; copies, on their way to the host


class SnapshotSender:
    """Takes snapshots at a learner's boundaries. Learning waits only for the copy on the device."""

    def __init__(self, a: Assignment, schedule: SnapshotSchedule, env_steps: int):
        # Learners of one SPMD program all have the same state: the first sends it.
        learnt = dict.fromkeys(node.group for node in a.training_nodes if node.traits.learns)
        self._groups = list(learnt) if a.spmd is None or not a.spec.replica else []
        self._line, self.schedule = a.context.line, schedule
        self._before = env_steps or BEGINNING
        self._pending: list[_Pending] = []
        self._copy = jax.jit(lambda leaves: jax.tree.map(jnp.copy, leaves))

    def boundary(self, carry: Carry, env_steps: int, wanted: bool = False) -> None:
        """Between two iterations: takes a snapshot of each group if one is due or wanted, and sends those ready."""
        mark = self.schedule.mark(self._before, env_steps)
        self._before = env_steps
        for due in [*([mark] if mark is not None else []), *([ASKED] if wanted else [])]:
            for group in self._groups:
                leaves = self._copy(parameter_leaves(carry.states[group]))
                for leaf in leaves.values():
                    _fetch(leaf)
                header = SnapshotTaken(group, due, env_steps, int(carry.updates[group]))
                self._pending.append(_Pending(header, leaves))
        while self._pending and all(leaf.is_ready() for leaf in self._pending[0].leaves.values()):
            self._send(self._pending.pop(0))

    def flush(self) -> None:
        """Sends what is left: the launcher waits."""
        while self._pending:
            self._send(self._pending.pop(0))

    def _send(self, pending: _Pending) -> None:
        arrays = {name: as_numpy(leaf) for name, leaf in pending.leaves.items()}
        self._line.send_arrays(pending.header.to_json(), arrays)


def _fetch(leaf: Any) -> None:
    """Begins to copy an array to the host."""
    if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf.copy_to_host_async()
