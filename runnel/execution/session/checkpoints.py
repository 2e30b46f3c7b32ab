"""Saves checkpoints of a session, begins from them, and returns to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

from runnel.environment import is_traceable
from runnel.errors import RunFailed, UserError
from runnel.execution.run_stats import RunCounters
from runnel.execution.session.evaluation import SessionEvaluation
from runnel.execution.session.session_state import SessionState
from runnel.recording.files import one_line
from runnel.recording.metrics import MetricsLog
from runnel.reporting.live_view import LiveView
from runnel.runtime.programs import snapshots
from runnel.runtime.recovery.nan_rollback import with_other_seed
from runnel.runtime.single_process.program import Program, carry_types, unsound
from runnel.system import startup
from runnel.types import PyTree

NOT_SAVED: Final = "the last checkpoint could not be written"
"""The beginning of the reason of a run that failed because its disk is full: it can be resumed."""


class SessionCheckpoints:
    """The checkpoints of one session."""

    def __init__(
        self, state: SessionState, evaluation: SessionEvaluation,
        held: Callable[[int], dict[str, PyTree] | None] | None = None,
    ):  # fmt: skip
        """`held`: maps an iteration to the state that the program saved there, if it still holds it."""
        self.state, self.evaluation, self._held = state, evaluation, held
        self.saved_at_iteration = -1

    def save(self, program: Program, view: LiveView, last: bool = False) -> None:
        state = self.state
        if state.counters.iterations == self.saved_at_iteration or not state.counters.iterations:
            return
        saved, rest = program.save(), program.rest()
        self.evaluation.settle(program)  # learners send their snapshots before they pause
        state.rest = rest
        if rest is not None:
            state.stats.add(rest, state.built.graph.steps_per_iteration)
        counters = {
            **asdict(state.counters),
            **program.metric_window.saved(),
            "wall_seconds": state.stats.wall_seconds(),
        }
        try:
            path = state.checkpoints.save(state.counters.iterations, saved, counters)
        except Exception as error:  # orbax and its libraries have their own errors for a full disk
            self._not_saved(one_line(error), last)
            return
        self.saved_at_iteration = state.counters.iterations
        state.opponents.saved(state.counters.env_steps)
        view.note(f"checkpoint {path.name}")
        taken = snapshots.take(saved["carry"].states, saved["carry"].updates, state.counters.env_steps)
        state.policies.keep(taken)
        state.newest_checkpoint = path
        self.evaluation.call("on_checkpoint", lambda: taken)

    def _not_saved(self, reason: str, last: bool) -> None:
        newest = None
        try:
            newest = self.state.checkpoints.newest()
            kept = "there is no whole one" if newest is None else f"the newest whole one is {newest}"
        except OSError:  # there may be no descriptor to look with
            kept = "earlier ones are kept"
        action = f"{kept}; " + ("the run ends" if last else "training continues, the next one is due as usual")
        self.state.events.record(
            "checkpoint_failed", reason=f"a checkpoint could not be written: {reason}", action=action
        )
        if last:
            again = "" if newest is None else f"; make room and continue with `runnel resume {self.state.run_dir}`"
            raise RunFailed(f"{NOT_SAVED}: {reason}; {kept}{again}")

    def load(self, program: Program, note: Callable[[str], None], read: Callable[[], None]) -> None:
        """Begins from the newest whole checkpoint. `read` is called once it is read, before episodes are replayed."""
        state = self.state
        startup.phase("reading the checkpoint")
        saved, counters = self._found() or self._read(note)
        read()
        if not saved["host"] and not is_traceable(state.built.environment):
            raise UserError(
                f"{state.run_dir} was trained on a JAX environment; it cannot resume on a host environment",
                page="run-directory#resume",
            )
        state.stats.counters = RunCounters.of(counters)
        taken = state.counters.env_steps
        if taken - state.built.graph.steps_per_iteration >= state.run_config.steps:
            raise UserError(
                f"{state.run_dir} has taken {taken:,} steps already, and steps={state.run_config.steps} "
                "counts from its beginning; ask for more than it has",
                keywords=("steps",),
                page="run-directory#resume",
            )
        cut = program.load(saved, taken)
        program.metric_window.load(state.counters.env_sums, state.counters.env_episodes)
        if cut:
            state.counters.cut_episodes += cut
            note(f"{cut} episodes could not be replayed; they were truncated, and new episodes began")
        self.saved_at_iteration = state.counters.iterations
        state.policies.rewind(taken)
        state.opponents.rewind(taken, saved["carry"].states)
        carry, per_iteration = saved["carry"], state.built.graph.steps_per_iteration
        state.policies.catch_up(snapshots.take(carry.states, carry.updates, taken), per_iteration)
        note(f"resumed at {state.counters.env_steps:,} steps")
        state.events.record("resumed", reason=f"at {state.counters.env_steps:,} steps", cut_episodes=cut)

    def _read(self, note: Callable[[str], None]) -> tuple[dict[str, PyTree], dict[str, Any]]:
        like = {"carry": carry_types(self.state.built.graph, self.state.built.environment)}
        return self.state.checkpoints.load(like, note, self._refuse)

    def _found(self) -> tuple[dict[str, PyTree], dict[str, Any]] | None:
        """The newest checkpoint, if the program still holds its state."""
        newest = self.state.checkpoints.newest()
        if self._held is None or newest is None:
            return None
        counters = self.state.checkpoints.counters(newest)
        saved = None if RunCounters.problem(counters) else self._held(counters.get("iterations", -1))
        return None if saved is None else (saved, counters)

    def roll_back(self, program: Program, log: MetricsLog, view: LiveView, reason: str, other_numbers: int = 0) -> None:
        """Continues from the newest whole checkpoint, or from the beginning if there is none yet.

        `other_numbers`: changes the random numbers, if not 0; with the same ones, the run would repeat itself.
        """
        state = self.state
        before, saved = state.counters, None
        state.stats.counters = RunCounters()
        if state.checkpoints.newest() is not None:
            saved, counters = self._read(view.note)
            state.stats.counters = RunCounters.of(counters)
            saved["carry"] = with_other_seed(saved["carry"], other_numbers)
        for name in ("wall_seconds", "restarts", "restart_reasons", "environment_failures"):
            setattr(state.counters, name, getattr(before, name))
        steps, lost = state.counters.env_steps, before.updates - state.counters.updates
        state.report_event("rollback", reason=reason, action=f"all resume from {steps:,} steps", lost_updates=lost)
        log.rewind(steps)
        state.callbacks.begin(steps)
        state.policies.rewind(steps if saved is not None else -1)
        state.opponents.rewind(steps, {} if saved is None else saved["carry"].states)
        state.counters.cut_episodes += program.load(saved, steps)
        program.metric_window.load(state.counters.env_sums, state.counters.env_episodes)
        self.saved_at_iteration = state.counters.iterations

    def _refuse(self, saved: dict[str, PyTree], counters: dict[str, Any]) -> str | None:
        """The reason to refuse a checkpoint's content; None if it is valid."""
        graph, seed = self.state.built.graph, self.state.run_config.seed
        return RunCounters.problem(counters) or unsound(graph, saved["carry"], seed)
