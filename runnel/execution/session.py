"""One stretch of a run, from its start or resumption to its end.

A session runs a program in slices of a fraction of a second. Between two slices it writes metrics and checkpoints,
handles lost state and machines that join or leave, and looks whether the run should end. It is one class because each
of these ends in one of the same three ways (finished, interrupted, failed), and each way writes the result from the
same state. What it uses has modules of its own: counters in `run_stats.py`, the result in `result.py`, machines in
`machine_pool.py`, hangs in `hang_watch.py`.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runnel.config import run_config, serialization
from runnel.config.jax_config import keep_off_devices
from runnel.environment import is_traceable
from runnel.errors import HostLost, RunFailed, StateLost, UserError, WorkerFailed, printable
from runnel.execution.building import BuiltRun
from runnel.execution.callbacks import Callbacks, Progress
from runnel.execution.hang_watch import HangWatch
from runnel.execution.machine_pool import MachinePool, SingleMachine, replanned
from runnel.execution.policy_recorder import PolicyRecorder, RecordedEvaluation
from runnel.execution.result import outcome
from runnel.execution.run import Run
from runnel.execution.run_stats import RunCounters, RunStats
from runnel.recording import run_directory
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.events import EventLog
from runnel.recording.files import as_user_error, one_line, write_json_atomically
from runnel.recording.metrics import MetricsLog
from runnel.recording.sinks import Sink
from runnel.reporting.live_view import LiveView, evaluation_line, forgiving, summary
from runnel.runtime.programs import snapshots
from runnel.runtime.programs.snapshots import SnapshotSchedule, TakenSnapshot
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.recovery.nan_rollback import MAX_ROLLBACKS, NanRollback, with_other_seed
from runnel.runtime.single_process.program import Program, carry_types, make_program, unsound
from runnel.system import startup
from runnel.system.exits import failure
from runnel.system.limits import RUN, check_descriptors, check_memory, opened
from runnel.system.signals import Interrupted, StopRequest, Stuck
from runnel.types import PyTree

REPORT_S = 0.1
"""How often a program comes back to report."""


class Session:
    """Runs a plan until it has taken its steps, reached its return, or been asked to stop."""

    def __init__(
        self,
        run_dir: Path,
        config: dict[str, Any],
        built: BuiltRun,
        *,
        began: float,
        quiet: bool,
        resumed: bool = False,
        pool: MachinePool | None = None,
        sinks: Sequence[Sink] = (),
        callbacks: Callbacks | None = None,
        initial: Mapping[str, PyTree] = MappingProxyType({}),
    ):
        """`sinks`: the user's own receivers of metrics. `initial`: by group, the states to begin with."""
        self._initial = initial
        self.callbacks = callbacks or Callbacks()
        self.pool = pool or SingleMachine()
        self.run_dir, self.config, self.built, self.quiet = run_dir, config, built, quiet
        self.run_config = run_config.from_json(config)
        self.resumed, self.sinks = resumed, sinks
        self._requested = built  # what was asked for; where machines come and go, `built` is what there is of it
        self._first_cpus = sum(machine.cpus for machine in self.pool.machines)
        self.checkpoints = Checkpoints(run_dir)
        self._schedule = SnapshotSchedule(self.run_config.snapshot_periods)
        self.events = EventLog(run_dir)
        self.stats = RunStats(began)
        self.interrupted = False
        self.asked = ""  # the signal that did
        self.begun = False
        self._says: Callable[[str], None] = self._print
        self._stopping = StopRequest(self._stop, self._last_word)
        self._stopping.look = self._look
        self._announcing, self._announced = threading.Lock(), False
        # Looks for a hang in this process; where there are workers, `DistributedProgram` does.
        self._watch = self._hang_watch() if built.plan.workers == 1 else None
        self.program: Program | None = None
        self.reason: str | None = None  # why the run did not end as it should
        self.rest: ProgressDelta | None = None  # what workers reported while they paused for the last checkpoint
        self._saved_at_iteration = -1
        self._nan_rollback = NanRollback()
        self._newest_checkpoint: Path | None = None
        self._asked_at = -math.inf  # when a snapshot was last asked for
        self.policies = PolicyRecorder(
            run_dir, config, self.run_config, built, self._report_event, lambda: self.interrupted
        )  # fmt: skip

    @property
    def counters(self) -> RunCounters:
        return self.stats.counters

    def run(self) -> Run:
        with self._stopping, self._at_once(), contextlib.ExitStack() as stack:
            stack.callback(self.events.close)
            try:
                with self._at_once():
                    result = self._run(stack)
            except Stuck as stuck:
                result = self._left(stuck)
            except (Exception, Interrupted) as error:
                self._failed(error)
                raise
            except BaseException as problem:  # Ctrl-C is `Interrupted`: this one comes from code of the run's
                error = failure(problem)
                self._failed(error)
                raise error from None
        if not self.quiet and sys.stdout is not None:
            again = {"resumable": self.checkpoints.newest() is not None, "resume_flags": self.pool.flags}
            print(summary({**result, "run_dir": str(self.run_dir), **again}), file=forgiving(sys.stdout), flush=True)
        if self.callbacks.error is not None:
            raise self.callbacks.error
        carry = self.program.carry if self.program is not None else None
        return Run(result, self.run_dir, carry.states if carry is not None else {}, self.built)

    def _run(self, stack: contextlib.ExitStack) -> dict[str, Any]:
        stack.callback(self._close)
        stack.callback(self.policies.close)
        program = self._first_program()
        tuned = ", ".join(self.built.tuned)
        notes = [f"tuned for {self.config['environment']['name']}: {tuned}"] if tuned else []
        notes += self.built.plan.notes
        if self.resumed:
            self._load(program, notes.append)
        view = stack.enter_context(LiveView(self.run_config.steps, self.quiet, self._title()))
        startup.through(view.starting)
        self._says = view.note
        for note in notes:
            view.note(note)
        self.events.note = view.event
        log = stack.enter_context(self._begin())
        self._train(log, view)
        self._report_rejections(at_once=True)
        return self._write_result("interrupted" if self.interrupted else "finished", self.program)

    def _first_program(self) -> Program:
        """Starts the program; a machine may be lost before it has started."""
        while True:
            try:
                self.program = self._program()
                return self.program
            except HostLost as lost:
                self.pool.leave(lost.host)
                self.built = replanned(self._requested, self._first_cpus, self.pool.machines)

    def _close(self) -> None:
        if self.program is not None:
            self.program.close()

    def _title(self) -> str:
        algorithm = type(self.built.algorithm).__name__
        return f"{algorithm} on {self.built.graph.spec.name}, {self.built.plan.distribution}"

    def _begin(self) -> MetricsLog:
        """From here on the run directory describes this session. A session that is refused before changes nothing."""
        self.begun = True
        write_json_atomically(self.run_dir / "config.json", self.config)
        with as_user_error(self.run_dir / "result.json"):
            run_directory.remove(self.run_dir, "result.json")
        kept = self.counters.env_steps if self.resumed else None
        wandb = self.config if self.run_config.wandb else None
        return MetricsLog(self.run_dir, keep_until_env_steps=kept, wandb=wandb, events=self.events, sinks=self.sinks)

    def _program(self) -> Program:
        plan, graph = self.built.plan, self.built.graph
        if not plan.hosts:
            check_memory(graph.bytes)
        if plan.workers == 1:
            check_descriptors(opened() + RUN)
            startup.phase(self._at_start)
            seed, environment = self.run_config.seed, self.built.environment
            program = make_program(plan, graph, environment, seed, self._report_event, self._schedule)
            program.begin_from(self._initial)
            return program
        from runnel.execution.distributed_program import DistributedProgram

        startup.phase(f"starting {plan.workers} workers")
        machines = self.pool.machines
        keep_off_devices(machines[0])
        config = {**self.config, "distribution": serialization.to_json(self.built.distribution)}
        program = DistributedProgram(
            self.built, config, self.run_dir, self.pool.site(self.run_dir / "logs"), machines, self._report_event
        )
        program.begin_from(self._initial)
        return program

    def _report_event(self, event: str, **details: Any) -> None:
        """Records an event, and counts restarts, environment failures and cut episodes."""
        if event == "restart":
            self.counters.restarts += 1
            reason = f"{details['worker']} {details['reason']}"
            self.counters.restart_reasons[reason] = self.counters.restart_reasons.get(reason, 0) + 1
        elif event == "environment":
            self.counters.environment_failures += int(details.get("times", 1))
        elif event == "cut":
            self.counters.cut_episodes += int(details.get("episodes", 1))
        self.events.record(event, **details)

    def _report_rejections(self, at_once: bool = False) -> None:
        for details in self.pool.rejections(at_once):
            self._report_event("rejected", **details)

    def _train(self, log: MetricsLog, view: LiveView) -> None:
        """Trains to the end; returns to the newest checkpoint whenever the state is lost."""
        while True:
            assert self.program is not None
            try:
                return self._train_on(self.program, log, view)
            except (StateLost, WorkerFailed) as error:
                if self.interrupted:
                    return self._without_checkpoint(error)
                if not isinstance(error, StateLost):
                    raise
                lost: StateLost | None = error
            while lost is not None:
                try:
                    if isinstance(lost, HostLost):
                        self._leave(lost)
                    self._roll_back(self.program, log, view, str(lost))
                    lost = None
                except StateLost as another:  # meanwhile
                    lost = another

    def _leave(self, lost: HostLost) -> None:
        """Continues without a machine."""
        self._report_event("restart", worker=lost.host, reason=str(lost).removeprefix(f"{lost.host} "),
                   action="the run goes on from a checkpoint, on the machines that are left")  # fmt: skip
        self.pool.leave(lost.host)
        self._move()

    def _move(self) -> None:
        """Plans and starts the program again, on the machines there are now."""
        self._close()
        self.program = None
        self.built = replanned(self._requested, self._first_cpus, self.pool.machines)
        self.program = self._program()

    def _grow(self, log: MetricsLog, view: LiveView) -> None:
        """Machines have joined: the run continues on them too, from the checkpoint just written."""
        names, failed = self.pool.grow()
        for name, why in failed.items():
            self._report_event("join_failed", worker=name, reason=why, action="the run goes on without it")
        if names:
            self._report_event("joined", reason=", ".join(names), action="workers are spread over all machines")
            self._move()
            assert self.program is not None
            self._roll_back(self.program, log, view, f"{', '.join(names)} joined")

    def _roll_back(
        self, program: Program, log: MetricsLog, view: LiveView, reason: str, other_numbers: int = 0
    ) -> None:
        """Continues from the newest whole checkpoint, or from the beginning if there is none yet.

        `other_numbers`: changes the random numbers, if not 0; with the same ones the same would happen again.
        """
        before, saved = self.counters, None
        self.stats.counters = RunCounters()
        if self.checkpoints.newest() is not None:
            like = {"carry": carry_types(self.built.graph, self.built.environment)}
            saved, counters = self.checkpoints.load(like, view.note, self._refuse)
            self.stats.counters = RunCounters.of(counters)
            saved["carry"] = with_other_seed(saved["carry"], other_numbers)
        for name in ("wall_seconds", "restarts", "restart_reasons", "environment_failures"):
            setattr(self.counters, name, getattr(before, name))
        steps, lost = self.counters.env_steps, before.updates - self.counters.updates
        self._report_event("rollback", reason=reason, action=f"all go on from {steps:,} steps", lost_updates=lost)
        log.rewind(steps)
        self.policies.rewind(steps if saved is not None else -1)
        self.counters.cut_episodes += program.load(saved, steps)
        program.metric_window.load(self.counters.env_sums, self.counters.env_episodes)
        self._saved_at_iteration = self.counters.iterations

    def _train_on(self, program: Program, log: MetricsLog, view: LiveView) -> None:
        wanted, per_iteration = self.run_config.steps, self.built.graph.steps_per_iteration
        target = self.run_config.stop_at_return
        target = math.inf if target is None else target
        saved_at, progress = time.monotonic(), None
        reached = self.counters.mean_return is not None and self.resumed and self.counters.mean_return >= target
        reached |= self.policies.reached
        while self.counters.env_steps < wanted and not self.interrupted and not reached and not self.callbacks.stopped:
            left = math.ceil((self._next_stop(wanted) - self.counters.env_steps) / per_iteration)
            seconds, left = (REPORT_S, left) if self.stats.startup_s is not None else (0.0, 1)
            progress = program.run(left, seconds, target, lambda: self.interrupted)
            self.stats.add(progress, self.built.graph.steps_per_iteration)
            reached = progress.reached
            if self.stats.startup_s is None and progress.updates:
                self.stats.first_update()
                program.measure()
            reached |= self._evaluate(program, view)
            self._take_in_time(program)
            lately = program.report(recent=True)
            record = {**self.stats.metrics(progress, lately), **self.policies.metrics()}
            log.write(record)
            view.update(record, lately)
            if self.stats.startup_s is not None:
                startup.end()
            self._not_finite(progress.broken, program, log, view)
            if progress.updates and self.callbacks.is_due():
                self._call("on_update", record, lambda program=program: self._snapshot_now(program))
            self._report_rejections()
            grows = self.pool.grows() and not self.built.plan.synchronous
            if grows or time.monotonic() - saved_at > self.run_config.checkpoint_every_s:
                self._save(program, view)
                if self.rest is not None:
                    self._not_finite(self.rest.broken, program, log, view)
                saved_at = time.monotonic()
            if grows:
                self._grow(log, view)
                program = self.program or program
        self.stats.rate.stop(self.counters.env_steps)
        self._save_last(program, view)
        self._evaluate_last(program, view)
        if self.rest is not None:  # workers have reported more since: the last line is the state at the end
            self._skip(self.rest.broken)
        last = self.rest or progress
        if last is not None:
            log.write({**self.stats.metrics(last, program.report(recent=True)), **self.policies.metrics()})

    def _next_stop(self, wanted: int) -> int:
        """Up to which environment step training goes on by itself."""
        mark = self._schedule.next_mark(self.counters.env_steps)
        return wanted if mark is None or not self.run_config.eval_wait else min(wanted, mark)

    def _evaluate(self, program: Program, view: LiveView) -> bool:
        """Hands over the snapshots that were taken; returns whether an evaluation has reached its target return."""
        began = time.monotonic()
        for taken in program.snapshots():
            self.policies.take(taken)
        self._evaluated(self.policies.wait() if self.run_config.eval_wait else self.policies.poll(), view)
        self.stats.rate.exclude(time.monotonic() - began)
        return self.policies.reached

    def _evaluated(self, evaluations: Sequence[RecordedEvaluation], view: LiveView) -> None:
        for found, snapshot in evaluations:
            view.note(evaluation_line(found))
            self._call("on_evaluation", found, lambda snapshot=snapshot: snapshot)

    def _take_in_time(self, program: Program) -> None:
        """Snapshots by the clock (`keep_every_s`)."""
        every_s, now = self.run_config.keep_every_s, time.monotonic()
        if every_s is not None and now >= self._asked_at + every_s:
            self._asked_at = now
            program.ask_for_snapshot()

    def _snapshot_now(self, program: Program) -> TakenSnapshot:
        """The newest parameters, for a callback that asks for them."""
        program.ask_for_snapshot()
        deadline = time.monotonic() + self.run_config.hang_after_s
        while time.monotonic() < deadline:
            for taken in program.snapshots():
                if taken.mark == snapshots.ASKED:
                    return taken
                self.policies.take(taken)
            program.listen(REPORT_S)
        raise RunFailed(f"no learner has sent its parameters within {self.run_config.hang_after_s:.0f} s")

    def _call(self, name: str, metrics: Mapping[str, Any], snapshot: Callable[[], TakenSnapshot]) -> None:
        """Calls a function of the user's with what the run has done so far."""
        counters = self.counters
        self.callbacks.call(
            name,
            Progress(
                self.run_dir, counters.env_steps, counters.updates, counters.episodes, counters.mean_return,
                MappingProxyType(dict(metrics)),
                None if self.policies.newest is None else MappingProxyType(dict(self.policies.newest)),
                self._newest_checkpoint,
                lambda: self.policies.policies(snapshot()),
            ),
        )  # fmt: skip
        if self.callbacks.error is not None:
            self.interrupted = True
            self.asked = f"{name} raised {type(self.callbacks.error).__name__}"

    def _evaluate_last(self, program: Program, view: LiveView) -> None:
        """The evaluation at the end, of the parameters in the last checkpoint."""
        if self.interrupted or program.carry is None:
            return
        self._evaluate(program, view)
        carry = program.carry
        last = snapshots.take(carry.states, carry.updates, self.counters.env_steps)  # type: ignore[arg-type]
        self._evaluated(self.policies.finish(last), view)

    def _not_finite(self, broken: Mapping[str, int], program: Program, log: MetricsLog, view: LiveView) -> None:
        """Updates were refused: continues without them, returns to a checkpoint, or ends the run (`on_nan`)."""
        choice = self.run_config.on_nan
        if not broken or choice == "skip":
            return self._skip(broken)
        what = f"{self._first(broken)}; no such value has entered the learner's state"
        newest = self.checkpoints.newest()
        if choice == "rollback" and newest is not None:
            if self._nan_rollback.allow(self.counters.iterations, self._saved_at_iteration):
                self._report_event(
                    "nan", reason=what, action=f"going back to checkpoint {newest.name}", quantities={**broken}
                )
                return self._roll_back(program, log, view, what, self._nan_rollback.count)
            what = f"{what}; it went back {MAX_ROLLBACKS} times, and never came further than this"
        self._report_event("nan", reason=what, action="the run ends", quantities={**broken})
        self.counters.skipped_updates += sum(broken.values())
        self._save(program, view)
        raise RunFailed(
            f"{what}. The last good state is kept: go on without such updates by `runnel resume {self.run_dir} "
            "--on-nan skip`,\nor train again with a lower learning rate, or where rewards and observations are finite"
        )

    def _skip(self, broken: Mapping[str, int]) -> None:
        if broken:
            times = sum(broken.values())
            self.counters.skipped_updates += times
            action = "the update was skipped" if times == 1 else f"{times} updates were skipped"
            self._report_event("nan", reason=self._first(broken), action=action, quantities={**broken})

    def _first(self, broken: Mapping[str, int]) -> str:
        counters = self.counters
        return f"{next(iter(broken))} was not finite at update {counters.updates:,} ({counters.env_steps:,} steps)"

    def _save(self, program: Program, view: LiveView, last: bool = False) -> None:
        if self.counters.iterations == self._saved_at_iteration or not self.counters.iterations:
            return
        saved, rest = program.save(), program.rest()
        self.rest = rest
        if rest is not None:
            self.stats.add(rest, self.built.graph.steps_per_iteration)
        counters = {
            **asdict(self.counters),
            **program.metric_window.saved(),
            "wall_seconds": self.stats.wall_seconds(),
        }
        try:
            path = self.checkpoints.save(self.counters.iterations, saved, counters)
        except Exception as error:  # orbax and what it stands on have errors of their own for a full disk
            self._not_saved(one_line(error), last)
            return
        self._saved_at_iteration = self.counters.iterations
        view.note(f"checkpoint {path.name}")
        taken = snapshots.take(saved["carry"].states, saved["carry"].updates, self.counters.env_steps)
        self.policies.keep(taken)
        self._newest_checkpoint = path
        self._call("on_checkpoint", {}, lambda: taken)

    def _not_saved(self, reason: str, last: bool) -> None:
        newest = None
        try:
            newest = self.checkpoints.newest()
            kept = "there is no whole one" if newest is None else f"the newest whole one is {newest}"
        except OSError:  # there may be no descriptor to look with
            kept = "earlier ones are kept"
        action = f"{kept}; " + ("the run ends" if last else "training goes on, the next is tried in its turn")
        self.events.record("checkpoint_failed", reason=f"a checkpoint could not be written: {reason}", action=action)
        if last:
            again = "" if newest is None else f"; make room and go on by `runnel resume {self.run_dir}`"
            raise RunFailed(f"the last checkpoint could not be written: {reason}; {kept}{again}")

    def _save_last(self, program: Program, view: LiveView) -> None:
        """The checkpoint at the end. If the user asked for the end, workers get less time to pause."""
        if not self.interrupted:
            return self._save(program, view, last=True)
        program.hurry()
        self._announce()
        self.events.record("interrupted", reason=self.asked, action=self._ending(), show=False)
        self._save(program, view, last=True)

    def _without_checkpoint(self, error: BaseException) -> None:
        """Ends an interrupted run whose workers do not pause."""
        newest = self.checkpoints.newest()
        kept = "there is no earlier one" if newest is None else f"the newest is {newest.name}"
        self.reason = f"no checkpoint could be made at the end; {kept} ({one_line(error)})"
        self.events.record("interrupted", reason=self.reason)

    def _announce(self) -> None:
        """Reports once that a signal has come, and what follows. Any thread may call it."""
        with self._announcing:
            if self._announced:
                return
            self._announced = True
        startup.end()
        asked = self.asked or self._stopping.asked
        self._say(f"interrupted: {asked}; {self._ending()}; once more ends at once")

    def _ending(self) -> str:
        if self.counters.iterations:
            return "ending with a checkpoint"
        return "ending before the first update" if self._watch is None else "ending after the iteration in progress"

    def _refuse(self, saved: dict[str, PyTree], counters: dict[str, Any]) -> str | None:
        """What is wrong with a checkpoint's content."""
        return RunCounters.problem(counters) or unsound(self.built.graph, saved["carry"], self.run_config.seed)

    def _load(self, program: Program, note: Callable[[str], None]) -> None:
        startup.phase("reading the checkpoint")
        like = {"carry": carry_types(self.built.graph, self.built.environment)}
        saved, counters = self.checkpoints.load(like, note, self._refuse)
        if self._watch is not None:
            startup.phase(self._at_start)
        if not saved["host"] and not is_traceable(self.built.environment):
            raise UserError(f"{self.run_dir} was trained on a JAX environment; it cannot go on with a host environment")
        self.stats.counters = RunCounters.of(counters)
        taken = self.counters.env_steps
        if taken - self.built.graph.steps_per_iteration >= self.run_config.steps:
            raise UserError(
                f"{self.run_dir} has taken {taken:,} steps already, and steps={self.run_config.steps} "
                "counts from its beginning; ask for more than it has",
                keywords=("steps",),
            )
        cut = program.load(saved, taken)
        program.metric_window.load(self.counters.env_sums, self.counters.env_episodes)
        if cut:
            self.counters.cut_episodes += cut
            note(f"{cut} episodes could not be replayed; they are cut and the next ones begun")
        self._saved_at_iteration = self.counters.iterations
        self.policies.rewind(taken)
        carry, per_iteration = saved["carry"], self.built.graph.steps_per_iteration
        self.policies.catch_up(snapshots.take(carry.states, carry.updates, taken), per_iteration)
        note(f"resumed at {self.counters.env_steps:,} steps")
        self.events.record("resumed", reason=f"at {self.counters.env_steps:,} steps", cut_episodes=cut)

    def _stop(self, number: int) -> None:
        """The first signal. It may come between any two instructions, so this only sets fields."""
        self.interrupted, self.asked = True, signal.Signals(number).name
        if self.program is not None:
            self.program.hurry()

    @contextlib.contextmanager
    def _at_once(self) -> Iterator[None]:
        """The second signal: workers are killed, not asked."""
        try:
            yield
        except Interrupted:
            self.pool.abort()
            raise

    def _last_word(self, reason: str) -> None:
        """This process hangs and is about to be ended: writes the result."""
        self.reason = self.reason or reason
        if self.begun or not self.resumed:
            self._write_bad_result("interrupted" if self._stopping.asked else "failed", None)
        self._say_how_to_go_on(self.reason)

    def _hang_watch(self) -> HangWatch:
        hang_after_s, stopping = self.run_config.hang_after_s, self._stopping
        return HangWatch(hang_after_s, self._steps, lambda: stopping.asked, self._say, stopping.interrupt)

    def _look(self) -> None:
        """Called in another thread, several times a second."""
        if self._stopping.asked:
            self._announce()
        if self._watch is not None:
            self._watch.look()

    def _at_start(self) -> str:
        """What a single-process run does before its first update."""
        held = None if self._watch is None else self._watch.held()
        return "making environments and compiling" if held is None else f"waits for {held}"

    def _steps(self) -> int:
        return -1 if self.program is None else self.program.steps + self.policies.steps

    def _say(self, text: str) -> None:
        self._says(text)

    def _print(self, text: str) -> None:
        if not self.quiet and sys.stdout is not None:
            print(printable(text), file=forgiving(sys.stdout), flush=True)

    def _left(self, stuck: Stuck) -> dict[str, Any]:
        """The environment hangs: the run ends without a checkpoint if the user asked for that, and fails otherwise."""
        if self.interrupted and (self.begun or not self.resumed):
            self._without_checkpoint(stuck)
            return self._write_bad_result("interrupted", None)
        newest = self.checkpoints.newest()
        kept = "there is no checkpoint" if newest is None else f"the newest checkpoint is {newest.name}"
        self._report_event("hang", reason=str(stuck), action="the run ends")
        error = RunFailed(f"{stuck}; {kept}. Correct the environment, or allow it more time with --hang-after")
        self._failed(error)
        raise error

    def _failed(self, error: BaseException) -> None:
        """Records the error that ends the run. An error in here must not hide it."""
        at_once = isinstance(error, Interrupted)
        self.reason = f"{error} after {self.asked}: ended at once" if at_once else one_line(error)
        refused = isinstance(error, UserError)  # before anything ran: the directory stays unchanged
        ran = self.begun or not (self.resumed or refused)
        if ran:
            with contextlib.suppress(Exception):
                self._write_bad_result("interrupted" if at_once else "failed", self.program)
        if at_once:
            self.events.record("interrupted", reason=self.reason, action="no checkpoint was written")
        if ran:
            self._say_how_to_go_on(self.reason if at_once else "failed")

    def _say_how_to_go_on(self, what: str) -> None:
        if self.quiet or sys.stderr is None:
            return
        newest = self.checkpoints.newest()
        again = f"go on by `runnel resume {self.run_dir}{self.pool.flags}`"
        on = "it has no checkpoint to go on from" if newest is None else again
        print(printable(f"{what}; the run is in {self.run_dir}: {on}"), file=forgiving(sys.stderr), flush=True)

    def _write_bad_result(self, status: str, program: Program | None) -> dict[str, Any]:
        """The result of a run that was interrupted or failed; if it never began, its configuration too."""
        if not self.begun:
            write_json_atomically(self.run_dir / "config.json", self.config)
        return self._write_result(status, program)

    def _write_result(self, status: str, program: Program | None) -> dict[str, Any]:
        result = {
            "status": status,
            "algorithm": self.built.plan.algorithm.lower(),
            "environment": self.config["environment"]["name"],
            "distribution": self.built.plan.distribution,
            "seed": self.run_config.seed,
            **self.stats.result(),
            **self.policies.result(),
            **outcome(
                program,
                self.built,
                self.pool.machines,
                self.counters,
                self.stats.startup_s is not None,
                self.pool.traffic(),
            ),
        }
        if self.reason is not None:
            result["reason"] = self.reason
        write_json_atomically(self.run_dir / "result.json", result)
        return result
