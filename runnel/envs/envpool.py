"""EnvPool: many C++ environments that are stepped in one call. No JAX is imported here.

EnvPool seeds an environment once, when it is created, so an episode cannot be replayed from a seed of its own. When a
run resumes, its episodes are truncated and new ones begin. An environment's episodes still depend on the run's seed and
its index alone, not on the other environments.

EnvPool uses the step after an episode's end to reset; here ended environments are reset at once, so that every step is
a step of the environment. An episode that terminates in the very step of its limit counts as truncated, as EnvPool
reports it.

For Atari games, EnvPool also returns the unclipped reward and the end of the game, so the reported score is that of the
whole game. With `episodic_life`, a game continues after the loss of a life.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from runnel.environment import HostStep, episode_seed
from runnel.envs import infos, spaces
from runnel.envs.making import bad_setting, draw_without_screen, joined_lines
from runnel.envs.recovery import EnvironmentFault, fault_of_reward
from runnel.envs.vector import PooledVector
from runnel.errors import UserError, nearest
from runnel.types import DEFAULT_GROUP, EnvSpec, PyTree

OWN_SCORE = frozenset({"info:reward", "info:terminated"})
"""The entries of an Atari game's info with the reward and the end of the game, which learning does not see."""

BOOKKEEPING = frozenset({"env_id", "elapsed_step", "lives", "reward", "terminated"})
"""Numbers in the infos of EnvPool that are no metrics."""


class EnvPoolEnvironment:
    """An environment of EnvPool: `EnvPoolEnvironment("Pong-v5", episodic_life=True)`."""

    def __init__(self, name: str, /, **settings: Any):
        """`settings` are those that EnvPool's environment takes."""
        self._name, self._task, self._settings = f"envpool:{name}", name, settings
        pool = self._make(False, [0])
        self._observations = spaces.observations(pool.observation_space, self._name)
        self._actions = spaces.actions(pool.action_space, self._name)
        native = spaces.native_format(pool.observation_space, pool.action_space, self._name)
        limit = pool.config.get("max_episode_steps")
        altered = pool.config.get("reward_clip") or pool.config.get("episodic_life")
        self.reports_return = bool(altered) and pool.spec.state_array_spec.keys() >= OWN_SCORE
        pool.close()
        limit = int(limit) if limit and limit < np.iinfo(np.int32).max else None
        self.spec = EnvSpec.single(self._name, self._observations.space, self._actions.space, limit, native)

    @staticmethod
    def has_setting(name: str, setting: str) -> bool:
        """Whether EnvPool's environment has a setting of that name: those of MuJoCo can stack frames."""
        with _quiet_and_without_jax():
            import envpool

            return name in envpool.list_all_envs() and setting in envpool.make_spec(name).config._fields

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> EnvPoolVector:
        if render:
            draw_without_screen()
        make = partial(self._make, render)
        return EnvPoolVector(self._name, make, indices, seed, self._observations, self._actions, self.reports_return)

    def _make(self, render: bool, seeds: Sequence[int]) -> Any:
        given = {"render_mode": "rgb_array"} if render else {}
        with _quiet_and_without_jax():
            import envpool

            known = envpool.list_all_envs()
            if self._task not in known:
                raise UserError(
                    f"no EnvPool environment is called '{self._task}'{nearest(self._task, known)}",
                    page="add-an-environment#envpool",
                )
            try:
                pool = envpool.make_gymnasium(
                    self._task, num_envs=len(seeds), num_threads=1, seed=list(seeds), **self._settings, **given
                )
            except TypeError as problem:
                raise bad_setting(self._name, self._settings, problem) from problem
            except (AssertionError, RuntimeError, ValueError) as problem:
                raise UserError(f"EnvPool cannot make '{self._task}': {joined_lines(problem)}") from problem
            _ = pool.observation_space, pool.action_space  # made when first asked for, with warnings
        if pool.config["max_num_players"] > 1:
            players = pool.config["max_num_players"]
            raise UserError(f"{self._name}: found {players} players, expected one; use an environment of one player")
        return pool


