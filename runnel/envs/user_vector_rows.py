"""The rows of a user's `gymnasium.vector.VectorEnv`: episodes, failures and metrics. No JAX is imported here.

An invalid result of one environment (NaN, a reward that is not finite) truncates its episode. If the vector itself
raises, the environment at fault is unknown: all episodes are truncated, and the vector is created again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from runnel.environment import Episode, HostStep, episode_seed
from runnel.envs import spaces
from runnel.envs.recovery import KEPT, EnvironmentFault, fault_of_observation, fault_of_reward, raised
from runnel.envs.user_vector_modes import Treated, VectorStep
from runnel.envs.vector import PooledVector
from runnel.errors import EnvironmentFailed, UserError
from runnel.types import DEFAULT_GROUP, PyTree

SPARE: Final = 1 << 31
"""Offset of the indices of environments without a row; their seeds are computed from these indices."""


class UserVector(PooledVector):
    """Environments of one vector, or of several vectors of which one environment each is played.

    A vector may have more environments than there are rows; those are stepped with the others and ignored.

    It is one class because a step, a failure and a restart each change the same episodes: whichever call into the
    user's code fails, rows are truncated, restarted and shown in one order.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], Treated],
        indices: Sequence[int],
        seed: int,
        observations: spaces.Observations,
        actions: spaces.Actions,
        closes: bool = True,
        closed: Callable[[], None] = lambda: None,
    ):
        """`build` creates the vectors, initially and after a failure; they are closed afterwards if `closes`."""
        super().__init__(name, indices, seed, observations)
        self._build, self._closes, self._closed, self._actions = build, closes, closed, actions
        self.treated = build()
        self._cut_with_others: deque[tuple[int, int]] = deque(maxlen=KEPT)  # rows and episodes
        self._proven = False  # whether every environment has once begun an episode

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        self._clock += 1
        out.terminated.fill(False)
        out.truncated.fill(False)
        given = self._condemnation() or self._step(self._unpack(action))
        if isinstance(given, EnvironmentFault):
            out.reward[DEFAULT_GROUP][:] = 0
            self._recreate(given, out, stepping=True)
        else:
            self._take(given, out)
        self._observations.copy(out.observation[DEFAULT_GROUP], self._shown)
        self._tell_watch(-1)

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> np.ndarray:
        self._proven = True
        return super().restore(episodes, observation)

    def cut_with_others(self) -> list[tuple[int, int]]:
        found = list(self._cut_with_others)
        self._cut_with_others.clear()
        return found

    def render(self, row: int) -> np.ndarray:
        picture = self.treated.render(row)
        if np.ndim(picture) != 3:
            raise UserError(
                f"{self._name} cannot be rendered: expected one [height, width, 3] for each environment from `render`, "
                f"found {type(picture).__name__} of shape {np.shape(picture)}"
            )
        return np.asarray(picture, np.uint8)

    def close(self) -> None:
        self._close_vectors()
        self._closed()

    def _begin_all(self) -> None:
        while True:
            given = self._try("reset", self.treated.reset, self._this_seed)
            fault = given if isinstance(given, EnvironmentFault) else self._show("reset", given)
            if fault is None:
                self._proven = True
                return
            if fault.misfit and not self._proven:
                raise UserError(f"{self._name}: {fault.what}; correct the vector's single_observation_space")
            self._fail(0, fault)
            self._rebuild()
            self._episodes += 1

    def _step(self, actions: np.ndarray) -> VectorStep | EnvironmentFault:
        """The result of a step with these actions, or a fault of all environments."""
        step = self._try("step", self.treated.step, actions, self._next_seed)
        if isinstance(step, EnvironmentFault):
            return step
        rewards = step.reward
        if rewards.shape != step.terminated.shape or rewards.dtype.kind not in spaces.REAL:
            found = f"{rewards.dtype} of shape {rewards.shape}"
            what = f"the vector's step returned rewards of {found}, expected a number for each environment"
            return EnvironmentFault(what, misfit=True)
        return step

    def _take(self, step: VectorStep, out: HostStep) -> None:
        """Writes a step; truncates the episodes of environments with invalid results, and begins the next ones."""
        rows = range(len(self._indices))
        out.terminated[:], out.truncated[:] = step.terminated[: len(rows)], step.truncated[: len(rows)]
        ended = [row for row in step.last if row in rows]
        failed = self._faults_of_rewards(step.reward, out.reward[DEFAULT_GROUP])
        for row in ended:
            if fault := fault_of_observation("step", step.last[row], self._observations):
                failed[row] = fault
            else:
                self._observations.write_row(out.last_observation[DEFAULT_GROUP], row, step.last[row])
        unbegun: dict[int, EnvironmentFault] = {}
        if failed or self._show("step", step.observation) is not None:
            unbegun = self._show_each(step.observation, failed, ended)
        for row, fault in failed.items():
            out.reward[DEFAULT_GROUP][row], out.terminated[row], out.truncated[row] = 0, False, True
            self._observations.copy_row(out.last_observation[DEFAULT_GROUP], self._shown, row)
            self._fail(row, fault, stepping=True)
        for row in ended:
            if row not in failed:
                self._ended.add(row, int(self._episodes[row]), step.metrics.get(row, {}))
        self._episodes[out.terminated | out.truncated] += 1
        for row, fault in unbegun.items():
            self._fail(row, fault)
            self._episodes[row] += 1
        if failed or unbegun:
            self._restart([*failed, *unbegun], out)

    def _faults_of_rewards(self, given: np.ndarray, rewards: np.ndarray) -> dict[int, EnvironmentFault]:
        """Writes the valid rewards of a step; returns the faults of the others by row."""
        if spaces.are_rewards(given[: len(rewards)], rewards):
            rewards[:] = given[: len(rewards)]
            return {}
        faults = {}
        for row in range(len(rewards)):
            fault = fault_of_reward(given[row], rewards.dtype)
            rewards[row] = 0 if fault else given[row]
            if fault:
                faults[row] = fault
        return faults

    def _show(self, call: str, values: Sequence[Any]) -> EnvironmentFault | None:
        """Shows the observations of all rows if all are valid; otherwise returns the first fault."""
        own = values[: len(self._indices)]
        try:
            self._shown = self._observations.write(self._shown, own)
        except Exception as problem:
            faults = (fault_of_observation(call, value, self._observations) for value in own)
            return next(filter(None, faults), None) or raised(call, problem)
        return None

    def _show_each(
        self, values: Sequence[Any], failed: dict[int, EnvironmentFault], ended: Sequence[int]
    ) -> dict[int, EnvironmentFault]:
        """Shows the valid observations and adds faults to `failed`; returns the episodes that could not begin."""
        unbegun: dict[int, EnvironmentFault] = {}
        for row in range(len(self._indices)):
            call = "reset" if row in ended else "step"
            if row in failed:
                continue
            if fault := fault_of_observation(call, values[row], self._observations):
                (unbegun if row in ended else failed)[row] = fault
            else:
                self._observations.write_row(self._shown, row, values[row])
        return unbegun

    def _restart(self, rows: Iterable[int], out: HostStep) -> None:
        """Begins the next episodes of these rows. If the vector can only reset all rows, the other episodes are
        truncated."""
        left = list(dict.fromkeys(rows))
        while left:
            given = self._try("reset", self.treated.restart, left, self._this_seed)
            if isinstance(given, EnvironmentFault):
                self._recreate(given, out)
                return
            self._cut([row for row in given if row not in left and row < len(self._indices)], out)
            left = []
            for row, value in given.items():
                if row >= len(self._indices):
                    continue
                if fault := fault_of_observation("reset", value, self._observations):
                    self._fail(row, fault)
                    self._episodes[row] += 1
                    left.append(row)
                else:
                    self._observations.write_row(self._shown, row, value)

    def _recreate(self, fault: EnvironmentFault, out: HostStep, stepping: bool = False) -> None:
        """The vector failed: truncates all episodes, and begins the next ones in a new vector."""
        self._fail(0, fault, stepping)  # the environment at fault is unknown
        self._cut(range(len(self._indices)), out)
        self._rebuild()
        self._begin_all()

    def _cut(self, rows: Iterable[int], out: HostStep) -> None:
        """Truncates the episodes of these rows that did not end with this step."""
        for row in rows:
            if not (out.terminated[row] or out.truncated[row]):
                out.truncated[row] = True
                self._observations.copy_row(out.last_observation[DEFAULT_GROUP], self._shown, row)
                self._cut_with_others.append((row, int(self._episodes[row])))
                self._episodes[row] += 1

    def _rebuild(self) -> None:
        """Closes the vector and creates a new one."""
        self._close_vectors()
        while problem := self._try("maker", self._build_again):
            self._fail(0, problem)

    def _build_again(self) -> None:
        self.treated = self._build()

    def _close_vectors(self) -> None:
        for vector in self.treated.vectors if self._closes else ():
            with contextlib.suppress(Exception, SystemExit):  # what it did was good, and is done
                vector.close()

    def _try(self, what: str, call: Callable[..., Any], *args: Any) -> Any:
        """The result of a call, or an `EnvironmentFault`."""
        self._tell_watch(0)
        try:
            return call(*args)
        except (KeyboardInterrupt, EnvironmentFailed):
            raise
        except BaseException as problem:  # also `sys.exit`: an environment does not decide how a run ends
            return raised(f"the vector's {what}", problem)

    def _condemnation(self) -> EnvironmentFault | None:
        """Whether one of the episodes was condemned, in which case all must end: they step together. Returned once."""
        return next(iter(self._condemnations(range(len(self._indices))).values()), None)

    def _unpack(self, action: dict[str, np.ndarray]) -> np.ndarray:
        actions = np.asarray(self._actions.unpack(action[DEFAULT_GROUP]))
        spare = self.treated.envs - len(actions)
        return np.concatenate([actions, actions[:1].repeat(spare, axis=0)]) if spare else actions

    def _this_seed(self, env: int) -> int:
        """The seed of the episode numbered in `_episodes`."""
        return self._seed_of(env, 0)

    def _next_seed(self, env: int) -> int:
        return self._seed_of(env, 1)

    def _seed_of(self, env: int, later: int) -> int:
        if env >= len(self._indices):
            return episode_seed(self._seed, SPARE + env, self._clock)
        return episode_seed(self._seed, self._indices[env], int(self._episodes[env]) + later)
