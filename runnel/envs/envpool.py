"""EnvPool: many C++ environments that are stepped in one call. No JAX is imported here.

EnvPool seeds an environment once, when it is made, so an episode cannot be begun from a seed of its own and replayed:
where a run is resumed, its episodes are cut, and the next ones begin. An environment's episodes still follow from the
run's seed and its index alone, and not from its neighbours.

EnvPool spends the step after an episode's end on beginning the next; here the ended ones are reset at once, so that no
step shows nothing. An episode that ends by itself at the very step of its limit counts as truncated, as EnvPool says.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from runnel.environment import Episode, Failure, HostStep, episode_seed
from runnel.envs import spaces
from runnel.envs.making import bad_setting, draw_without_screen, one_line
from runnel.envs.recovery import EnvironmentFault, Failures, fault_of_reward
from runnel.errors import UserError, nearest
from runnel.types import DEFAULT_GROUP, EnvSpec, PyTree, zeros


class EnvPoolEnvironment:
    """An environment of EnvPool: `EnvPoolEnvironment("Pong-v5", episodic_life=True)`."""

    def __init__(self, name: str, /, **settings: Any):
        """`settings` are those that EnvPool's environment takes."""
        self._name, self._task, self._settings = f"envpool:{name}", name, settings
        pool = self._make(False, [0])
        self._observations = spaces.observations(pool.observation_space, self._name)
        self._actions = spaces.actions(pool.action_space, self._name)
        limit = pool.config.get("max_episode_steps")
        pool.close()
        limit = int(limit) if limit and limit < np.iinfo(np.int32).max else None
        self.spec = EnvSpec.single(self._name, self._observations.space, self._actions.space, limit)

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> EnvPoolVector:
        if render:
            draw_without_screen()
        make = partial(self._make, render)
        return EnvPoolVector(self._name, make, indices, seed, self._observations, self._actions)

    def _make(self, render: bool, seeds: Sequence[int]) -> Any:
        given = {"render_mode": "rgb_array"} if render else {}
        with _quiet_and_without_jax():
            import envpool

            known = envpool.list_all_envs()
            if self._task not in known:
                raise UserError(f"no EnvPool environment is called '{self._task}'{nearest(self._task, known)}")
            try:
                pool = envpool.make_gymnasium(
                    self._task, num_envs=len(seeds), num_threads=1, seed=list(seeds), **self._settings, **given
                )
            except TypeError as problem:
                raise bad_setting(self._name, self._settings, problem) from problem
            except (AssertionError, RuntimeError, ValueError) as problem:
                raise UserError(f"EnvPool cannot make '{self._task}': {one_line(problem)}") from problem
            _ = pool.observation_space, pool.action_space  # made when first asked for, with warnings
        if pool.config["max_num_players"] > 1:
            players = pool.config["max_num_players"]
            raise UserError(f"{self._name} has {players} players; Runnel's EnvPool adapter wants environments of one")
        return pool


