"""The reaction to updates that were refused because they were not finite (`--on-nan`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runnel.errors import RunFailed
from runnel.execution.session.checkpoints import SessionCheckpoints
from runnel.execution.session.session_state import SessionState
from runnel.recording.metrics import MetricsLog
from runnel.reporting.live_view import LiveView
from runnel.runtime.recovery.nan_rollback import MAX_ROLLBACKS, NanRollback
from runnel.runtime.single_process.program import Program

ENDS: Final = "the run ends"
"""The action in the event of an update that ends a run."""


class RefusedUpdates:
    """Counts refused updates, and continues without them, returns to a checkpoint, or ends the run."""

    def __init__(self, state: SessionState, checkpoints: SessionCheckpoints):
        self.state, self.checkpoints = state, checkpoints
        self._nan_rollback = NanRollback()

    def handle(self, broken: Mapping[str, int], program: Program, log: MetricsLog, view: LiveView) -> None:
        """Updates were refused: continues without them, returns to a checkpoint, or ends the run (`on_nan`)."""
        choice = self.state.run_config.on_nan
        if not broken or choice == "skip":
            return self.skip(broken)
        what = f"{self._first(broken)}; no such value has entered the learner's state"
        newest = self.state.checkpoints.newest()
        if choice == "rollback" and newest is not None:
            if self._nan_rollback.allow(self.state.counters.iterations, self.checkpoints.saved_at_iteration):
                self.state.report_event(
                    "nan", reason=what, action=f"going back to checkpoint {newest.name}", quantities={**broken}
                )
                return self.checkpoints.roll_back(program, log, view, what, self._nan_rollback.count)
            what = f"{what}; after {MAX_ROLLBACKS} returns to a checkpoint, no update went beyond this one"
        self.state.report_event(
            "nan", reason=what, action=ENDS, quantities={**broken}, iterations=self.state.counters.iterations
        )
        self.state.counters.skipped_updates += sum(broken.values())
        self.checkpoints.save(program, view)
        raise RunFailed(
            f"{what}. The last good state is kept: continue without such updates with `runnel resume "
            f"{self.state.run_dir} --on-nan skip`,\nor train again with a lower learning rate, or with finite rewards "
            "and observations",
            page="faults#when-a-number-is-not-finite",
        )

    def skip(self, broken: Mapping[str, int]) -> None:
        if broken:
            times = sum(broken.values())
            self.state.counters.skipped_updates += times
            action = "the update was skipped" if times == 1 else f"{times} updates were skipped"
            self.state.report_event("nan", reason=self._first(broken), action=action, quantities={**broken})

    def _first(self, broken: Mapping[str, int]) -> str:
        counters = self.state.counters
        return f"{next(iter(broken))} was not finite at update {counters.updates:,} ({counters.env_steps:,} steps)"
