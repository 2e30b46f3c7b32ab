"""Learning from unrolls again while nothing newer has arrived: at most `times`, and only while they are not too old.

A learner keeps the newest batch of unrolls. Where the next one has not arrived, it learns from the kept one again, if

- it was learnt from fewer than `times` times;
- it is not older than the limit: each repetition is a version more behind its parameters;
- all other unrolls can still be learnt from in time, including those in progress, though nothing is taken now.

Until a kept batch is released, it holds its slots. Actors are then ahead by less, and the unrolls that they make
meanwhile are in time as well: sources have room for as much as can be taken within the limit, and the kept batch takes
the room of one iteration.

An iteration is made of new unrolls alone: a repetition makes updates, and no environment steps. What unrolls are
stamped with, and what their age is measured by, is the `clock`, which also counts repetitions. It is no part of a
checkpoint; nor is the kept batch, which a pause releases.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from runnel.runtime.workers.batch_collector import BatchCollector
from runnel.runtime.workers.trainer import TrainerBatch


class SampleReuse:
    """The newest batch of a learner, and how often it was learnt from."""

    def __init__(self, collector: BatchCollector, times: int, free: Callable[[], None]):
        """`free`: frees the slots of batches that were released."""
        assert not collector.in_order
        self.collector, self.times, self._free = collector, times, free
        self.limit_iterations = collector.limit_iterations
        self.repetitions = 0  # since this worker started
        self.dropped = 0  # batches that a pause released before they were learnt from `times` times
        self._kept: TrainerBatch | None = None
        self._uses = 0
        self._release = _nothing

    def keep(self, batch: TrainerBatch) -> TrainerBatch:
        """The new batch as it is to be learnt from first."""
        self._release_kept()
        self._kept, self._uses = batch._replace(fresh=np.False_, release=_nothing), 1
        self._release = batch.release
        return self._kept._replace(fresh=np.True_)

    def again(self, clock: int, ready: bool) -> TrainerBatch | None:
        """The kept batch, if it is to be learnt from now; else it is released. `ready`: a new one has arrived."""
        kept = self._kept
        if kept is None:
            return None
        fits = self._uses < self.times and clock - kept.begun <= self.limit_iterations
        if ready or not fits or not self.collector.may_skip(clock):
            self._release_kept()
            return None
        self._uses += 1
        self.repetitions += 1
        return kept

    def pause(self) -> None:
        """Releases the kept batch: actors that are to pause may need its slots first."""
        self.dropped += self._kept is not None and self._uses < self.times
        self._release_kept()

    def _release_kept(self) -> None:
        if self._kept is not None:
            self._kept = None
            self._release()
            self._free()


def _nothing() -> None:
    """The slots are still in use."""
