"""Base classes of vectors of host environments: episodes, and recovery from failures.

In a `RecoveringVector` each environment is an object, which is replayed and replaced alone. In a `PooledVector` one
call steps all environments. Adapters define how environments are reset, stepped and observed. No JAX is imported here.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from runnel.environment import Episode, EpisodeMetrics, Failure, episode_seed
from runnel.envs.infos import EndedEpisodes
from runnel.envs.recovery import EnvironmentFault, Failures, raised
from runnel.envs.spaces import Observations
from runnel.errors import UserError
from runnel.types import DEFAULT_GROUP, PyTree, zeros

E = TypeVar("E")


class RecoveringVector(abc.ABC, Generic[E]):
    """A `HostVector` without `step` and `render`: each environment has a row, and is replaced when it fails.

    The vector keeps a copy of all observations and writes them to the caller's arrays. So a failed environment's last
    valid observation is available after the caller has overwritten its own.
    """

    stateful = False
    watch: Callable[[int], None] | None = None

    def __init__(self, name: str, make: Callable[[], E], indices: Sequence[int], seed: int):
        """`make` creates an environment: one for each index, and one to replace each that failed."""
        self._name, self._make = name, make
        self._indices = [int(index) for index in indices]
        self._seed = int(seed)
        rows = len(self._indices)
        self.environments = [make() for _ in indices]
        self._episodes = [0] * rows
        self._clock = 0  # steps of the vector since `reset` or `restore`
        self._failures = Failures(name, rows)
        self._ended = EndedEpisodes()
        self._condemned: dict[tuple[int, int], str] = {}  # by row and episode
        self._rewards = np.dtype(np.float32)  # in which rewards are kept, as the last step had it
        self._proven = False  # whether every environment has once begun an episode

    @abc.abstractmethod
    def _use(self, row: int, environment: E) -> None:
        """Puts an environment into a row."""

    @abc.abstractmethod
    def _begin_episode(self, row: int, seed: int) -> EnvironmentFault | None:
        """Resets an environment and shows its first observation."""

    @abc.abstractmethod
    def _replay(self, row: int, episode: Episode) -> EnvironmentFault | None:
        """Replays the actions of an episode that has just begun, and writes its last observation."""

    @abc.abstractmethod
    def _copy_shown(self, observation: dict[str, PyTree]) -> None:
        """Writes what all environments show."""

    @abc.abstractmethod
    def _close(self, environment: E) -> None: ...

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._start([0] * len(self._indices))
        for row in range(len(self._indices)):
            self._begin(row)
        self._started(observation)

    def episode_numbers(self) -> np.ndarray:
        return np.array(self._episodes, np.int64)

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        self._proven = True
        self._start([int(episode.number) for episode in episodes])
        for row, episode in enumerate(episodes):
            self._begin(row)
            if self._episodes[row] == episode.number and (fault := self._replay(row, episode)):
                self._fail(row, fault._replace(what=f"played again, {fault.what}"))
                self._episodes[row] += 1
                self._begin(row)
        self._started(observation)
        return np.array([now != episode.number for now, episode in zip(self._episodes, episodes, strict=True)])

    def condemn(self, row: int, episode: int, what: str) -> None:
        self._condemned[row, episode] = what

    def failures(self) -> list[Failure]:
        return self._failures.fetch()

    def episode_metrics(self) -> list[EpisodeMetrics]:
        return self._ended.fetch()

    def close(self) -> None:
        for environment in self.environments:
            with contextlib.suppress(Exception, SystemExit):  # what it did was good, and is done
                self._close(environment)

    def _start(self, episodes: list[int]) -> None:
        self._clock = 0
        self._episodes = episodes
        self._condemned.clear()
        self._failures.forget()
        self._ended.fetch()

    def _started(self, observation: dict[str, PyTree]) -> None:
        self._proven = True
        self._copy_shown(observation)
        if self.watch is not None:
            self.watch(-1)

    def _begin(self, row: int) -> None:
        """Begins the episode numbered in `_episodes`; after a failure, the next that can be begun."""
        while fault := self._begin_episode(row, episode_seed(self._seed, self._indices[row], self._episodes[row])):
            if fault.misfit and not self._proven:
                raise UserError(f"{self._name}: {fault.what}; {fault.hint}")
            self._fail(row, fault)
            self._episodes[row] += 1

    def _try(self, row: int, what: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The result of a call of an environment, or an `EnvironmentFault`."""
        if reason := self._condemned.pop((row, self._episodes[row]), None):
            return EnvironmentFault(reason)
        if self.watch is not None:
            self.watch(row)
        try:
            return call(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # also `sys.exit`: an environment does not decide how a run ends
            return raised(what, problem)

    def _fail(self, row: int, fault: EnvironmentFault, stepping: bool = False) -> None:
        """Counts a failure, and replaces the environment that failed by a new one."""
        problem: EnvironmentFault | None = fault
        while problem:
            failure = Failure(row, self._indices[row], self._episodes[row], problem.what, problem.traceback)
            self._failures.add(failure, self._clock, stepping)
            problem = self._rebuild(row)

    def _rebuild(self, row: int) -> EnvironmentFault | None:
        if self.watch is not None:
            self.watch(row)
        with contextlib.suppress(Exception, SystemExit):
            self._close(self.environments[row])
        try:
            self._use(row, self._make())
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            return raised("creating it again", problem)
        return None


class PooledVector(abc.ABC):
    """A `HostVector` without `step`, `render` and `close`: one object steps all environments.

    Episodes cannot be replayed: on a restore they are truncated, and new ones begin. The vector keeps a copy of all
    observations, as in a `RecoveringVector`.
    """

    stateful = False
    watch: Callable[[int], None] | None = None

    def __init__(self, name: str, indices: Sequence[int], seed: int, observations: Observations):
        self._name, self._seed, self._observations = name, int(seed), observations
        self._indices = [int(index) for index in indices]
        rows = len(self._indices)
        self._episodes = np.zeros(rows, np.int64)
        self._clock = 0  # steps of the vector since `reset` or `restore`
        self._shown = zeros(observations.space, rows)  # our own copy: callers may write where we wrote
        self._failures = Failures(name, rows)
        self._ended = EndedEpisodes()
        self._condemned: dict[tuple[int, int], str] = {}  # by row and episode

    @abc.abstractmethod
    def _begin_all(self) -> None:
        """Begins the episodes numbered in `_episodes`; after a failure, the next that can be begun."""

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._start(np.zeros_like(self._episodes), observation)

    def episode_numbers(self) -> np.ndarray:
        return self._episodes.copy()

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        self._start(np.array([episode.number + 1 for episode in episodes], np.int64), observation)
        return np.ones(len(self._indices), np.bool_)

    def condemn(self, row: int, episode: int, what: str) -> None:
        self._condemned[row, episode] = what

    def failures(self) -> list[Failure]:
        return self._failures.fetch()

    def episode_metrics(self) -> list[EpisodeMetrics]:
        return self._ended.fetch()

    def _start(self, episodes: np.ndarray, observation: dict[str, PyTree]) -> None:
        self._clock, self._episodes = 0, episodes
        self._condemned.clear()
        self._failures.forget()
        self._ended.fetch()
        self._begin_all()
        self._observations.copy(observation[DEFAULT_GROUP], self._shown)
        self._tell_watch(-1)

    def _condemnations(self, rows: Iterable[int]) -> dict[int, EnvironmentFault]:
        """The condemned episodes among these rows, which must not continue or begin. Each is returned once."""
        keys = [(int(row), int(self._episodes[row])) for row in rows] if self._condemned else []
        return {key[0]: EnvironmentFault(what) for key in keys if (what := self._condemned.pop(key, None))}

    def _fail(self, row: int, fault: EnvironmentFault, stepping: bool = False) -> None:
        """Counts a failure."""
        failure = Failure(row, self._indices[row], int(self._episodes[row]), fault.what, fault.traceback)
        self._failures.add(failure, self._clock, stepping)

    def _tell_watch(self, row: int) -> None:
        if self.watch is not None:
            self.watch(row)


def ended_early(steps: int, after: int) -> EnvironmentFault:
    """The fault of a replayed episode of `steps` steps that ended after fewer."""
    return EnvironmentFault(
        f"an episode of {steps} steps and more ended after {after}: the environment is not deterministic"
    )
