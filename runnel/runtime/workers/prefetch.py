"""Takes a trainer's next batch while the device is at work on the last one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from runnel.runtime.workers.ports import WorkerContext

if TYPE_CHECKING:
    from runnel.runtime.workers.trainer import TrainerBatch

LOOK_S = 1e-3
"""How often it looks at least whether the device is done: what was learnt is published that much later at most."""


class Prefetch:
    """The next batch, if it has arrived during the update.

    Whether a batch may be learnt from is decided for the iteration that will learn from it.
    """

    def __init__(
        self,
        context: WorkerContext,
        ready: Callable[[int], bool],
        make: Callable[[], TrainerBatch | None],
        at_work: Callable[[], bool],
    ):
        """`ready`: whether the batch of an iteration has arrived; `make`: copies it to the device; `at_work`: whether
        the device is."""
        self.context = context
        self._ready, self._make, self._at_work = ready, make, at_work
        self.batch: TrainerBatch | None = None

    def look(self, iteration: int) -> None:
        """Waits for the batch of an iteration as long as the device is at work and no pause is asked for."""

        def decided() -> bool | None:
            return True if self._ready(iteration) or not self._at_work() else None

        # The wait is not counted as one: the device works meanwhile.
        while self.context.bell.wait(decided, LOOK_S) is None:
            self.context.poll()
            if self.context.pausing:
                return
        if self._ready(iteration):
            self.batch = self._make()

    def take(self) -> TrainerBatch | None:
        batch, self.batch = self.batch, None
        return batch

    def give_back(self) -> None:
        """Before a pause: its unrolls wait again where they were taken from."""
        batch = self.take()
        if batch is not None:
            assert batch.give_back is not None
            batch.give_back()
