"""Evaluations and the user's callbacks, between two slices of a session's training."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence

from runnel.errors import HostLost, RunFailed, UserError
from runnel.execution.callbacks import Progress, read_only
from runnel.execution.session.session_state import SessionState
from runnel.execution.snapshots.policy_recorder import RecordedEvaluation
from runnel.reporting.live_view import LiveView
from runnel.reporting.status_lines import evaluation_line
from runnel.runtime.programs import snapshots
from runnel.runtime.programs.snapshots import TakenSnapshot
from runnel.runtime.single_process.program import Program

LISTEN_S = 0.1
"""The seconds for which workers are polled at a time, while a snapshot is waited for."""


class SessionEvaluation:
    """Passes snapshots to the recorder, and evaluations to the view and the callbacks."""

    def __init__(self, state: SessionState):
        self.state = state
        self._asked_at = -math.inf  # when a snapshot was last asked for
        self._calling = False  # whether a callback is being called

    def hand_over(self, program: Program, view: LiveView, last: bool = False) -> bool:
        """Hands over the snapshots that were taken; returns whether an evaluation has reached its target return.

        Those that training does not wait for may still be fetched: they are handed over by a later call, or the last.
        """
        began, policies = time.monotonic(), self.state.policies
        evaluates = self._training_waits() and policies.evaluation_due(self.state.counters.env_steps)
        snapshots_taken = program.snapshots(wait=evaluates or last)
        with self._shown(view, snapshots_taken[-1:] if self._training_waits() else []):
            for taken in snapshots_taken:
                policies.take(taken)
            self._evaluated(policies.wait() if self.state.run_config.eval_wait else policies.poll(), view)
        if self._training_waits():
            self.state.stats.rate.exclude(time.monotonic() - began)
        return self.state.policies.reached

    def _training_waits(self) -> bool:
        """Whether training pauses during an evaluation. Workers continue to train, whatever this process does."""
        alone = self.state.built.plan.workers == 1 and self.state.policies.evaluates_here
        return self.state.run_config.eval_wait or alone

    def _shown(self, view: LiveView, evaluated: Sequence[TakenSnapshot]) -> contextlib.AbstractContextManager[None]:
        """Shows that training waits, if it does."""
        if not evaluated or self.state.run_config.eval_every is None:
            return contextlib.nullcontext()
        return view.pausing(f"evaluating at {evaluated[0].env_steps:,} steps")

    def _evaluated(self, evaluations: Iterable[RecordedEvaluation], view: LiveView) -> None:
        for found, snapshot in evaluations:
            view.note(evaluation_line(found, self.state.run_config.eval_metric))
            self.call("on_evaluation", lambda snapshot=snapshot: snapshot)

    def settle(self, program: Program) -> None:
        """Stores what was taken: a checkpoint follows, which may name it."""
        for taken in program.snapshots(wait=True):
            self.state.policies.take(taken)
        self.state.policies.settle()

    def take_in_time(self, program: Program) -> None:
        """Takes snapshots by the clock (`keep_every_s`)."""
        every_s, now = self.state.run_config.keep_every_s, time.monotonic()
        if every_s is not None and now >= self._asked_at + every_s:
            self._asked_at = now
            program.ask_for_snapshot()

    def snapshot_now(self, program: Program) -> TakenSnapshot:
        """The newest parameters, for a callback that requests them."""
        if not self._calling:
            raise UserError("policy(): found a call after on_update has returned, expected one inside it")
        program.ask_for_snapshot()
        deadline = time.monotonic() + self.state.run_config.hang_after_s
        while time.monotonic() < deadline:
            found = program.snapshots(wait=True)
            newest = next((taken for taken in reversed(found) if taken.mark == snapshots.ASKED), None)
            for taken in found:
                if taken is not newest:
                    self.state.policies.take(taken)
            if newest is not None:
                return newest
            program.listen(LISTEN_S)
        raise RunFailed(f"no learner has sent its parameters within {self.state.run_config.hang_after_s:.0f} s")

    def call(self, name: str, snapshot: Callable[[], TakenSnapshot]) -> None:
        """Calls a function of the user's with the run's progress."""
        counters, self._calling = self.state.counters, True
        progress = Progress(
            self.state.run_dir, counters.env_steps, counters.updates, counters.episodes, counters.mean_return,
            read_only(self.state.newest_metrics),
            read_only(self.state.policies.newest),
            self.state.newest_checkpoint,
            lambda: self.state.policies.policies(snapshot()),
        )  # fmt: skip
        if self.state.callbacks.given(name):
            self.state.policies.settle()  # it may read the store
        try:
            self.state.callbacks.call(name, progress)
        finally:
            self._calling = False
        if self.state.callbacks.error is not None:
            self.state.interrupted = True
            self.state.asked = f"{name} raised {type(self.state.callbacks.error).__name__}"

    def evaluate_last(self, program: Program, view: LiveView) -> None:
        """The evaluation at the end, of the parameters in the last checkpoint."""
        learnt = None if self.state.interrupted else program.learnt()
        if learnt is None:
            return
        last = snapshots.take(*learnt, self.state.counters.env_steps)
        while True:
            try:
                self.hand_over(program, view, last=True)
                with self._shown(view, [last]):
                    return self._evaluated(self.state.policies.finish(last), view)
            except HostLost as lost:  # the workers have done their part: nothing is trained again
                self.state.report_lost(lost, "evaluated on the machines that are left")
                self.state.pool.leave(lost.host)