class EnvPoolVector(PooledVector):
    """Environments of one pool. Single environments can be reset, but not replaced."""

    def __init__(
        self,
        name: str,
        make: Callable[[Sequence[int]], Any],
        indices: Sequence[int],
        seed: int,
        observations: spaces.Observations,
        actions: spaces.Actions,
        own_score: bool,
    ):
        """`make` creates a pool of environments with these seeds; with `own_score`, its infos have a game's score."""
        super().__init__(name, indices, seed, observations)
        self._make, self._actions = make, actions
        self._all = np.arange(len(self._indices), dtype=np.int32)
        self.pool: Any = None
        self._own_score = own_score
        self._score, self._length = np.zeros(len(self._all)), np.zeros(len(self._all), np.int64)  # of the games so far
        self._infos: list[tuple[np.ndarray, dict[str, Any]]] = []  # of the last step: rows and their info

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        self._clock += 1
        out.terminated.fill(False)
        out.truncated.fill(False)
        self._infos.clear()
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
            self._next_episodes(self._all[ended], faults, out)
        self._tell_watch(-1)

    def render(self, row: int) -> np.ndarray:
        return np.asarray(self.pool.render(self._all[row : row + 1])[0], np.uint8)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        self.pool = None  # which ends its thread

    def _begin_all(self) -> None:
        """Makes a new pool, from the seeds of the episodes that begin with it."""
        self.close()
        numbers = zip(self._indices, self._episodes.tolist(), strict=True)
        self.pool = self._make([episode_seed(self._seed, index, number) for index, number in numbers])
        self._reset(self._all)

    def _step(self, rows: np.ndarray, actions: np.ndarray, out: HostStep) -> dict[int, EnvironmentFault]:
        """Steps some of the environments and writes their results; returns which of them failed."""
        observation, reward, terminated, truncated, info = self.pool.step(actions[rows], rows)
        kept = out.reward[DEFAULT_GROUP]
        kept[rows] = reward
        out.terminated[rows], out.truncated[rows] = terminated, truncated & ~terminated
        self._infos.append((rows, info))
        if self._own_score:
            self._score[rows] += info["reward"]
            self._length[rows] += 1
        faults = {row: fault_of_reward(reward[i], kept.dtype) for i, row in enumerate(rows.tolist())
                  if not np.isfinite(kept[row])}  # fmt: skip
        return self._show(rows, observation, "step", {row: fault for row, fault in faults.items() if fault})

    def _next_lives(self, rows: np.ndarray) -> list[int]:
        """Continues games after the loss of a life; returns the rows whose games have ended after all.

        EnvPool begins the next life in the step after the last, whatever the action; a reset would begin a new game.
        """
        if not len(rows):
            return []
        observation, _, terminated, truncated, info = self.pool.step(np.zeros(len(rows), np.int32), rows)
        self._score[rows] += info["reward"]
        self._show(rows, observation, "step", {})
        return rows[terminated | truncated].tolist()

    def _info(self, row: int) -> dict[str, Any]:
        """The info of one environment's last step."""
        rows, info = next((rows, info) for rows, info in self._infos if row in rows)
        at = rows.tolist().index(row)
        return {name: each[at] for name, each in info.items() if np.ndim(each) == 1}

    def _metrics(self, row: int, info: dict[str, Any]) -> dict[str, float]:
        """The metrics of an environment's episode that has just ended."""
        found = infos.numbers({name: value for name, value in info.items() if name not in BOOKKEEPING})
        own = {"return": float(self._score[row]), "length": float(self._length[row])} if self._own_score else {}
        return found | own

    def _next_episodes(self, rows: np.ndarray, failed: Collection[int], out: HostStep) -> None:
        """Records the current observations as the last of their episodes, and shows the first of the next."""
        for row in rows.tolist():
            self._observations.copy_row(out.last_observation[DEFAULT_GROUP], self._shown, row)
        given = {row: self._info(row) for row in rows.tolist() if row not in failed}
        going = [row for row in given if self._own_score and out.terminated[row] and not given[row]["terminated"]]
        lost = self._next_lives(np.array(going, np.int32))
        over = np.array([row for row in rows.tolist() if row not in going or row in lost], np.int32)
        for row in over.tolist():
            if row in given:
                self._ended.add(row, int(self._episodes[row]), self._metrics(row, given[row]))
        self._episodes[over] += 1
        self._reset(over)
        for row in rows.tolist():
            self._observations.copy_row(out.observation[DEFAULT_GROUP], self._shown, row)

    def _reset(self, rows: np.ndarray) -> None:
        """Begins the episodes numbered in `_episodes`; after a failure, the next that can be begun."""
        self._score[rows], self._length[rows] = 0, 0
        while len(rows):
            for row in rows.tolist():
                self._tell_watch(row)
            observation, _ = self.pool.reset(rows)
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
                faults[row] = EnvironmentFault(f"{call} returned NaN in its observation")
            if row not in faults:
                self._observations.write_row(self._shown, row, value)
        return faults


def _each(observation: PyTree, count: int) -> Sequence[Any]:
    """One observation an environment, from arrays with a row for each."""
    if isinstance(observation, dict):
        parts = {key: _each(part, count) for key, part in observation.items()}
        return [{key: part[row] for key, part in parts.items()} for row in range(count)]
    return observation


def known_names() -> list[str]:
    """Every task of EnvPool's."""
    with _quiet_and_without_jax():
        import envpool

        return list(envpool.list_all_envs())


def defaults_of(name: str) -> dict[str, Any]:
    """The settings of a task, with their defaults."""
    with _quiet_and_without_jax():
        import envpool

        config = envpool.make_spec(name).config
    given = ("num_envs", "batch_size", "num_threads", "thread_affinity_offset", "seed", "base_path", "max_num_players")
    return {key: value for key, value in zip(config._fields, config, strict=True) if key not in given}


@contextmanager
def _quiet_and_without_jax() -> Iterator[None]:
    """Keeps EnvPool from importing JAX, for functions that are not used here, so that workers stay light."""
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
