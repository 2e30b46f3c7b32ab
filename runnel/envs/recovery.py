"""Failures of host environments: checks of results, a log of failures, and a limit on their number.

All families of host environments have the same rules. NaN in an observation, and a reward that is not finite in its
dtype, are failures; infinite observations pass; a value that is no real number is refused.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.environment import Failure
from runnel.envs.spaces import LARGEST, Observations
from runnel.errors import EnvironmentFailed, a
from runnel.system.exits import Exited

MOST_IN_A_ROW: Final = 10
"""Consecutive failures of one environment, without a successful step in between, that end the run."""

WINDOW_STEPS: Final = 200
"""More failures than half of this, within this many latest steps of one environment, also end the run."""

KEPT: Final = 1000
"""The most failures kept until they are fetched; beyond this the oldest are dropped."""

LONGEST_TRACEBACK: Final = 4000  # characters
LONGEST_LINE: Final = 300


class EnvironmentFault(NamedTuple):
    """A failed call of an environment: an exception, or an invalid result."""

    what: str  # in one line
    traceback: str = ""
    misfit: bool = False  # its result does not fit its spaces
    hint: str = "correct the environment's observation_space"  # what to do where the first reset does not fit


def raised(call: str, problem: BaseException) -> EnvironmentFault:
    """The fault of an exception, as text, because the exception itself would keep the environment alive."""
    line = traceback.format_exception_only(problem)[0]
    what = f"called {problem}" if isinstance(problem, Exited) else f"raised {line}"
    inner = problem.__traceback__ and problem.__traceback__.tb_next  # without our own call
    text = "".join(traceback.format_exception(type(problem), problem, inner))
    return EnvironmentFault(_one_line(f"{call} {what}"), text[-LONGEST_TRACEBACK:].rstrip())


def fault_of_reset(result: Any, observations: Observations) -> EnvironmentFault | None:
    """The fault of a `reset` result; None if it is valid."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        hint = "return `observation, {}` from reset"
        return EnvironmentFault(
            f"reset returned {_words(result)}, expected (observation, info)", misfit=True, hint=hint
        )
    return fault_of_observation("reset", result[0], observations)


def fault_of_step(result: Any, observations: Observations, rewards: np.dtype) -> EnvironmentFault | None:
    """The fault of a `step` result; None if it is valid. `rewards` is the dtype of stored rewards."""
    if not isinstance(result, tuple | list) or len(result) != 5:
        wanted = "(observation, reward, terminated, truncated, info)"
        return EnvironmentFault(f"step returned {_words(result)}, expected {wanted}", misfit=True)
    observation, reward, *ends, _ = result
    if fault := fault_of_observation("step", observation, observations):
        return fault
    if fault := fault_of_reward(reward, rewards):
        return fault
    try:
        [bool(end) for end in ends]
    except Exception:
        found = " and ".join(map(_words, ends))
        return EnvironmentFault(f"step returned {found} as terminated and truncated, expected booleans", misfit=True)
    return None


def fault_of_observation(call: str, observation: Any, observations: Observations) -> EnvironmentFault | None:
    """The fault of an observation that `call` returned; None if it is valid."""
    if misfit := observations.misfit(observation):
        return EnvironmentFault(_one_line(f"{call} returned {misfit}"), misfit=True)
    return EnvironmentFault(f"{call} returned NaN in its observation") if observations.has_nan(observation) else None


def fault_of_reward(reward: Any, dtype: np.dtype) -> EnvironmentFault | None:
    """The fault of a reward to be stored as `dtype`; None if it is valid."""
    misfit = EnvironmentFault(f"step returned {_words(reward)} as its reward, expected a number", misfit=True)
    if isinstance(reward, str | bytes) or np.iscomplexobj(reward) or getattr(reward, "shape", ()):
        return misfit  # an array of one element is no number: it does not fit among the others'
    try:
        value = float(reward)
    except OverflowError:
        return EnvironmentFault(f"step returned {_words(reward)} as its reward, which is infinite as {dtype}")
    except Exception:
        return misfit
    if math.isnan(value):
        return EnvironmentFault("step returned NaN as its reward")
    if math.isinf(value):
        return EnvironmentFault(f"step returned {value} as its reward, expected a finite number")
    if abs(value) > LARGEST[dtype]:
        return EnvironmentFault(f"step returned {value} as its reward, which is infinite as {dtype}")
    return None


class Failures:
    """The failures of a vector's environments: kept until they are fetched, and counted against the budget."""

    def __init__(self, name: str, columns: int):
        self._name = name
        self._kept: deque[Failure] = deque(maxlen=KEPT)
        self._in_a_row = [0] * columns
        self._clocks: list[deque[int]] = [deque() for _ in range(columns)]  # when each failed, in the window

    def forget(self) -> None:
        """Resets the counts of failures when the environments begin again."""
        self._in_a_row = [0] * len(self._in_a_row)
        for clocks in self._clocks:
            clocks.clear()

    def add(self, failure: Failure, clock: int, stepping: bool) -> None:
        """Records a failure at the vector's step `clock`: in the step itself if `stepping`, or after it."""
        self._kept.append(failure)
        clocks = self._clocks[failure.row]
        # The latest step that can have worked is the one before, or, where this was no step, the one just done.
        follows = bool(clocks) and clocks[-1] >= clock - stepping
        self._in_a_row[failure.row] = self._in_a_row[failure.row] + 1 if follows else 1
        clocks.append(clock)
        while clocks[0] <= clock - WINDOW_STEPS:
            clocks.popleft()
        if self._in_a_row[failure.row] >= MOST_IN_A_ROW:
            raise self._too_many(failure, f"{MOST_IN_A_ROW} times without a step that worked in between")
        if len(clocks) > WINDOW_STEPS // 2:
            raise self._too_many(failure, f"{len(clocks)} times in its last {WINDOW_STEPS} steps")

    def fetch(self) -> list[Failure]:
        """Returns all of them, and clears them."""
        kept = list(self._kept)
        self._kept.clear()
        return kept

    def _too_many(self, last: Failure, often: str) -> EnvironmentFailed:
        own = f". Its own traceback:\n{last.traceback}" if last.traceback else ""
        return EnvironmentFailed(
            f"{self._name}: environment {last.index} failed {often}; at last, in episode {last.episode}, {last.what}. "
            "A run survives rare failures only; correct the environment, or let it return `truncated` where it cannot "
            f"continue{own}"
        )


def _words(value: Any) -> str:
    """Describes a value by its type and shape."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    return a(value) + (f" of shape {shape}" if shape else "")


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 3] + "..."
