"""The trials of a sweep, in Optuna's storage and from Optuna's samplers.

The storage is a journal of Optuna's, a line of JSON for every change: Optuna's dashboard reads it, nothing in it is
executed, and a line truncated by a kill is dropped. A trial is one line, with all its settings, before it is trained;
so a resumed sweep trains the same trials.

A sampler's proposal depends on the specification, the trial's number and the record of earlier trials: each proposal
has its own sampler, seeded by (seed, trial), and a study in memory that is built from the record.
"""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.config import search_space
from runnel.config.search_space import Choice, IntUniform, LogUniform
from runnel.errors import NotInstalled, UserError
from runnel.execution.sweeps.schedule import TrialOutcome, TrialRecord
from runnel.recording import run_directory
from runnel.recording.files import AppendOnlyFile, as_user_error
from runnel.recording.sweep_file import JOURNAL, SweepSpec

MOST_BYTES: Final = 1 << 28
LONGEST: Final = 1 << 20
STUDY: Final = "sweep"


class Trial(NamedTuple):
    """A trial that has begun."""

    settings: dict[str, Any]
    record: TrialRecord
    ended: TrialOutcome | None
    reason: str | None = None  # why it failed
    retried: bool = False  # whether it found too little memory once


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise NotInstalled("a sweep", "Optuna 5", "sweep") from None
    if int(optuna.__version__.partition(".")[0]) < 5:
        raise UserError(f"found Optuna {optuna.__version__}, expected 5 or newer: pip install -U 'runnel[sweep]'")
    return optuna


class TrialStore:
    """The record of a sweep's trials, in its directory. Only the process that holds the directory's lock writes it."""

    def __init__(self, directory: Path, spec: SweepSpec):
        self._optuna = import_optuna()
        self._spec, self._path = spec, directory / JOURNAL
        self._labels = {name: _labels(values) for name, values in spec.space.items()}
        self._space = {name: self._distribution(name) for name in spec.space}
        self._journal = _JsonLines(directory)
        try:
            self._storage = self._opened()
            self._study = self._storage.get_study_id_from_name(STUDY)
            self._check(self.trials())
        except BaseException:
            self.close()
            raise

    def _check(self, trials: list[Trial]) -> None:
        """Refuses a record that is not of this specification: one of the two was edited."""
        spec = self._spec
        most = len(search_space.grid(spec.space)) if spec.sampler == "grid" else spec.trials
        last = len(spec.rungs) - 1
        complete = all(trial.record.done(last) for trial in trials if trial.ended == "complete")
        if len(trials) > spec.trials or spec.trials > most or not complete:
            raise UserError(f"{self._path} is not the record of the sweep in sweep.json; was one of them edited?")

    def trials(self) -> list[Trial]:
        """All trials that have begun, by number."""
        try:
            return [self._trial(each) for each in self._stored()]
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise self._not_ours(error) from None

    def add(self, settings: Mapping[str, Any]) -> None:
        """Records a trial that begins."""
        params = {name: self._labels[name][0](value) for name, value in settings.items()}
        state = self._optuna.trial.TrialState.RUNNING
        with _quietly(self._optuna):
            made = self._optuna.trial.create_trial(state=state, params=params, distributions=self._space)
            self._storage.create_new_trial(self._study, made)

    def report(self, trial: int, rung: int, value: float) -> None:
        """Records what a trial has reached at the end of a rung."""
        with _quietly(self._optuna):
            self._storage.set_trial_intermediate_value(self._id(trial), self._spec.rungs[rung], value)

    def retry(self, trial: int) -> None:
        """Records that a trial is repeated, because it ran out of memory."""
        with _quietly(self._optuna):
            self._storage.set_trial_user_attr(self._id(trial), "retried", True)

    def end(self, trial: int, outcome: TrialOutcome, reason: str | None = None) -> None:
        """Records that a trial has nothing left to train."""
        states = self._optuna.trial.TrialState
        state = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[outcome]
        record = self.trials()[trial].record
        last = None if outcome == "failed" else [record.values[max(record.values)]]
        with _quietly(self._optuna):
            if reason:
                self._storage.set_trial_user_attr(self._id(trial), "reason", reason)
            self._storage.set_trial_state_values(self._id(trial), state, last)

    def propose(self, number: int, attempt: int = 0) -> dict[str, Any]:
        """The settings of trial `number`. `attempt`: the number of unusable proposals for it so far."""
        if self._spec.sampler == "grid":
            return search_space.grid(self._spec.space)[number]
        seed = int(np.random.SeedSequence([self._spec.seed, number, attempt]).generate_state(1)[0])
        samplers = self._optuna.samplers
        sampler = samplers.TPESampler(seed=seed) if self._spec.sampler == "tpe" else samplers.RandomSampler(seed=seed)
        with _quietly(self._optuna):
            study = self._optuna.create_study(direction="maximize", sampler=sampler)
            study.add_trials(self._stored())
            params = study.ask(self._space).params
        return {name: self._labels[name][1](params[name]) for name in self._spec.space}

    def close(self) -> None:
        self._journal.close()

    def _opened(self) -> Any:
        storages, directions = self._optuna.storages, self._optuna.study.StudyDirection
        backend = type("Backend", (storages.journal.BaseJournalBackend,), {
            "read_logs": lambda _, start: self._journal.read(start),
            "append_logs": lambda _, logs: self._journal.append(logs),
        })  # fmt: skip
        with _quietly(self._optuna):
            try:
                storage = storages.JournalStorage(backend())
                studies = storage.get_all_studies()
            except UserError:
                raise
            except Exception as error:  # what a line that Optuna never wrote leads to there
                raise self._not_ours(error) from None
            if not studies:
                storage.create_new_study([directions.MAXIMIZE], STUDY)
            elif [(s.study_name, s.directions) for s in studies] != [(STUDY, [directions.MAXIMIZE])]:
                raise self._not_ours("found another study")
        return storage

    def _stored(self) -> list[Any]:
        with _quietly(self._optuna):
            return self._storage.get_all_trials(self._study)

    def _id(self, trial: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._study, trial)

    def _trial(self, stored: Any) -> Trial:
        """A trial as plain data, checked: the file may have been edited."""
        settings = {name: self._labels[name][1](stored.params[name]) for name in self._spec.space}
        rungs = {steps: rung for rung, steps in enumerate(self._spec.rungs)}
        values = {rungs[steps]: value for steps, value in stored.intermediate_values.items()}
        states = self._optuna.trial.TrialState
        ended: dict[Any, TrialOutcome] = {states.COMPLETE: "complete", states.PRUNED: "pruned", states.FAIL: "failed"}
        if stored.state not in (*ended, states.RUNNING) or stored.params.keys() != settings.keys():
            raise ValueError(f"found trial {stored.number} with a state or settings that it cannot have")
        if not all(search_space.contains(self._spec.space[name], value) for name, value in settings.items()):
            raise ValueError(f"found settings of trial {stored.number} outside the space")
        if not all(type(value) in (int, float) and math.isfinite(value) for value in values.values()):
            raise ValueError(f"found values of trial {stored.number} that are no numbers")
        if sorted(values) != list(range(len(values))) or (ended.get(stored.state) == "pruned" and not values):
            raise ValueError(f"found trial {stored.number} without the values of a rung")
        reason = stored.user_attrs.get("reason")
        outcome = ended.get(stored.state)
        reason = None if reason is None else str(reason)[:500]
        retried = stored.user_attrs.get("retried") is True
        return Trial(settings, TrialRecord(values, outcome == "failed"), outcome, reason, retried)

    def _distribution(self, name: str) -> Any:
        values, distributions = self._spec.space[name], self._optuna.distributions
        if isinstance(values, Choice):
            return distributions.CategoricalDistribution([self._labels[name][0](value) for value in values.values])
        if isinstance(values, IntUniform):
            return distributions.IntDistribution(values.low, values.high)
        return distributions.FloatDistribution(values.low, values.high, log=isinstance(values, LogUniform))

    def _not_ours(self, error: Any) -> UserError:
        return UserError(f"{self._path} is not the record of this sweep ({str(error)[:200]}); was the file edited?")


