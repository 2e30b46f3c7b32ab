"""Evaluations of very many members: all are played at once, with their parameters stacked."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from runnel.errors import RunFailed, UserError
from runnel.execution.members.stacked_row import StackRow
from runnel.execution.snapshots.evaluation_task import SharedEvaluations, task_of
from runnel.execution.snapshots.policy_recorder import SEED_OFFSET, check_metric, score_of
from runnel.recording import stack_logs
from runnel.reporting.statistics import confidence_interval, evaluation_statistics, flat
from runnel.runtime.single_process.evaluation import CompiledEvaluator, PlayedEpisodes
from runnel.runtime.single_process.stacked_evaluation import StackedEvaluator
from runnel.types import PyTree


class StackedEvaluations:
    """The evaluations of one stack."""

    def __init__(self, directory: Path, evaluations: SharedEvaluations):
        self.directory, self._shared = directory, evaluations
        self._programs: dict[int, StackedEvaluator] = {}  # by the identity of what they compute
        self._of_member: dict[int, tuple[int, int]] = {}  # by number: which of them, and the seed
        self.newest_at = -1
        self._lock = threading.Lock()  # members that end alone are evaluated in the threads that train them

    def rewind(self, env_steps: int | None) -> list[dict[int, dict[str, Any]]]:
        """Drops evaluations of later parameters, which will be repeated; returns the others by member."""
        stack_logs.rewind(self.directory, stack_logs.EVALUATIONS, env_steps)
        kept = []
        for line in stack_logs.read_evaluations(self.directory):
            self.newest_at = line["env_steps"]
            rows = zip(line["members"], line["returns"], line["scores"], strict=True)
            kept.append({n: _summary(returns, score, line["env_steps"]) for n, returns, score in rows})
        return kept

    def play(
        self, rows: Sequence[StackRow], states: Sequence[dict[str, PyTree]], env_steps: int
    ) -> dict[int, dict[str, Any]]:
        """The returns of each member that trains, by number. `states`: of all rows, in parts."""
        with self._lock:
            return self._play(rows, states, env_steps)

    def _play(
        self, rows: Sequence[StackRow], states: Sequence[dict[str, PyTree]], env_steps: int
    ) -> dict[int, dict[str, Any]]:
        began = time.monotonic()
        params = jax.tree.map(lambda *x: np.concatenate([np.asarray(each) for each in x]),
                              *({g: state.params for g, state in part.items()} for part in states))  # fmt: skip
        played: dict[int, PlayedEpisodes] = {}
        by_program: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            if not row.status:
                by_program.setdefault(self._find(row)[0], []).append(place)
        for program, places in by_program.items():
            own = jax.tree.map(lambda x, places=places: x[np.array(places)], params)
            seeds = [self._of_member[rows[place].member.number][1] for place in places]
            found = self._programs[program].play(own, seeds)
            played |= {rows[place].member.number: each for place, each in zip(places, found, strict=True)}
        self.newest_at = env_steps
        return self._record(rows, played, env_steps, time.monotonic() - began)

    def _record(
        self, rows: Sequence[StackRow], played: dict[int, PlayedEpisodes], env_steps: int, seconds: float
    ) -> dict[int, dict[str, Any]]:
        found, returns, lengths = {}, [], []
        asked = {row.member.number: row.member.asked for row in rows}
        for number, each in played.items():
            if problem := each.problem():
                raise RunFailed(f"member {number}: {problem}")
            numbers = evaluation_statistics(each.returns, each.lengths, each.metrics, each.learner_returns)
            flattened = {name.removeprefix("eval/"): value for name, value in flat(numbers).items()}
            score = score_of(flattened, asked[number].eval_metric)
            found[number] = _summary(numbers["returns"], score, env_steps)
            returns.append(numbers["returns"])
            lengths.append(numbers["lengths"])
        line = {"env_steps": env_steps, "seconds": seconds, "members": list(played), "returns": returns,
                "lengths": lengths, "scores": [found[number]["score"] for number in played]}  # fmt: skip
        with contextlib.suppress(UserError):  # a full disk ends no run
            stack_logs.add_evaluation(self.directory, line)
        return found

    def _find(self, row: StackRow) -> tuple[int, int]:
        """The program that plays for a member, and its seed; settings that acting uses select the program."""
        number = row.member.number
        if number not in self._of_member:
            asked = row.member.asked
            check_metric(asked.eval_metric, row.built.graph)
            seed = asked.seed + SEED_OFFSET if asked.eval_seed is None else asked.eval_seed
            task = task_of(row.built, asked.eval_env_settings or {}, asked.eval_episodes, seed, asked.eval_explore)
            evaluator, _ = self._shared.make(task)
            assert isinstance(evaluator, CompiledEvaluator)
            self._programs.setdefault(id(evaluator.loop), StackedEvaluator(evaluator))
            self._of_member[number] = (id(evaluator.loop), seed)
        return self._of_member[number]


def _summary(returns: Sequence[float | None], score: float, env_steps: int) -> dict[str, Any]:
    """The evaluation of a member in its result.json."""
    whole = np.array([value for value in returns if value is not None])
    return {
        "env_steps": env_steps, "mean_return": float(whole.mean()), "std_return": float(whole.std()),
        "return_interval": list(confidence_interval(whole)), "episodes": len(whole), "score": score,
    }  # fmt: skip
