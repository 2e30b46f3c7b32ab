"""One stretch of a run, from its start or resumption to its end.

A session runs a program in slices of a fraction of a second. Between two slices it writes metrics and checkpoints,
handles lost state and machines that join or leave, and checks whether the run should end. Its parts have separate
modules and share one `SessionState`: checkpoints, evaluations with callbacks, refused updates, and the end, which is
always one of three (finished, interrupted, failed).
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from runnel.algorithm import algorithm_name
from runnel.config import serialization
from runnel.config.jax_config import keep_off_devices
from runnel.errors import HostLost, RunFailed, StateLost, UserError, WorkerFailed
from runnel.execution.building import BuiltRun
from runnel.execution.callbacks import Callbacks
from runnel.execution.run import Run
from runnel.execution.run_stats import RunStats
from runnel.execution.session.checkpoints import SessionCheckpoints
from runnel.execution.session.end import SessionEnd, out_of_memory
from runnel.execution.session.evaluation import SessionEvaluation
from runnel.execution.session.refused_updates import RefusedUpdates
from runnel.execution.session.result import devices, usage_now
from runnel.execution.session.session_state import SessionState
from runnel.execution.snapshots.evaluation_task import MakeEvaluator, make_evaluator_of
from runnel.execution.supervision.machine_pool import MachinePool, SingleMachine, replanned
from runnel.recording import provenance, run_directory
from runnel.recording.files import as_user_error, write_json_atomically
from runnel.recording.metrics import MetricsLog
from runnel.recording.named_sinks import made
from runnel.recording.sinks import Sink
from runnel.recording.usage_file import UsageFile
from runnel.reporting import metrics_server, plan_file, report
from runnel.reporting.live_view import LiveView, forgiving
from runnel.reporting.run_summary import summary
from runnel.runtime.programs.snapshots import SnapshotSchedule
from runnel.runtime.single_process.program import Program, make_program
from runnel.runtime.usage import UsageReport
from runnel.system import startup
from runnel.system.exits import failure
from runnel.system.limits import RUN, check_descriptors, check_memory
from runnel.system.platform import open_descriptors
from runnel.system.signals import Interrupted, Stuck
from runnel.types import PyTree

REPORT_S = 0.1
"""The interval in seconds at which a program returns to report."""


class SharedParts(NamedTuple):
    """Parts that several runs in one process share. The `Run` of such a session has no states."""

    program: Program
    make_evaluator: MakeEvaluator
    held: Callable[[int], dict[str, PyTree] | None]
    """Maps an iteration to the state that the program saved there, if it still holds it: then the checkpoint is not
    read."""


class Session:
    """Runs a plan until it has taken its steps, reached its return, or been asked to stop.

    It is one class because it is one loop: everything that may happen between two slices of a run is listed here in
    order, and implemented in the parts of a session. Its parameters are one list because all but the first five have a
    default that a plain run keeps.
    """

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
        sinks: Sequence[Sink | str] = (),
        callbacks: Callbacks | None = None,
        initial: Mapping[str, PyTree] = MappingProxyType({}),
        shared: SharedParts | None = None,
    ):
        """`sinks`: receivers of metrics, or their names. `initial`: initial states by group. `shared`: parts that the
        run shares with others."""
        self._initial, self.sinks = initial, sinks
        self._first_opponents: Mapping[str, PyTree] | None = None
        self._shared = None if shared is None else shared.program
        self._requested = built  # as requested; with fewer machines, the present run may be smaller
        pool = pool or SingleMachine()
        self._first_cpus = sum(machine.cpus for machine in pool.machines)
        callbacks = callbacks or Callbacks()
        make_evaluator = make_evaluator_of if shared is None else shared.make_evaluator
        self.state = SessionState(
            run_dir, config, built, RunStats(began), pool, callbacks, quiet, resumed, make_evaluator
        )
        self.evaluation = SessionEvaluation(self.state)
        self.checkpoints = SessionCheckpoints(self.state, self.evaluation, None if shared is None else shared.held)
        self.refused = RefusedUpdates(self.state, self.checkpoints)
        self.end = SessionEnd(self.state)
        self._usage = UsageFile(run_dir)
        self._schedule = SnapshotSchedule(self.state.run_config.snapshot_periods)

    def run(self) -> Run:
        state = self.state
        with self.end.stopping, self.end.at_once(), contextlib.ExitStack() as stack:
            stack.callback(self._report)
            stack.callback(state.events.close)
            try:
                with self.end.at_once():
                    result = self._run(stack)
            except Stuck as stuck:
                result = self.end.leave_stuck(stuck)
            except (Exception, Interrupted) as problem:
                shortage = out_of_memory(problem)
                self.end.failed(shortage or problem)
                if shortage is not None:
                    raise shortage from problem
                raise
            except BaseException as problem:  # Ctrl-C is `Interrupted`: this one is raised by code of the run
                error = failure(problem)
                self.end.failed(error)
                raise error from None
        if not state.quiet and sys.stdout is not None:
            again = {"resumable": state.checkpoints.newest() is not None, "resume_flags": state.pool.flags}
            print(summary({**result, "run_dir": str(state.run_dir), **again}), file=forgiving(sys.stdout), flush=True)
        if isinstance(state.callbacks.error, Exception):
            raise state.callbacks.error
        # A shared program continues with its other members, and has dropped this one's state since it was closed.
        carry = state.program.carry if state.program is not None and self._shared is None else None
        return Run(result, state.run_dir, carry.states if carry is not None else {}, state.built)

    def _report(self) -> None:
        """Writes the report, once metrics and events are complete."""
        if self.state.ended and self._shared is None:  # of members of one program, their group writes them
            report.write(self.state.run_dir)

    def _run(self, stack: contextlib.ExitStack) -> dict[str, Any]:
        state = self.state
        for close in (self._close, state.policies.close, state.opponents.close):
            stack.callback(close)
        program = self._first_program()
        tuned = ", ".join(state.built.tuned)
        notes = [f"tuned for {state.config['environment']['name']}: {tuned}"] if tuned else []
        notes += state.built.plan.notes
        if state.resumed:
            self.checkpoints.load(program, notes.append, self._checkpoint_is_read)
        view = stack.enter_context(LiveView(state.run_config.steps, state.quiet, self._title()))
        startup.through(view.starting)
        state.says = view.note
        for note in notes:
            view.note(note)
        state.events.note = view.event
        log = stack.enter_context(self._begin())
        state.callbacks.begin(state.counters.env_steps)
        self._train(log, view)
        state.policies.settle()
        self._report_rejections(at_once=True)
        return self.end.write_result("interrupted" if state.interrupted else "finished", state.program)

    def _checkpoint_is_read(self) -> None:
        if self.end.watch is not None:
            startup.phase(self.end.at_start)

    def _first_program(self) -> Program:
        """Starts the program; a machine may be lost before it has started."""
        while True:
            try:
                self.state.program = self._program()
                return self.state.program
            except HostLost as lost:
                self.state.pool.leave(lost.host)
                self.state.built = replanned(self._requested, self._first_cpus, self.state.pool.machines)

    def _close(self) -> None:
        if self.state.program is not None:
            self.state.program.close()

    def _title(self) -> str:
        algorithm = algorithm_name(self.state.built.algorithm)
        return f"{algorithm} on {self.state.built.graph.spec.name}, {self.state.built.plan.distribution}"

    def _begin(self) -> MetricsLog:
        """Writes this session's files into the run directory. A session that is refused before changes nothing."""
        state = self.state
        state.begun = True
        write_json_atomically(state.run_dir / "config.json", state.config)
        provenance.record(state.run_dir, devices(state.pool.machines))
        plan_file.write(state.run_dir, state.built.plan)
        with as_user_error(state.run_dir / "result.json"):
            for name in ("result.json", report.FILE):
                run_directory.remove(state.run_dir, name)
        kept = state.counters.env_steps if state.resumed else None
        wandb = state.config if state.run_config.wandb else None
        if self._shared is None:
            metrics_server.describe(self._names(), state.run_config.steps)
        sinks = made(self.sinks, state.run_dir, state.config)
        return MetricsLog(state.run_dir, keep_until_env_steps=kept, wandb=wandb, events=state.events, sinks=sinks)

    def _names(self) -> dict[str, Any]:
        """Labels that identify the run in sinks."""
        built = self.state.built
        return {
            "run": self.state.run_dir.name, "algorithm": built.plan.algorithm.lower(),
            "environment": self.state.config["environment"]["name"], "distribution": built.plan.distribution,
            "seed": self.state.run_config.seed, "version": self.state.config["runnel_version"],
        }  # fmt: skip

    def _program(self) -> Program:
        state = self.state
        plan, graph = state.built.plan, state.built.graph
        if not plan.hosts:
            check_memory(graph.bytes, plan.on_cpus)
        if plan.workers == 1:
            check_descriptors(open_descriptors() + RUN)
            startup.phase(self.end.at_start)
            seed, environment = state.run_config.seed, state.built.environment
            program = self._shared or make_program(plan, graph, environment, seed, state.report_event, self._schedule)
            program.begin_from(self._begins_with())
            return program
        from runnel.execution.supervision.distributed_program import DistributedProgram

        startup.phase(f"starting {plan.workers} workers")
        machines = state.pool.machines
        keep_off_devices(machines[0])
        config = {**state.config, "distribution": serialization.to_json(state.built.distribution)}
        program = DistributedProgram(
            state.built, config, state.run_dir, state.pool.site(state.run_dir / "logs"), machines, state.report_event
        )
        program.begin_from(self._begins_with())
        return program

    def _begins_with(self) -> Mapping[str, PyTree]:
        """By group: the states to begin with instead of fresh ones."""
        if self.state.resumed or not self.state.opponents:
            return self._initial
        if self._first_opponents is None:
            self._first_opponents = self.state.opponents.begin(self._initial)
        return {**self._initial, **self._first_opponents}

    def _report_rejections(self, at_once: bool = False) -> None:
        for details in self.state.pool.rejections(at_once):
            self.state.report_event("rejected", **details)

    def _train(self, log: MetricsLog, view: LiveView) -> None:
        """Trains to the end; returns to the newest checkpoint whenever the state is lost."""
        while True:
            assert self.state.program is not None
            try:
                return self._train_on(self.state.program, log, view)
            except (StateLost, WorkerFailed) as error:
                if self.state.interrupted:
                    return self.end.without_checkpoint(error)
                if not isinstance(error, StateLost):
                    raise
                lost: StateLost | None = error
            while lost is not None:
                try:
                    if isinstance(lost, HostLost):
                        self._leave(lost)
                    self.checkpoints.roll_back(self.state.program, log, view, str(lost))
                    lost = None
                except StateLost as another:  # meanwhile
                    lost = another

    def _leave(self, lost: HostLost) -> None:
        """Continues without a machine."""
        self.state.report_lost(lost, "the run resumes from a checkpoint on the remaining machines")
        self.state.pool.leave(lost.host)
        self._move()

    def _move(self) -> None:
        """Plans and starts the program again, on the present machines."""
        self._close()
        self.state.program = None
        self.state.built = replanned(self._requested, self._first_cpus, self.state.pool.machines)
        with contextlib.suppress(UserError):  # it is only shown
            plan_file.write(self.state.run_dir, self.state.built.plan)
        self.state.program = self._program()

    def _grow(self, log: MetricsLog, view: LiveView) -> None:
        """Continues on machines that have joined too, from the checkpoint just written."""
        names, failed = self.state.pool.grow()
        for name, why in failed.items():
            self.state.report_event("join_failed", worker=name, reason=why, action="the run continues without it")
        if names:
            self.state.report_event("joined", reason=", ".join(names), action="workers are spread over all machines")
            self._move()
            assert self.state.program is not None
            self.checkpoints.roll_back(self.state.program, log, view, f"{', '.join(names)} joined")

    def _train_on(self, program: Program, log: MetricsLog, view: LiveView) -> None:
        state = self.state
        wanted, per_iteration = state.run_config.steps, state.built.graph.steps_per_iteration
        target = state.run_config.stop_at_return
        target = math.inf if target is None else target
        saved_at, progress = time.monotonic(), None
        reached = state.counters.mean_return is not None and state.resumed and state.counters.mean_return >= target
        reached |= state.policies.reached
        while state.counters.env_steps < wanted and not (state.interrupted or reached or state.callbacks.stopped):
            # Workers may have reached a decision while they paused for the checkpoint.
            self._exchange_opponents(program)
            left = math.ceil((self._next_stop(wanted) - state.counters.env_steps) / per_iteration)
            seconds, left = (REPORT_S, left) if state.stats.startup_s is not None else (0.0, 1)
            progress = program.run(left, seconds, target, self.end.asked_to_end)
            state.stats.add(progress, state.built.graph.steps_per_iteration)
            reached = progress.reached
            if state.stats.startup_s is None and progress.updates:
                state.stats.first_update()
                program.measure()
            reached |= self._hand_over(program, view)
            self._exchange_opponents(program)
            self.evaluation.take_in_time(program)
            lately = program.report(recent=True)
            record = {**state.stats.metrics(progress, lately), **state.policies.metrics()}
            log.write(record)
            state.newest_metrics = record
            self._show(record, lately, view)
            if state.stats.startup_s is not None:
                startup.end()
                if self._shared is None:
                    self._usage.write(lambda lately=lately: usage_now(lately, state))
            self.refused.handle(progress.broken, program, log, view)
            if progress.updates and state.callbacks.is_due(state.counters.env_steps):
                self.evaluation.call("on_update", lambda program=program: self.evaluation.snapshot_now(program))
            self._report_rejections()
            grows = state.pool.grows() and not state.built.plan.synchronous
            due = time.monotonic() - saved_at > state.run_config.checkpoint_every_s
            if grows or due or state.checkpoint_asked:
                state.checkpoint_asked = False
                self.checkpoints.save(program, view)
                if state.rest is not None:
                    self.refused.handle(state.rest.broken, program, log, view)
                saved_at = time.monotonic()
            if grows:
                self._grow(log, view)
                program = state.program or program
        state.stats.rate.stop(state.counters.env_steps)
        self._save_last(program, view)
        evaluated = state.policies.metrics()
        self.evaluation.evaluate_last(program, view)
        if state.rest is not None:  # workers have reported more since: the last line is the state at the end
            self.refused.skip(state.rest.broken)
        last = state.rest or progress
        if last is not None:
            lately = program.report(recent=True)
            record = {**state.stats.last_metrics(last, lately), **state.policies.metrics()}
            log.write(record)
            if state.policies.metrics() != evaluated:
                self._show(record, lately, view)

    def _show(self, record: Mapping[str, Any], lately: UsageReport, view: LiveView) -> None:
        view.update(record, lately)
        if self._shared is None:  # a group reports of its members
            metrics_server.report(record, lately)

    def _hand_over(self, program: Program, view: LiveView) -> bool:
        try:
            return self.evaluation.hand_over(program, view)
        except RunFailed:  # an evaluation that the run waited for: what was trained is kept
            with contextlib.suppress(Exception):
                self._exchange_opponents(program)  # a checkpoint is of the state after the decisions that were due
                self.checkpoints.save(program, view)
            raise

    def _next_stop(self, wanted: int) -> int:
        """The environment step up to which training continues without interruption."""
        mark = self._schedule.next_mark(self.state.counters.env_steps)
        stops = [wanted, mark if self.state.run_config.eval_wait else None]
        stops.append(self.state.opponents.next_mark(self.state.counters.env_steps))
        if self.state.built.plan.workers == 1:  # pausing workers would cost more than a late call
            stops.append(self.state.callbacks.next_mark(self.state.counters.env_steps))
        return min(stop for stop in stops if stop is not None)

    def _exchange_opponents(self, program: Program) -> None:
        """Exchanges the policies of the opponents' places if that is due."""
        state = self.state
        if state.opponents.due(state.counters.env_steps):
            change = state.opponents.change(state.counters.env_steps, lambda: program.listen(0.0))
            rest, cut = program.exchange(change)
            if rest is not None:
                state.stats.add(rest, state.built.graph.steps_per_iteration)
            state.counters.cut_episodes += cut

    def _save_last(self, program: Program, view: LiveView) -> None:
        """The checkpoint at the end. If the user asked for the end, workers get less time to pause."""
        if not self.state.interrupted:
            return self.checkpoints.save(program, view, last=True)
        program.hurry()
        self.end.announce()
        self.state.events.record("interrupted", reason=self.state.asked, action=self.end.ending(), show=False)
        self.checkpoints.save(program, view, last=True)
