"""Where evaluations during training happen: in this process, or in workers of their own (`evaluation_workers.py`).

Evaluators take snapshots (`submit`) and give back what was played with them (`poll`).
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from runnel.errors import RunFailed
from runnel.execution.evaluation_task import EvaluationTask
from runnel.graph.nodes import Graph
from runnel.policy.policy import params_of
from runnel.runtime.programs.snapshots import TakenSnapshot
from runnel.runtime.single_process.evaluation import Evaluator, PlayedEpisodes


class Evaluated(NamedTuple):
    """A snapshot that was played, or could not be."""

    snapshot: TakenSnapshot
    played: PlayedEpisodes | None
    seconds: float
    problem: str = ""  # why it could not be played


class Evaluators(Protocol):
    """Where evaluations happen."""

    skipped: int
    """Snapshots that were not played, because newer ones came first."""
    steps: int
    """Steps of environments in this process."""

    def submit(self, snapshot: TakenSnapshot, must: bool = False) -> None:
        """Asks for an evaluation. `must`: it is played even where newer ones wait."""
        ...

    def poll(self) -> list[Evaluated]:
        """Those that are done since the last call, oldest first."""
        ...

    def busy(self) -> bool: ...

    def rewind(self, env_steps: int) -> None:
        """Training returns to an earlier point: later snapshots will come again, and are forgotten."""
        ...

    def close(self) -> None: ...


class _GivenUp(Exception):
    """Raised inside an evaluation that nobody waits for any more."""


class InProcessEvaluators:
    """Plays in this process, while training stands still."""

    def __init__(self, task: EvaluationTask, stop: Callable[[], bool] = lambda: False):
        """`stop`: whether the user has asked the run to end; an evaluation is then given up."""
        self.task, self._stop = task, stop
        self.skipped, self.steps = 0, 0
        self._made: tuple[Evaluator, Graph] | None = None
        self._done: list[Evaluated] = []

    def submit(self, snapshot: TakenSnapshot, must: bool = False) -> None:
        began, before = time.monotonic(), self.steps

        def beat(steps: int) -> None:
            self.steps = before + steps
            if self._stop():
                raise _GivenUp

        with _random_numbers_kept():
            if self._made is None:
                self._made = self.task.make(self.task.quota())
            evaluator, graph = self._made
            params = {g: params_of(s, snapshot.arrays[g], f"snapshot {snapshot.mark}") for g, s in graph.states.items()}
            try:
                played = evaluator.play(params, beat)
            except _GivenUp:
                return
        self._done.append(Evaluated(snapshot, played, time.monotonic() - began))

    def poll(self) -> list[Evaluated]:
        done, self._done = self._done, []
        return done

    def busy(self) -> bool:
        return False

    def rewind(self, env_steps: int) -> None:
        self._done = [done for done in self._done if done.snapshot.env_steps <= env_steps]

    def close(self) -> None:
        if self._made is not None:
            self._made[0].close()


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Environments may draw from the global generators, and training must not notice an evaluation."""
    own, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(own)
        np.random.set_state(numpys)


def wait_for(evaluators: Evaluators, stop: Callable[[], bool], limit_s: float) -> Iterator[Evaluated]:
    """Waits until nothing is left to play; gives what was played as it comes."""
    deadline = time.monotonic() + limit_s
    while True:
        for done in evaluators.poll():
            deadline = time.monotonic() + limit_s
            yield done
        if not evaluators.busy() or stop():
            return
        if time.monotonic() > deadline:
            raise RunFailed(f"an evaluation did not end within {limit_s:.0f} s")
        time.sleep(0.02)