@contextlib.contextmanager
def _quietly(optuna: Any) -> Iterator[None]:
    """Silences Optuna's log lines, and its warnings about experimental features."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _labels(values: search_space.Range) -> tuple[Any, Any]:
    """Maps values of a setting to Optuna's labels, and back: its choices are numbers and text only."""
    if not isinstance(values, Choice) or not any(isinstance(value, tuple) for value in values.values):
        return (lambda value: value), (lambda label: label)
    by_label = {repr(value): value for value in values.values}
    return repr, by_label.__getitem__


class NotRecorded(Exception):
    """The record of the trials could not be written, such as on a full disk: the sweep ends, and can be resumed."""


class _JsonLines:
    """Whole lines of JSON in a file."""

    def __init__(self, directory: Path):
        self._directory = directory
        with as_user_error(directory / JOURNAL):
            self._drop_what_was_cut()
            lines = self._content().splitlines()
            self._logs = [self._decoded(line) for line in lines]
            self._file = AppendOnlyFile(directory / JOURNAL)

    def read(self, start: int) -> Iterable[dict[str, Any]]:
        return iter(self._logs[start:])

    def append(self, logs: Sequence[dict[str, Any]]) -> None:
        lines = [json.dumps(log, separators=(",", ":"), allow_nan=False) for log in logs]
        try:
            self._file.write("".join(f"{line}\n" for line in lines).encode())
            self._file.sync()
        except OSError as error:
            raise NotRecorded(f"cannot write {self._directory / JOURNAL}: {error.strerror or error}") from error
        self._logs += [json.loads(line) for line in lines]

    def close(self) -> None:
        self._file.close()

    def _content(self) -> bytes:
        exists = run_directory.exists(self._directory, JOURNAL)
        return run_directory.read(self._directory, JOURNAL, MOST_BYTES) if exists else b""

    def _drop_what_was_cut(self) -> None:
        """A process that was killed may have left half a line, to which the next would be appended."""
        content = self._content()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            run_directory.truncate(self._directory, JOURNAL, whole)

    def _decoded(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line) if len(line) <= LONGEST else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UserError(
                f"{self._directory / JOURNAL} has a line that is no record of a trial; was the file edited?"
            )
        return found
