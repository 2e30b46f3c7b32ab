"""When a block of environments may begin an unroll, and which parameters act in it. NumPy only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runnel.runtime.programs.versions import Leads, ParameterStamp, in_time, stamp_now
from runnel.runtime.workers.player import BlockState
from runnel.runtime.workers.ports import WorkerContext
from runnel.transport.parameter_store import StoreReader


@dataclass(frozen=True)
class UnrollGate:
    """Holds back a block until its consumers have room and the learners have published what its unroll needs."""

    context: WorkerContext
    stores: Mapping[str, StoreReader]  # by group
    leads: Leads
    early: bool  # a block that requests its actions may begin while its neighbours still step
    learnt: Callable[[], Mapping[str, int]] = dict  # by group: the updates of what is learnt in this worker

    def wait(self, ready: Callable[[], bool], unroll: int) -> ParameterStamp:
        """Waits until an unroll may begin; returns the oldest parameters that act in it.

        At a barrier the wait counts as one for parameters; ahead of the learner by all of its lead, as one for room.
        """
        context = self.context
        if not ready():
            context.wait(lambda: ready() or None, "room for unrolls")
        if not in_time(self.stores, unroll, self.leads):
            cause = "room for unrolls" if all(self.leads.values()) else "parameters"
            context.wait(lambda: in_time(self.stores, unroll, self.leads) or None, cause)
        return self._stamp()

    def wait_for(self, block: BlockState) -> ParameterStamp:
        return self.wait(block.ready, block.unrolls)

    def early_stamp(self, block: BlockState) -> ParameterStamp | None:
        """The same for a block that may begin at once, while its neighbours still step; else None."""
        requests = self.early and block.acting is None and bool(block.kept) and not self.context.pausing
        may = requests and block.ready() and in_time(self.stores, block.unrolls, self.leads)
        return self._stamp() if may else None

    def _stamp(self) -> ParameterStamp:
        return stamp_now(self.stores, self.learnt())
