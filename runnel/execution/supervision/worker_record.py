"""The driver's record of one worker process.

A process has one record. When the process is replaced, and when all workers return to a checkpoint, the worker gets a
new record: nothing that was reported before is taken for the new process's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from runnel.execution.supervision.fault_policy import Fault
from runnel.planning.channels import WorkerSpec
from runnel.runtime.control_messages import PhaseName, Status

MOST_NAMED = 8
"""How many workers are named one by one; of the others, their number."""


def named(workers: Sequence[str]) -> str:
    """`actor-0, actor-1`; of many, the first and the number of the others."""
    more = len(workers) - MOST_NAMED
    return ", ".join([*workers[:MOST_NAMED], *([f"{more} more"] if more > 0 else [])])


WorkerState = Literal["running", "pausing", "paused", "saving", "saved", "ready"]
"""A worker's place in the control protocol (`runtime/control_messages.py`).

| state | since |
|---|---|
| running | the process was started, or `Go` was sent |
| pausing | `Pause` was sent |
| paused | `Paused` was reported |
| saving | `Save` was sent |
| saved | `Saved` arrived with the worker's part of a checkpoint |
| ready | `ReadyToLoad` was reported, after `Reset` |
"""


class Heartbeat(NamedTuple):
    """The last change of a worker's count of heartbeats."""

    beats: int
    at: float


class ReportedWait(NamedTuple):
    """A worker's last report that it waits for another."""

    at: float
    seconds: float
    """How long it had waited then."""
    cause: str


class Replacement(NamedTuple):
    """Why a worker starts again; reported when it works."""

    since: float
    fault: Fault


@dataclass
class WorkerRecord:
    """One worker process, as far as the driver knows it."""

    spec: WorkerSpec
    state: WorkerState = "running"
    phase: PhaseName = "starting"
    status: Status | None = None
    pause_at: int = 0
    """The iteration that a learner must reach before its pause counts."""
    paused_at: int | None = None
    """The iteration at which a learner paused last."""
    saved: dict[str, np.ndarray] = field(default_factory=dict)
    """Its part of the checkpoint in progress."""
    heartbeat: Heartbeat | None = None
    wait: ReportedWait | None = None
    replacement: Replacement | None = None

    @property
    def paused(self) -> bool:
        return self.state in ("paused", "saving", "saved")

    @property
    def asked_to_pause(self) -> bool:
        """Only for workers that are not learners: those also pause unasked, where training ends."""
        return self.state == "pausing" or self.paused

    def note_pause(self, iteration: int | None) -> None:
        """The worker reported `Paused`; `iteration` is that of a learner."""
        self.paused_at = iteration
        early = iteration is not None and iteration < self.pause_at  # sent before it received the later `pause_at`
        if not early and not self.paused:
            self.state = "paused"
