"""The loop of a sweep: selects the next batch, creates its trials and their members, trains them, records results.

It is short because it has no state of its own: `next_step` computes the next batch from the record alone, so a sweep
that was killed resumes as if it had not been.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from runnel.config import search_space
from runnel.errors import UserError
from runnel.execution.members.fused_members import SharedPrograms
from runnel.execution.members.member_group import MemberGroup, Members
from runnel.execution.members.training import MemberMaker, add_members
from runnel.execution.run_directories import alone
from runnel.execution.sweeps.results import MemberOutcomes, member_outcomes, objective, sweep_result
from runnel.execution.sweeps.schedule import HalvingSchedule, TrialBatch, best, next_step
from runnel.execution.sweeps.trials import NotRecorded, TrialStore
from runnel.planning.plan import plural
from runnel.recording import members_file, provenance, run_directory, sweep_file
from runnel.recording.files import as_user_error, write_json_atomically
from runnel.recording.sweep_file import SweepSpec
from runnel.reporting import report
from runnel.reporting.live_view import forgiving
from runnel.reporting.sweep_report import PICTURE, draw, sweep_summary
from runnel.system.signals import StopRequest

ATTEMPTS: Final = 20
"""The number of proposals for a trial: settings that are valid individually may not fit together."""


@dataclass(frozen=True)
class Sweep:
    """A sweep that has ended."""

    result: dict[str, Any]  # as in result.json
    run_dir: Path
    winner: Members | None  # the best settings on unseen seeds

    @property
    def best(self) -> dict[str, Any] | None:
        """The settings of the best trial; None where no trial was trained to the end."""
        found = self.result.get("best")
        return None if found is None else dict(found["settings"])

    def __repr__(self) -> str:
        names = ("status", "algorithm", "environment", "best")
        facts = [f"{name}={self.result[name]!r}" for name in names if name in self.result]
        return f"Sweep({', '.join([*facts, f'run_dir={str(self.run_dir)!r}'])})"


class SweepDriver:
    """The loop of a sweep. The caller holds the lock of its directory."""

    def __init__(
        self, directory: Path, spec: SweepSpec, maker: MemberMaker, began: float, quiet: bool, launcher: str,
        address: str | None, trust: Collection[str] = (),
    ):  # fmt: skip
        self._directory, self._spec, self._maker, self._began, self._quiet = directory, spec, maker, began, quiet
        self._where: dict[str, Any] = {"launcher": launcher, "address": address, "trust": trust}
        self._schedule = HalvingSchedule(spec.trials, spec.batch, spec.rungs, spec.eta)
        self._programs = SharedPrograms(varying=search_space.floats(spec.space))
        self._before = members_file.read_result(directory)
        self._asked = ""  # the signal that has asked the sweep to end
        self._trained = False  # whether there was something left to train

    def run(self) -> Sweep:
        with StopRequest(self._stop), contextlib.closing(TrialStore(self._directory, self._spec)) as store:
            reason = self._search(store)
            trials = store.trials()
            number = best(self._schedule, [trial.record for trial in trials])
            winner: Members | None = None
            if number is not None and not reason and not self._asked:
                winner, reason = self._crown(trials[number].settings)
            if number is None and not reason and not self._asked:
                failed = next((trial.reason for trial in trials if trial.reason), "no episode ended")
                reason = f"no trial was trained to the end: {failed}"
        took = time.monotonic() - self._began if self._trained else 0.0
        seconds = self._before.get("wall_seconds", 0.0) + took
        result = sweep_result(self._directory, self._spec, trials, number, winner, self._asked, reason, seconds)
        changed = self._trained or self._before.get("status") != result["status"]
        if changed:
            write_json_atomically(self._directory / "result.json", result)
        if number is not None and (changed or not run_directory.exists(self._directory, PICTURE)):
            draw(self._spec.space, result["trials"], self._directory)
        if changed:
            report.write(self._directory)
        if not self._quiet and sys.stdout is not None:
            print(sweep_summary(result, self._directory), file=forgiving(sys.stdout), flush=True)
        return Sweep(result, self._directory, winner)

    def _search(self, store: TrialStore) -> str:
        """Trains batch after batch; returns the reason why the sweep cannot continue, if any."""
        try:
            return self._search_on(store)
        except NotRecorded as problem:
            return str(problem)

    def _search_on(self, store: TrialStore) -> str:
        while True:
            trials = store.trials()
            step = next_step(self._schedule, [trial.record for trial in trials])
            for number, outcome in sorted(step.ended.items()):
                if trials[number].ended is None:
                    store.end(number, outcome)
            if step.batch is None or self._asked:
                return ""
            self._begin(store, step.batch)
            if self._asked:
                return ""
            self._train(step.batch, store)
            reason = self._report(store, step.batch)
            if reason or self._asked:
                return "" if self._asked else reason

    def _begin(self, store: TrialStore, batch: TrialBatch) -> None:
        """Records the trials of a batch and creates their members, unless they exist."""
        for number in batch.trials[max(0, len(store.trials()) - batch.trials[0]) :] if batch.rung == 0 else ():
            store.add(self.proposed(store, number))
        listed = members_file.read(self._directory) if members_file.holds_members(self._directory) else []
        maker = replace(self._maker, _made={})
        made = []
        for number, trial in enumerate(store.trials()):
            if self._spec.members_of(number).start >= len(listed):
                made += maker.make(trial.settings, self._spec.seeds)
        if made:
            add_members(self._directory, made, self._spec.trials * len(self._spec.seeds))
        if len(listed) + len(made) != len(store.trials()) * len(self._spec.seeds):
            path = self._directory / members_file.FILE
            raise UserError(f"{path}: found other members than those of the trials; was the file edited?")

    def proposed(self, store: TrialStore, number: int) -> dict[str, Any]:
        """Settings for a trial that fit together."""
        problem: UserError | None = None
        for attempt in range(ATTEMPTS):
            settings = store.propose(number, attempt)
            try:
                replace(self._maker, _made={}).built(settings)
                return settings
            except UserError as error:
                problem = error
        raise UserError(f"trial {number}: found {ATTEMPTS} proposals that cannot be trained: {problem}; narrow over=",
                        keywords=("over",))  # fmt: skip

    def _train(self, batch: TrialBatch, store: TrialStore) -> None:
        if not self._trained:
            provenance.record(self._directory, {})
        self._trained = True
        steps, known = self._spec.rungs[batch.rung], store.trials()
        left = [t for t in batch.trials if not known[t].record.done(batch.rung)]
        members = [m for t in left for m in self._spec.members_of(t)]
        of = f" of rung {batch.rung + 1}/{len(self._spec.rungs)}" if len(self._spec.rungs) > 1 else ""
        count, seeds = plural(len(batch.trials), "trial"), plural(len(self._spec.seeds), "seed")
        title = f"{count}{of} up to {steps:,} steps, {seeds} each; {plural(self._spec.trials, 'trial')} in all"
        group = MemberGroup(
            self._directory, self._quiet, self._began, steps=steps, only=members, programs=self._programs, title=title,
            batch=[m for t in batch.trials for m in self._spec.members_of(t)], **self._where,
        )  # fmt: skip
        group.train(asked=lambda: self._asked)
        self._asked = self._asked or group.asked

    def _report(self, store: TrialStore, batch: TrialBatch) -> str:
        """Records the results of a batch's trials, in order; returns the reason if that is impossible."""
        members = members_file.read(self._directory)
        steps = self._spec.rungs[batch.rung]
        found: dict[int, MemberOutcomes] = {}
        for number in batch.trials:
            own = [self._directory / members[m].directory for m in self._spec.members_of(number)]
            found[number] = member_outcomes(own, steps)
        unfinished = [reason for each in found.values() for reason in each.unfinished]
        if unfinished:
            return unfinished[0]
        trials = store.trials()
        for number, each in found.items():
            value = objective(each)
            if trials[number].record.done(batch.rung):
                continue  # of a sweep that was killed while it recorded them
            if each.exhausted and not trials[number].retried:
                store.retry(number)  # the batch is not over: this trial resumes from its newest checkpoints
            elif value is None:
                why = [*each.failed, *each.exhausted, "no episode ended, or none has what trials are compared by"]
                store.end(number, "failed", why[0])
            else:
                store.report(number, batch.rung, value)
        return ""

    def _crown(self, settings: Mapping[str, Any]) -> tuple[Members | None, str]:
        """Writes best.json, and trains the best settings on unseen seeds; returns the reason if that is impossible."""
        made = self._maker.make(settings, [*self._spec.winner_seeds, self._spec.seeds[0]])
        config = {**made.pop().config, "steps": self._spec.rungs[-1]}
        if not run_directory.exists(self._directory, sweep_file.BEST):
            write_json_atomically(self._directory / sweep_file.BEST, config)
        if not made:
            return None, ""
        directory = self._directory / sweep_file.WINNER
        with as_user_error(directory):
            run_directory.make_directory(self._directory, sweep_file.WINNER)
        with alone(directory):
            if not members_file.holds_members(directory):
                add_members(directory, made, len(made))
            before = members_file.read_result(directory)
            self._trained |= before.get("finished") != len(made)
            title = f"the best settings on {plural(len(made), 'unseen seed')}"
            group = MemberGroup(
                directory,
                self._quiet,
                time.monotonic(),
                programs=self._programs,
                title=title,
                asked_in=self._directory,
                **self._where,
            )
            members = group.run(lambda: self._asked)
            self._asked = self._asked or group.asked
        return members, next(iter(member_outcomes(members.members, self._spec.rungs[-1]).unfinished), "")

    def _stop(self, number: int) -> None:
        self._asked = signal.Signals(number).name
