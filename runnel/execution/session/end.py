"""The end of a session: finished, interrupted, or failed; each writes the result.

Signals, hangs and errors may occur between any two instructions of the others, some of them in another thread.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

import jax

from runnel.errors import RunFailed, UserError, printable
from runnel.execution.session.result import outcome
from runnel.execution.session.session_state import SessionState
from runnel.execution.supervision.hang_watch import HangWatch
from runnel.recording import requests
from runnel.recording.files import one_line, write_json_atomically
from runnel.reporting import report
from runnel.reporting.live_view import forgiving
from runnel.runtime.single_process.program import Program
from runnel.system import startup
from runnel.system.signals import Interrupted, StopRequest, Stuck

REQUEST: Final = "a request to stop"


def out_of_memory(problem: BaseException) -> RunFailed | None:
    """The error of a run whose device has run out of memory, if that is the problem."""
    own = isinstance(problem, jax.errors.JaxRuntimeError)
    error = problem if own else problem.__cause__ or problem  # the cause is that of a program which several runs share
    if not (isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)):
        return None
    return RunFailed(
        f"a device has no memory left ({one_line(error)}); use fewer environments or members, a shorter unroll, more "
        "minibatches, a smaller network or a replay of less capacity",
        page="troubleshooting#out-of-memory",
    )


class SessionEnd:
    """Handles signals and hangs, and writes the result of the run."""

    def __init__(self, state: SessionState):
        self.state = state
        self.stopping = StopRequest(self.stop, self._last_word)
        self.stopping.look = self._look
        self._announcing, self._announced = threading.Lock(), False
        # Looks for a hang in this process; where there are workers, `DistributedProgram` does.
        self.watch = self._hang_watch() if state.built.plan.workers == 1 else None

    def stop(self, number: int) -> None:
        """The first signal. It may arrive between any two instructions, so this only sets fields."""
        self.state.interrupted, self.state.asked = True, signal.Signals(number).name
        if self.state.program is not None:
            self.state.program.hurry()

    def asked_to_end(self) -> bool:
        """Whether a signal or a request has asked for the end. Any thread may call it; requests are taken here."""
        asked = self.state.requests.taken()
        if requests.CHECKPOINT in asked:
            self.state.checkpoint_asked = True
        if requests.STOP in asked and not self.state.interrupted:
            self.stopping.asked = self.stopping.asked or REQUEST
            self.state.interrupted, self.state.asked = True, REQUEST
            if self.state.program is not None:
                self.state.program.hurry()
        return self.state.interrupted

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Kills workers at the second signal."""
        try:
            yield
        except Interrupted:
            self.state.pool.abort()
            raise

    def announce(self) -> None:
        """Reports once that a signal was received, and what follows. Any thread may call it."""
        with self._announcing:
            if self._announced:
                return
            self._announced = True
        startup.end()
        asked = self.state.asked or self.stopping.asked
        self.state.say(f"interrupted: {asked}; {self.ending()}; once more ends at once")

    def ending(self) -> str:
        if self.state.counters.iterations:
            return "ending with a checkpoint"
        return "ending before the first update" if self.watch is None else "ending after the iteration in progress"

    def _hang_watch(self) -> HangWatch:
        hang_after_s, stopping = self.state.run_config.hang_after_s, self.stopping
        return HangWatch(
            hang_after_s, lambda: self.state.steps, lambda: stopping.asked, self.state.say, stopping.interrupt
        )

    def _look(self) -> None:
        """Called in another thread, several times a second."""
        self.asked_to_end()
        if self.stopping.asked:
            self.announce()
        if self.watch is not None:
            self.watch.look()

    def at_start(self) -> str:
        """The phase of a single-process run before its first update."""
        held = None if self.watch is None else self.watch.held()
        return "making environments and compiling" if held is None else f"waits for {held}"

    def _last_word(self, reason: str) -> None:
        """Writes the result of this process, which hangs and is about to be ended."""
        self.state.reason = self.state.reason or reason
        if self.state.begun or not self.state.resumed:
            self._write_bad_result("interrupted" if self.stopping.asked else "failed", None)
            report.write(self.state.run_dir)
        self._say_how_to_go_on(self.state.reason)

    def leave_stuck(self, stuck: Stuck) -> dict[str, Any]:
        """The environment hangs: the run ends without a checkpoint if the user asked for that, and fails otherwise."""
        if self.state.interrupted and (self.state.begun or not self.state.resumed):
            self.without_checkpoint(stuck)
            return self._write_bad_result("interrupted", None)
        newest = self.state.checkpoints.newest()
        kept = "there is no checkpoint" if newest is None else f"the newest checkpoint is {newest.name}"
        self.state.report_event("hang", reason=str(stuck), action="the run ends")
        error = RunFailed(
            f"{stuck}; {kept}. Correct the environment, or allow it more time with --hang-after",
            page="faults#when-an-environment-fails",
        )
        self.failed(error)
        raise error

    def without_checkpoint(self, error: BaseException) -> None:
        """Ends an interrupted run whose workers do not pause."""
        newest = self.state.checkpoints.newest()
        kept = "there is no earlier one" if newest is None else f"the newest is {newest.name}"
        self.state.reason = f"no checkpoint could be made at the end; {kept} ({one_line(error)})"
        self.state.events.record("interrupted", reason=self.state.reason)

    def failed(self, error: BaseException) -> None:
        """Records the error that ends the run. An error in here must not hide it."""
        at_once = isinstance(error, Interrupted)
        self.state.reason = f"{error} after {self.state.asked}: ended at once" if at_once else one_line(error)
        refused = isinstance(error, UserError)  # before anything ran: the directory stays unchanged
        ran = self.state.begun or not (self.state.resumed or refused)
        if ran:
            with contextlib.suppress(Exception):
                self._write_bad_result("interrupted" if at_once else "failed", self.state.program)
        if at_once:
            self.state.events.record("interrupted", reason=self.state.reason, action="no checkpoint was written")
        if ran:
            self._say_how_to_go_on(self.state.reason if at_once else "failed")

    def _say_how_to_go_on(self, what: str) -> None:
        if self.state.quiet or sys.stderr is None:
            return
        newest = self.state.checkpoints.newest()
        again = f"continue with `runnel resume {self.state.run_dir}{self.state.pool.flags}`"
        on = "it has no checkpoint to resume from" if newest is None else again
        print(printable(f"{what}; the run is in {self.state.run_dir}: {on}"), file=forgiving(sys.stderr), flush=True)

    def _write_bad_result(self, status: str, program: Program | None) -> dict[str, Any]:
        """The result of a run that was interrupted or failed; if it never began, its configuration too."""
        if not self.state.begun:
            write_json_atomically(self.state.run_dir / "config.json", self.state.config)
        return self.write_result(status, program)

    def write_result(self, status: str, program: Program | None) -> dict[str, Any]:
        state = self.state
        result = {
            "status": status,
            "algorithm": state.built.plan.algorithm.lower(),
            "environment": state.config["environment"]["name"],
            "distribution": state.built.plan.distribution,
            "seed": state.run_config.seed,
            **state.stats.result(),
            **state.policies.result(),
            **outcome(
                program,
                state.built,
                state.pool.machines,
                state.counters,
                state.stats.startup_s is not None,
                state.pool.traffic(),
            ),
        }
        if state.reason is not None:
            result["reason"] = state.reason
        write_json_atomically(state.run_dir / "result.json", result)
        state.ended = True
        return result
