"""Very many members of one program, recorded together: one checkpoint and one log of metrics for all of them.

Separate sessions, as fewer members have, would cost more than the members' training. Here a single loop calls the
program, and its records have a row for each member. A member that ends before the others, because it has reached its
return or because one of its updates was not finite, gets its own checkpoint.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from runnel.errors import RunFailed, UserError
from runnel.execution.building import BuiltRun
from runnel.execution.members.backend import Standing, WaitingMember
from runnel.execution.members.stacked_evaluations import StackedEvaluations
from runnel.execution.members.stacked_row import StackRow
from runnel.execution.run import read_result
from runnel.execution.run_stats import Rate, RunCounters
from runnel.execution.session.end import out_of_memory
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.checkpoint_directory import Unreadable
from runnel.recording.events import EventLog
from runnel.recording.files import one_line, write_json_atomically
from runnel.recording.metrics import MetricsLog
from runnel.recording.stack_logs import ReturnsLog
from runnel.recording.stacks import StackCounters
from runnel.runtime.programs.carry import Carry
from runnel.runtime.programs.snapshots import SnapshotSchedule
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.programs.traced_settings import values_of
from runnel.runtime.single_process.cohort import CohortProgram

CALL_S: Final = 2.0
"""The target length of a call in seconds: after it, every member is checked."""


class StackedRun:
    """The members of one stack, from their start or resumption to the end of the last.

    It plays the role of `Session` and its parts in a single run. It is one class because its parts share the carries of
    all members: training, checkpoints and the ends of members each read and replace them.
    """

    def __init__(
        self, directory: Path, members: Sequence[tuple[WaitingMember, BuiltRun]], program: CohortProgram,
        traced: Sequence[str], parallel_calls: int, evaluations: StackedEvaluations, whole: int | None = None,
    ):  # fmt: skip
        """`traced`: the settings that are arguments of the program. `parallel_calls`: calls that run side by side.
        `whole`: the number of members of the stack, however few of them train."""
        self.directory, self.rows = directory, [StackRow(member, built) for member, built in members]
        self._program, self._traced, self._evaluations = program, traced, evaluations
        self._asked, self._per_iteration = members[0][0].asked, members[0][1].graph.steps_per_iteration
        self._schedule = SnapshotSchedule(self._asked.snapshot_periods)
        self._checkpoints, self._events = Checkpoints(directory), EventLog(directory)
        self._carries: list[Carry] = []  # parts of equal size, which train side by side
        # Of a stack whose members all end together, calls keep their size: a member's numbers depend on it.
        ends_alone = any(
            m.asked.stop_at_return is not None or m.asked.stop_at_eval_return is not None for m, _ in members
        )
        self._members, self._size = None if ends_alone else whole, 1
        self._parallel_calls, self._threads = parallel_calls, ThreadPoolExecutor(parallel_calls, "members")
        self._iterations_per_call, self._iteration = 1, 0
        self._began, self._wall_before, self._rate = time.monotonic(), 0.0, Rate()
        self._startup_s: float | None = None
        self._loaded = self.stopped = self.checkpoint_asked = False
        self.notes: list[str] = []
        self.left_out: list[tuple[WaitingMember, BuiltRun]] = []  # those that have checkpoints of their own

    def standing(self) -> dict[int, Standing]:
        """Called in another thread."""
        speed, live = self._rate.now(self._steps), self.live
        return {row.member.number: Standing(self._steps, row.counters.mean_return, speed) for row in live}

    @property
    def live(self) -> list[StackRow]:
        return [row for row in self.rows if not row.status]

    @property
    def _steps(self) -> int:
        """Environment steps of each member that trains."""
        return self._iteration * self._per_iteration

    def run(self) -> None:
        """Trains to the end. Afterwards every member has a result, even after an error."""
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self._events.close)
                stack.callback(self._threads.shutdown)
                resumed = self._load()
                self._loaded = True
                kept = self._steps if resumed else None
                log = stack.enter_context(MetricsLog(self.directory, keep_until_env_steps=kept, events=self._events))
                returns = stack.enter_context(contextlib.closing(ReturnsLog(self.directory, kept)))
                self._take_up_evaluations(kept)
                self._train(log, returns)
        except BaseException as error:
            shortage = out_of_memory(error)
            if self._loaded:  # else nothing was trained: what the members have says more
                self._end(self.live, "failed", one_line(shortage or error))
            if shortage is not None:
                raise shortage from error
            raise

    def _train(self, log: MetricsLog, returns: ReturnsLog) -> None:
        if not self.live:
            return
        self._evaluate_if_due(max(self._evaluations.newest_at, self._steps - self._per_iteration))
        saved_at = time.monotonic()
        while self.live and self._steps < self._asked.steps and not self.stopped:
            before = self._steps
            self.call()
            self._record(log, returns)
            self._evaluate_if_due(before)
            self._compact()
            if self.checkpoint_asked or time.monotonic() - saved_at > self._asked.checkpoint_every_s:
                self.checkpoint_asked = False
                self._save()
                saved_at = time.monotonic()
        self._rate.stop(self._steps)
        self._save(last=True)
        if not self.stopped:
            self._evaluate_last()
        self._end(self.live, "interrupted" if self.stopped else "finished")

    # Calls

    def call(self) -> None:
        """Trains all rows by the same number of iterations."""
        mark = self._schedule.next_mark(self._steps)
        stop = self._asked.steps if mark is None else min(self._asked.steps, mark)
        first = self._rate.started is None
        count = min(1 if first else self._iterations_per_call, -(-(stop - self._steps) // self._per_iteration))
        began = time.monotonic()
        list(self._threads.map(lambda part: self._advance(part, count), range(len(self._carries))))
        self._iteration += count
        if first:
            self._startup_s = time.monotonic() - self._began
            self._rate.start(self._steps)
        elif time.monotonic() - began < CALL_S / 2 and count == self._iterations_per_call:
            self._iterations_per_call *= 2

    def _advance(self, part: int, count: int) -> None:
        """Trains one part of the rows. The program returns early if a member ends, which then gets its checkpoint."""
        rows, done = self._rows_of(part), 0
        nobody = self._size - len(rows)  # rows that only fill the call
        settings = values_of([row.built.algorithm for row in [*rows, *rows[-1:] * nobody]], self._traced)
        skips = np.array([row.member.asked.on_nan == "skip" for row in rows] + [True] * nobody)
        while done < count:
            targets = np.array([row.target for row in rows] + [np.nan] * nobody, np.float32)
            self._carries[part], called = self._program.run(self._carries[part], settings, count - done, targets, skips)
            done += called.iterations
            window = jax.device_get(self._carries[part].window)
            for place, row in enumerate(rows):
                if not row.status:
                    row.take(called, jax.tree.map(lambda x, place=place: x[place], window), place, self._per_iteration)
            ending = [(place, row, ended) for place, row in enumerate(rows) if not row.status and (ended := row.ends())]
            carry = jax.device_get(self._carries[part]) if ending else self._carries[part]
            for place, row, ended in ending:
                self._leave(row, carry, place, *ended)

    def _rows_of(self, part: int) -> list[StackRow]:
        return self.rows[part * self._size : (part + 1) * self._size]

    def _leave(self, row: StackRow, stacked: Carry, place: int, status: str, reason: str) -> None:
        """Ends a member before the others: its current state becomes its own checkpoint."""
        carry = self._program.each(lambda x: np.asarray(x)[place], stacked, np.asarray)
        if status == "finished" and self._asked.eval_every is not None:
            self._evaluate_alone(row, carry)
        try:
            Checkpoints(row.member.directory).save(
                row.counters.iterations, {"carry": carry, "host": {}}, row.saved(self._wall_seconds())
            )
        except Exception as error:
            status, reason = "failed", f"its checkpoint could not be written: {one_line(error)}"
        self._events.record("member", reason=f"{row.member.directory.name} {status}{reason and ': ' + reason}")
        self._end([row], status, reason)

    def _compact(self) -> None:
        """Compiles the program for the remaining rows once half of them have ended, if members may end individually.

        Otherwise it keeps its size, so that numbers do not depend on the failures of other members.
        """
        live = self.live
        if not live or len(live) > len(self.rows) // 2 or self._members is not None:
            return
        places = [
            [k for k, row in enumerate(self._rows_of(part)) if not row.status] for part in range(len(self._carries))
        ]

        def own(*leaves: Any) -> np.ndarray:
            return np.concatenate([np.asarray(x)[np.array(k, int)] for x, k in zip(leaves, places, strict=True)])

        first, *others = self._carries
        whole = self._program.each(own, first, lambda x, *_: np.asarray(x), *others)
        self.rows = live
        self._divide(whole)

    def _divide(self, whole: Carry) -> None:
        """Spreads stacked rows over the calls that run side by side; the last row fills what is left over."""
        self._size = size = self._program.call_size(self._members or len(self.rows), self._parallel_calls)
        self._carries = []
        for start in range(0, len(self.rows), size):
            rows = np.minimum(np.arange(start, start + size), len(self.rows) - 1)
            part = self._program.each(lambda x, rows=rows: np.asarray(x)[rows], whole, np.asarray)
            self._carries.append(self._program.place(part))
        self._program.prepare(size)

    def _whole(self) -> Carry:
        """All rows, on the host."""
        first, *others = jax.device_get(self._carries)
        count = len(self.rows)
        return self._program.each(lambda *x: np.concatenate(x)[:count], first, lambda x, *_: np.asarray(x), *others)

    # What is recorded

    def _wall_seconds(self) -> float:
        return self._wall_before + time.monotonic() - self._began

    def _record(self, log: MetricsLog, returns: ReturnsLog) -> None:
        live = self.live or self.rows
        reached = [row.counters.mean_return for row in live]
        known = np.array([value for value in reached if value is not None])
        low, middle, high = np.quantile(known, [0.25, 0.5, 0.75]).tolist() if len(known) else (None,) * 3
        speed = self._rate.now(self._steps)
        log.write({
            "env_steps": self._steps, "wall_seconds": self._wall_seconds(), "members": len(live),
            "steps_per_second": None if speed is None else speed * len(live), "mean_return": middle,
            "return_q25": low, "return_q75": high, **_mean_out([row.progress for row in live if row.progress]),
        })  # fmt: skip
        returns.write(self._steps, {row.member.number: row.counters.mean_return for row in live})

    def _take_up_evaluations(self, env_steps: int | None) -> None:
        """Restores the earlier evaluations of members that resume."""
        for found in self._evaluations.rewind(env_steps):
            for row in self.rows:
                row.evaluated(found.get(row.member.number))

    def _evaluate_if_due(self, before: int) -> None:
        every = self._asked.eval_every
        if every is not None and self._steps // every > before // every and not self.stopped:
            self._evaluate()

    def _evaluate_last(self) -> None:
        if self._asked.eval_every is not None and self.live and self._evaluations.newest_at != self._steps:
            self._evaluate()

    def _evaluate(self) -> None:
        began = time.monotonic()
        states = [carry.states for carry in self._carries]
        live = [row for row in self.rows if not row.status]
        try:
            found = self._evaluations.play(self.rows, states, self._steps)
        except Exception as error:
            what = f"the evaluation at {self._steps:,} steps failed: {one_line(error)}"
            self._events.record("evaluation_failed", reason=what)
            if self._asked.eval_wait:
                self._save()
                raise RunFailed(what) from error
            return
        finally:
            self._rate.exclude(time.monotonic() - began)
        for row in live:
            row.evaluated(found.get(row.member.number))
        target = self._asked.stop_at_eval_return
        ending = [(k, row) for k, row in enumerate(self.rows) if not row.status and row.has_reached(target)]
        whole = self._whole() if ending else self._carries[0]
        for place, row in ending:
            self._leave(row, whole, place, "finished", "")

    def _evaluate_alone(self, row: StackRow, carry: Carry) -> None:
        """The evaluation at the end of a member that ends before the others."""
        if row.evaluation is not None and row.evaluation["env_steps"] == row.counters.env_steps:
            return
        try:
            states = jax.tree.map(lambda x: np.asarray(x)[None], carry.states)
            row.evaluated(self._evaluations.play([row], [states], row.counters.env_steps).get(row.member.number))
        except Exception as error:
            reason = f"the evaluation of {row.member.directory.name} at its end failed: {one_line(error)}"
            self._events.record("evaluation_failed", reason=reason)

    def _save(self, last: bool = False) -> None:
        live = self.live
        if not live or not self._iteration:
            return
        counters = {
            "iterations": self._iteration, "members": [row.member.number for row in self.rows],
            "ended": [row.member.number for row in self.rows if row.status],
            "rows": [row.saved(self._wall_seconds()) for row in self.rows],
        }  # fmt: skip
        try:
            self._checkpoints.save(self._iteration, {"carry": self._whole(), "host": {}}, counters)
        except Exception as error:
            self._events.record("checkpoint_failed", reason=f"a checkpoint could not be written: {one_line(error)}")
            if last:
                raise RunFailed(f"the last checkpoint could not be written: {one_line(error)}") from error

    def _load(self) -> bool:
        """Continues from the newest checkpoint of the stack; returns whether there was one."""
        if not self._checkpoints.all():
            alone = [Checkpoints(row.member.directory).newest() is not None for row in self.rows]
            self.left_out = [(row.member, row.built) for row, own in zip(self.rows, alone, strict=True) if own]
            self.rows = [row for row, own in zip(self.rows, alone, strict=True) if not own]
            self._refuse_lost()
            if not self.rows:
                return False
            made = [*self.rows, *self.rows[-1:] * ((self._members or 0) - len(self.rows))]
            seeds = [row.member.asked.seed for row in made]
            settings = values_of([row.built.algorithm for row in made], self._traced)
            self._divide(jax.device_get(self._program.fresh(seeds, settings)))
            return False
        carry, counters = self._newest()
        self._iteration = int(carry.iteration)
        by_number = {row.member.number: row for row in self.rows}
        places = [k for k, number in enumerate(counters.members) if self._goes_on(by_number.get(number), counters)]
        self.rows = [by_number.pop(counters.members[k]) for k in places]
        self.left_out = [(row.member, row.built) for row in by_number.values()]
        for row, k in zip(self.rows, places, strict=True):
            row.continue_from(counters.rows[k])
        self._wall_before = float(counters.rows[0].get("wall_seconds", 0.0))
        if places:
            self._divide(self._program.each(lambda x: np.asarray(x)[np.array(places)], carry, np.asarray))
        return True

    def _goes_on(self, row: StackRow | None, counters: StackCounters) -> bool:
        """Whether a member continues with its row: not one that ended before the others, or was continued alone."""
        if row is None or row.member.number in counters.ended:
            return False
        own = Checkpoints(row.member.directory).newest()
        return own is None or int(own.name) <= self._iteration

    def _newest(self) -> tuple[Carry, StackCounters]:
        """The newest valid checkpoint; others are skipped."""
        for path in reversed(self._checkpoints.all()):
            try:
                counters = StackCounters.of(self._checkpoints.counters(path))
                if counters is None:
                    raise Unreadable("it does not say whose rows it has")
                like = {"carry": self._program.types(len(counters.members))}
                saved, kept = self._checkpoints.load_at(path, like, self._remark)
                if problem := self._refuse(saved, kept):
                    raise Unreadable(problem)
                return saved["carry"], counters
            except (Unreadable, UserError) as problem:
                self._remark(f"checkpoint {path.name} cannot be read ({problem}); trying the one before it")
        raise RunFailed(f"none of the checkpoints in {self.directory} can be read; nothing was changed")

    def _refuse_lost(self) -> None:
        """Refuses to restart members that have trained, and whose checkpoints are gone."""
        for row in self.rows:
            result = read_result(row.member.directory) or {}
            if result.get("env_steps") and result.get("status") != "failed":
                raise RunFailed(
                    f"{self.directory} has no checkpoint, and {row.member.directory.name} has trained "
                    f"{result['env_steps']:,} steps; nothing was changed: train again in another directory"
                )

    def _refuse(self, saved: dict[str, Any], counters: dict[str, Any]) -> str | None:
        """The reason to refuse a checkpoint's content; None if it is valid."""
        found = StackCounters.of(counters)
        if found is None or len(found.members) != len(saved["carry"].seed):
            return "it does not say whose rows it has"
        for row in found.rows:
            if problem := RunCounters.problem(row):
                return problem
        for leaf in jax.tree.leaves(saved["carry"].states):
            if np.issubdtype(np.asarray(leaf).dtype, np.floating) and np.isnan(leaf).any():
                return "the state of a learner is not finite"
        return None

    def _remark(self, text: str) -> None:
        self._events.record("members", reason=text)
        self.notes.append(text)

    def _end(self, rows: Sequence[StackRow], status: str, reason: str = "") -> None:
        """Writes how members ended."""
        for row in rows:
            row.status, row.reason = status, reason
            speed = self._rate.overall() or self._rate.now(self._steps)
            with contextlib.suppress(OSError, UserError):
                write_json_atomically(
                    row.member.directory / "result.json", row.result(self._wall_seconds(), self._startup_s, speed)
                )


def _mean_out(progress: Sequence[ProgressDelta]) -> dict[str, float]:
    """The outputs of learning, as means over members."""
    names = dict.fromkeys(name for each in progress for name in each.out)
    return {f"learn/{name}": float(np.mean([p.out[name] for p in progress if name in p.out])) for name in names}
