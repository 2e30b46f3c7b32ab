"""One member of a program that several share, as a session drives it: a `Program` like any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from runnel.runtime.programs import totals
from runnel.runtime.programs.carry import Carry, StateChange
from runnel.runtime.programs.metric_window import MetricWindow
from runnel.runtime.programs.snapshots import SnapshotTaker, TakenSnapshot
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.usage import UsageReport, single_process_usage
from runnel.types import PyTree

if TYPE_CHECKING:
    from runnel.runtime.single_process.shared_program import SharedProgram

MOST_ITERATIONS: Final = 1 << 30


class MemberProgram:
    """One member of a `SharedProgram`, as a `Program`."""

    def __init__(self, shared: SharedProgram, member: int, snapshots: SnapshotTaker):
        self._shared, self._member, self._snapshots = shared, member, snapshots
        self.steps = 0
        self.metric_window = MetricWindow()
        self._seconds = 0.0
        self._held: Carry | None = None

    @property
    def carry(self) -> Carry:
        return Carry(*(self._shared.field(self._member, name) for name in Carry._fields))

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> ProgressDelta:
        del seconds
        self._take_if_due()
        before = self._shared.seconds
        decided = target if not self.metric_window.scored else math.inf
        given = self._shared.run(self._member, min(iterations, self._until_snapshot()), decided, stop)
        if given is None:
            return self.metric_window.apply(totals.no_progress(self._shared.field(self._member, "window")), target)
        progress, ended = given
        self.metric_window.add(ended)
        self._seconds += self._shared.seconds - before
        self._take_if_due()
        return self.metric_window.apply(progress, target)

    def _steps_taken(self) -> int:
        return self._shared.iteration(self._member) * self._shared.steps_per_iteration

    def _take_if_due(self) -> None:
        env_steps = self._steps_taken()
        if self._snapshots.schedule.mark(self._snapshots.env_steps, env_steps) is None:
            self._snapshots.env_steps = env_steps
        else:
            self._snapshots.reached(env_steps, *self.learnt())

    def learnt(self) -> tuple[Any, Any]:
        return self._shared.field(self._member, "states"), self._shared.field(self._member, "updates")

    def _until_snapshot(self) -> int:
        per_iteration = self._shared.steps_per_iteration
        mark = self._snapshots.schedule.next_mark(self._steps_taken())
        return MOST_ITERATIONS if mark is None else -(-mark // per_iteration) - self._steps_taken() // per_iteration

    def snapshots(self, wait: bool = False) -> list[TakenSnapshot]:
        return self._snapshots.fetch(wait)

    def ask_for_snapshot(self) -> None:
        self._snapshots.ask(*self.learnt())

    def measure(self) -> None:
        self._seconds = 0.0

    def report(self, recent: bool = False) -> UsageReport:
        del recent
        return single_process_usage(self._shared.name, {"program": self._seconds})

    def save(self) -> dict[str, PyTree]:
        return {"carry": self.carry, "host": {}}

    def begin_from(self, states: Mapping[str, PyTree]) -> None:
        if states:
            carry = self.carry
            self._shared.put(self._member, carry._replace(states={**carry.states, **states}))

    def exchange(self, change: StateChange) -> tuple[None, int]:
        self.begin_from(change(*self.learnt()))
        return None, 0

    def load(self, saved: dict[str, PyTree] | None, env_steps: int) -> int:
        del env_steps
        if saved is None:
            self._shared.begin_again(self._member)
        elif saved["carry"] is not self._held:
            self._shared.put(self._member, saved["carry"])
        self._held = None
        self._snapshots.begin(self._steps_taken())
        return 0

    def held(self, iteration: int) -> dict[str, PyTree] | None:
        """The state for `load` without reading a checkpoint, if the member is at this iteration already.

        Only the fields of its carry that callers use are fetched.
        """
        if self._shared.stands_at(self._member) != iteration:
            return None
        fetched = {name: self._shared.field(self._member, name) for name in ("iteration", "updates", "states")}
        others: dict[str, Any] = {name: () for name in Carry._fields if name not in fetched}
        self._held = Carry(**{**others, **fetched})
        return {"carry": self._held, "host": {}}

    def listen(self, seconds: float) -> None:
        """No other process works on it."""

    def rest(self) -> None:
        """No other process works on it."""

    def hurry(self) -> None:
        """There is no other process to wait for."""

    def close(self) -> None:
        self._shared.leave(self._member)
