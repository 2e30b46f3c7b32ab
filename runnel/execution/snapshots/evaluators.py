"""Evaluators of snapshots during training: in this process, or in separate workers (`evaluation_workers.py`).

Evaluators take snapshots (`submit`) and return the results (`poll`).
"""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np

from runnel.errors import RunFailed
from runnel.execution.snapshots.evaluation_task import EvaluationTask, MakeEvaluator, make_evaluator_of
from runnel.graph.nodes import Graph
from runnel.policy.policy import params_of
from runnel.runtime.programs.snapshots import TakenSnapshot
from runnel.runtime.single_process.evaluation import Beat, Evaluator, PlayedEpisodes
from runnel.system import startup
from runnel.system.exits import Exited

LONG_S: Final = 30.0
"""The seconds without the end of an episode, or of an evaluation, after which the run reports it."""


class Evaluated(NamedTuple):
    """The result of a snapshot's evaluation, or its failure."""

    snapshot: TakenSnapshot
    played: PlayedEpisodes | None
    seconds: float
    problem: str = ""  # why it could not be played
    detail: str = ""  # the whole error, where that was in this process


class Evaluators(Protocol):
    """Evaluates snapshots during training."""

    skipped: int
    """Snapshots that were not evaluated, because newer ones arrived first."""
    steps: int
    """Steps of environments in this process."""

    @property
    def hosts(self) -> Mapping[str, str]:
        """The machine of each evaluation worker. Empty if there is only the driver's."""
        ...

    def submit(self, snapshot: TakenSnapshot, must: bool = False) -> None:
        """Requests an evaluation. `must`: it is played even if newer ones wait."""
        ...

    def poll(self) -> list[Evaluated]:
        """The evaluations that were finished since the last call, oldest first."""
        ...

    def busy(self) -> bool: ...

    def rewind(self, env_steps: int) -> None:
        """Training returns to an earlier point: drops later snapshots, which will be taken again."""
        ...

    def close(self) -> None: ...


class _GivenUp(Exception):
    """Raised inside an evaluation that was cancelled."""


class _StallDetector:
    """Reports, once, that a count has not changed for a while."""

    def __init__(self, limit_s: float):
        self._limit_s, self._count, self._since, self._reported = limit_s, -1, 0.0, False

    def stalled(self, count: int) -> bool:
        if count != self._count:
            self._count, self._since = count, time.monotonic()
        if self._reported or time.monotonic() < self._since + self._limit_s:
            return False
        self._reported = True
        return True


class InProcessEvaluators:
    """Evaluates in this process, while training pauses.

    An evaluation that fails is dropped; the next one begins with new environments.
    """

    def __init__(
        self, task: EvaluationTask, stop: Callable[[], bool] = lambda: False,
        note: Callable[[str], None] = lambda text: None, long_s: float = LONG_S,
        make: MakeEvaluator = make_evaluator_of,
    ):  # fmt: skip
        """`stop`: whether the user has asked the run to end; an evaluation is then given up.

        `note` is called once in an evaluation in which no episode has ended for `long_s`.
        """
        self.task, self._stop, self._note, self._long_s, self._make = task, stop, note, long_s, make
        self.skipped, self.steps = 0, 0
        self._made: tuple[Evaluator, Graph] | None = None
        self._done: list[Evaluated] = []

    @property
    def hosts(self) -> Mapping[str, str]:
        return {}

    def submit(self, snapshot: TakenSnapshot, must: bool = False) -> None:
        began, before, stall = time.monotonic(), self.steps, _StallDetector(self._long_s)

        def beat(steps: int) -> None:
            self.steps = before + steps
            if self._stop():
                raise _GivenUp
            assert self._made is not None
            if stall.stalled(ended := self._made[0].ended):
                done = f"{ended} of {self.task.episodes} episodes have ended after {steps:,} steps of each environment"
                self._note(f"evaluation at {snapshot.env_steps:,} steps: {done}")

        played, problem, detail = None, "", ""
        with random_numbers_kept(), startup.during(f"evaluating at {snapshot.env_steps:,} steps"):
            try:
                played = self._play(snapshot, beat)
            except _GivenUp:
                return
            except KeyboardInterrupt:  # the user's, or a hang that was found
                raise
            except BaseException as error:  # also `sys.exit`: an environment does not decide how a run ends
                problem = f"raised {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                detail = "".join(traceback.format_exception(error))
                self._forget()
        self._done.append(Evaluated(snapshot, played, time.monotonic() - began, problem, detail))

    def _play(self, snapshot: TakenSnapshot, beat: Beat) -> PlayedEpisodes:
        if self._made is None:
            self._made = self._make(self.task)
        evaluator, graph = self._made
        params = {g: params_of(s, snapshot.arrays[g], f"snapshot {snapshot.mark}") for g, s in graph.states.items()}
        return evaluator.play(params, beat)

    def _forget(self) -> None:
        """Closes environments that failed; exceptions of their `close` are ignored."""
        made, self._made = self._made, None
        if made is not None:
            with contextlib.suppress(Exception, SystemExit, Exited):
                made[0].close()

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
def random_numbers_kept() -> Iterator[None]:
    """Restores the global random generators afterwards, because environments may use them and evaluation must not
    change training."""
    own, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(own)
        np.random.set_state(numpys)


def wait_for(
    evaluators: Evaluators, stop: Callable[[], bool], limit_s: float, note: Callable[[str], None] = lambda text: None,
    long_s: float = LONG_S,
) -> Iterator[Evaluated]:  # fmt: skip
    """Waits until all evaluations are done; yields each as it is finished. `note` is called once after `long_s`."""
    began = time.monotonic()
    deadline, noted = began + limit_s, False
    while True:
        for done in evaluators.poll():
            deadline = time.monotonic() + limit_s
            yield done
        if not evaluators.busy() or stop():
            return
        if not noted and time.monotonic() >= began + long_s:
            noted = True
            note(f"has waited {time.monotonic() - began:.0f} s for an evaluation")
        if time.monotonic() > deadline:
            raise RunFailed(f"an evaluation did not end within {limit_s:.0f} s")
        time.sleep(0.02)