class EnvPoolVector:
    """Environments of one pool."""

    stateful = False
    watch: Callable[[int], None] | None = None

    def __init__(
        self,
        name: str,
        make: Callable[[Sequence[int]], Any],
        indices: Sequence[int],
        seed: int,
        observations: spaces.Observations,
        actions: spaces.Actions,
    ):
        """`make` gives a pool of environments with these seeds."""
        self._make, self._seed = make, int(seed)
        self._indices = [int(index) for index in indices]
        self._observations, self._actions = observations, actions
        self._all = np.arange(len(self._indices), dtype=np.int32)
        self._pool: Any = None
        self._episodes = np.zeros(len(self._all), np.int64)
        self._clock = 0  # steps of the vector since `reset` or `restore`
        self._shown = zeros(observations.space, len(self._all))  # our own copy: callers may write where we wrote
        self._failures = Failures(name, len(self._all))
        self._condemned: dict[tuple[int, int], str] = {}  # by row and episode

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._start(np.zeros_like(self._episodes), observation)

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        self._clock += 1
        out.terminated.fill(False)
        out.truncated.fill(False)
        actions = np.asarray(self._actions.unpack(action[DEFAULT_GROUP]))
        faults = self._condemnations(self._all)
        if self.watch is None and not faults:
            faults = self._step(self._all, actions, out)
        else:
            for row in sorted(set(self._all.tolist()) - set(faults)):
                self._tell_watch(row)
                faults |= self._step(self._all[row : row + 1], actions, out)
        for row, fault in faults.items():
            out.reward[DEFAULT_GROUP][row], out.terminated[row], out.truncated[row] = 0, False, True
            self._fail(row, fault, stepping=True)
        self._observations.copy(out.observation[DEFAULT_GROUP], self._shown)
        ended = out.terminated | out.truncated
        if ended.any():
            self._next_episodes(self._all[ended], out)
        self._tell_watch(-1)

    def episode_numbers(self) -> np.ndarray:
        return self._episodes.copy()

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        """Cuts all of them: episodes cannot be replayed."""
        self._start(np.array([episode.number + 1 for episode in episodes], np.int64), observation)
        return np.ones(len(self._all), np.bool_)

    def condemn(self, row: int, episode: int, what: str) -> None:
        self._condemned[row, episode] = what

    def failures(self) -> list[Failure]:
        return self._failures.fetch()

    def render(self, row: int) -> np.ndarray:
        return np.asarray(self._pool.render(self._all[row : row + 1])[0], np.uint8)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = None  # which ends its thread

    def _start(self, episodes: np.ndarray, observation: dict[str, PyTree]) -> None:
        """Makes a new pool, from the seeds of the episodes that begin with it."""
        self.close()
        numbers = zip(self._indices, episodes.tolist(), strict=True)
        self._pool = self._make([episode_seed(self._seed, index, number) for index, number in numbers])
        self._clock, self._episodes = 0, episodes
        self._condemned.clear()
        self._failures.forget()
        self._reset(self._all)
        self._observations.copy(observation[DEFAULT_GROUP], self._shown)
        self._tell_watch(-1)

    def _step(self, rows: np.ndarray, actions: np.ndarray, out: HostStep) -> dict[int, EnvironmentFault]:
        """Steps some of the environments and writes their results; returns which of them failed."""
        observation, reward, terminated, truncated, _ = self._pool.step(actions[rows], rows)
        kept = out.reward[DEFAULT_GROUP]
        kept[rows] = reward
        out.terminated[rows], out.truncated[rows] = terminated, truncated & ~terminated
        faults = {row: fault_of_reward(reward[i], kept.dtype) for i, row in enumerate(rows.tolist())
                  if not np.isfinite(kept[row])}  # fmt: skip
        return self._show(rows, observation, "step", {row: fault for row, fault in faults.items() if fault})

    def _next_episodes(self, rows: np.ndarray, out: HostStep) -> None:
        """What is shown of these is the last of their episodes; shows the first of the next."""
        for row in rows.tolist():
            self._observations.copy_row(out.last_observation[DEFAULT_GROUP], self._shown, row)
        self._episodes[rows] += 1
        self._reset(rows)
        for row in rows.tolist():
            self._observations.copy_row(out.observation[DEFAULT_GROUP], self._shown, row)

    def _reset(self, rows: np.ndarray) -> None:
        """Begins the episodes whose numbers stand in `_episodes`, or the first after them that can be begun."""
        while len(rows):
            for row in rows.tolist():
                self._tell_watch(row)
            observation, _ = self._pool.reset(rows)
            faults = self._show(rows, observation, "reset", self._condemnations(rows))
            for row, fault in faults.items():
                self._fail(row, fault)
                self._episodes[row] += 1
            rows = np.array(sorted(faults), np.int32)

    def _show(
        self, rows: np.ndarray, observation: PyTree, call: str, faults: dict[int, EnvironmentFault]
    ) -> dict[int, EnvironmentFault]:
        """Writes the observations of environments, except for those with a fault, which are NaN; adds to the faults."""
        values = _each(observation, len(rows))
        if len(rows) == len(self._all) and not faults:
            with contextlib.suppress(ValueError):  # there is a NaN
                self._shown = self._observations.write(self._shown, values)
                return faults
        for row, value in zip(rows.tolist(), values, strict=True):
            if row not in faults and self._observations.has_nan(value):
                faults[row] = EnvironmentFault(f"{call} gave NaN in its observation")
            if row not in faults:
                self._observations.write_row(self._shown, row, value)
        return faults

    def _condemnations(self, rows: np.ndarray) -> dict[int, EnvironmentFault]:
        """Which of them are not to go on with their episodes, or not to begin them. Asked once."""
        keys = [(row, int(self._episodes[row])) for row in rows.tolist()] if self._condemned else []
        return {key[0]: EnvironmentFault(what) for key in keys if (what := self._condemned.pop(key, None))}

    def _tell_watch(self, row: int) -> None:
        if self.watch is not None:
            self.watch(row)

    def _fail(self, row: int, fault: EnvironmentFault, stepping: bool = False) -> None:
        """Counts a failure. Single environments of a pool cannot be replaced, only reset."""
        failure = Failure(row, self._indices[row], int(self._episodes[row]), fault.what, fault.traceback)
        self._failures.add(failure, self._clock, stepping)


def _each(observation: PyTree, count: int) -> Sequence[Any]:
    """One observation an environment, from arrays with a row for each."""
    if isinstance(observation, dict):
        parts = {key: _each(part, count) for key, part in observation.items()}
        return [{key: part[row] for key, part in parts.items()} for row in range(count)]
    return observation


@contextmanager
def _quiet_and_without_jax() -> Iterator[None]:
    """EnvPool imports JAX where it finds it, for functions that are not used here: workers are to stay light."""
    absent = "jax" not in sys.modules
    if absent:
        sys.modules["jax"] = None  # type: ignore[assignment]  # an import now says that there is none
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bounds that lose precision; its user can do nothing about it
            yield
    finally:
        if absent:
            del sys.modules["jax"]
