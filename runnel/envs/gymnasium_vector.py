"""A vector of Gymnasium environments, stepped one after the other. No JAX is imported here.

The vector has its own loop. It removes wrappers whose work it does itself (the time limit, the order of calls), because
one Python call around a `step` of a few microseconds is a measurable part of it. For the same reason results are
checked for all environments at once, and individually only after a failure.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from runnel.environment import Episode, HostStep
from runnel.envs import infos, spaces
from runnel.envs.making import missing_dependency
from runnel.envs.recovery import EnvironmentFault, fault_of_reset, fault_of_step, raised
from runnel.envs.vector import RecoveringVector, ended_early
from runnel.types import DEFAULT_GROUP, PyTree, zeros

_call: Any = operator.call

NEVER = 1 << 62
"""The deadline of an environment without a time limit."""


class GymnasiumVector(RecoveringVector[gymnasium.Env]):
    """Several environments of one id, stepped one after the other."""

    def __init__(
        self,
        name: str,
        make: Callable[[], gymnasium.Env],
        indices: Sequence[int],
        seed: int,
        observations: spaces.Observations,
        actions: spaces.Actions,
    ):
        super().__init__(name, make, indices, seed)
        self._observations = observations
        self._actions = actions
        rows = len(self._indices)
        self.bare: list[gymnasium.Env] = [*self.environments]
        self._steps: list[Callable[..., Any]] = [_call] * rows
        self._resets: list[Callable[..., Any]] = [_call] * rows
        self._limits = [NEVER] * rows
        for row, environment in enumerate(self.environments):
            self._use(row, environment)
        self._deadlines = [NEVER] * rows  # the clock time at which each episode is cut
        self._next_deadline = NEVER
        self._shown = zeros(observations.space, rows)  # our own copy: callers may write where we wrote the last

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        self._clock += 1
        actions = self._actions.unpack(action[DEFAULT_GROUP])
        results: list[Any] = []
        reward = out.reward[DEFAULT_GROUP]
        self._rewards = reward.dtype
        ends: Sequence[tuple[int, bool]] = ()
        shown, good = self._shown, False
        if self.watch is None and not self._condemned:
            try:
                results.extend(self._step_each(actions))  # where one raises, those before it are kept
                observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
                shown = self._observations.write(out.observation[DEFAULT_GROUP], observations)
                given = np.array(rewards)
                good = spaces.are_rewards(given, reward)
                if good:
                    reward[:] = given
                if True in terminated or True in truncated or self._clock >= self._next_deadline:
                    ends = self._ends(terminated, truncated)
            except KeyboardInterrupt:
                raise
            except BaseException as problem:  # also `sys.exit`: an environment does not decide how a run ends
                good = False
                if len(results) < len(self._steps):
                    results.append(raised("step", problem))
        out.terminated.fill(False)
        out.truncated.fill(False)
        if good:
            self._shown = shown
        else:
            ends = self._look_at_each(actions, results, out)
        for row, terminated_row in ends:
            self._end(row, terminated_row, results[row], out)
        if self.watch is not None:
            self.watch(-1)

    def render(self, row: int) -> np.ndarray:
        try:
            picture = self.bare[row].render()
        except (error.DependencyNotInstalled, ImportError) as problem:
            raise missing_dependency(self._name, problem) from problem
        return np.asarray(picture, np.uint8)

    def _use(self, row: int, environment: gymnasium.Env) -> None:
        bare, limit = _strip(environment)
        _quicken(bare)
        self.environments[row], self.bare[row], self._limits[row] = environment, bare, limit
        self._steps[row], self._resets[row] = bare.step, bare.reset

    def _close(self, environment: gymnasium.Env) -> None:
        environment.close()

    def _copy_shown(self, observation: dict[str, PyTree]) -> None:
        self._observations.copy(observation[DEFAULT_GROUP], self._shown)

    def _begin_episode(self, row: int, seed: int) -> EnvironmentFault | None:
        result = self._try(row, "reset", self._resets[row], seed=seed)
        if isinstance(result, EnvironmentFault):
            return result
        try:
            observation, _ = result
            self._observations.write_row(self._shown, row, observation)
        except Exception as problem:
            return fault_of_reset(result, self._observations) or raised("reset", problem)
        self._cut_at(row, self._clock + self._limits[row])
        return None

    def _cut_at(self, row: int, deadline: int) -> None:
        self._deadlines[row] = deadline
        self._next_deadline = min(self._deadlines)

    def _step_each(self, actions: Iterable[Any]) -> Iterable[Any]:
        """Steps every environment; yields the results one by one."""
        return map(_call, self._steps, actions)

    def _ends(self, terminated: Sequence[bool], truncated: Sequence[bool]) -> list[tuple[int, bool]]:
        """The rows whose episodes end with this step, each with whether it terminated."""
        return [
            (row, bool(terminated[row]))  # said both: there is no value to bootstrap
            for row, deadline in enumerate(self._deadlines)
            if terminated[row] or truncated[row] or self._clock >= deadline
        ]

    def _end(self, row: int, terminated: bool, result: Any, out: HostStep) -> None:
        """Records the current observation as an episode's last one, and shows the first of the next."""
        out.terminated[row] = terminated
        out.truncated[row] = not terminated
        self._observations.copy_row(out.last_observation[DEFAULT_GROUP], self._shown, row)
        if not self._goes_on(row):
            if not isinstance(result, EnvironmentFault):
                self._ended.add(row, self._episodes[row], self._metrics(row, result[4]))
            self._episodes[row] += 1
            self._begin(row)
        self._observations.copy_row(out.observation[DEFAULT_GROUP], self._shown, row)

    def _goes_on(self, row: int) -> bool:
        """Whether an environment continues without a reset although an episode has ended; it then shows its next
        observation."""
        return False

    def _metrics(self, row: int, info: Any) -> dict[str, float]:
        """The metrics of the environment's episode that has just ended."""
        return infos.numbers(info)

    def _look_at_each(self, actions: Iterable[Any], results: list[Any], out: HostStep) -> list[tuple[int, bool]]:
        """Steps the remaining environments one by one after a failure or under a watch; truncates those that fail.

        Returns the rows whose episodes end; a failed row keeps its last valid observation.
        """
        for row, action in enumerate(actions):
            if row >= len(results):
                results.append(self._try(row, "step", self._steps[row], action))
        terminated, truncated = [False] * len(results), [True] * len(results)
        for row, result in enumerate(results):
            if fault := self._fault(result):
                results[row] = fault
                out.reward[DEFAULT_GROUP][row] = 0
                self._fail(row, fault, stepping=True)
            else:
                observation, reward, terminated[row], truncated[row], _ = result
                out.reward[DEFAULT_GROUP][row] = reward
                self._observations.write_row(self._shown, row, observation)
        self._observations.copy(out.observation[DEFAULT_GROUP], self._shown)
        return self._ends(terminated, truncated)

    def _fault(self, result: Any) -> EnvironmentFault | None:
        return (
            result if isinstance(result, EnvironmentFault) else fault_of_step(result, self._observations, self._rewards)
        )

    def _replay(self, row: int, episode: Episode) -> EnvironmentFault | None:
        played = np.asarray(episode.actions.get(DEFAULT_GROUP, ()))
        for step, action in enumerate(self._actions.unpack(played) if len(played) else (), 1):
            result = self._try(row, "step", self._steps[row], action)
            if fault := self._fault(result):
                return fault
            if result[2] or result[3]:
                if not self._goes_on(row):
                    return ended_early(len(played), step)
            elif step == len(played):
                self._observations.write_row(self._shown, row, result[0])
        self._cut_at(row, self._deadlines[row] - len(played))
        return None


class _QuickDiscrete(gymnasium.spaces.Discrete):
    """The same space with a faster check of whether it contains an action.

    Many environments assert that at every step. In a run of PPO on CartPole, this took a fifth off the time of
    stepping.
    """

    def __init__(self, n: int, start: int):
        super().__init__(n, start=start)
        self._range = range(int(start), int(start) + int(n))

    def contains(self, x: Any) -> bool:
        return int(x) in self._range


def _quicken(environment: gymnasium.Env) -> None:
    """Gives an environment of whole-number actions a quicker space to check them against."""
    inner = environment.unwrapped
    space = inner.action_space
    if type(space) is gymnasium.spaces.Discrete:
        with contextlib.suppress(AttributeError):  # a read-only property: it stays as it is
            inner.action_space = _QuickDiscrete(int(space.n), int(space.start))


def _strip(environment: gymnasium.Env) -> tuple[gymnasium.Env, int]:
    """The environment without the wrappers that the vector does the work of, and the time limit it had."""
    limit = NEVER
    if type(environment) is TimeLimit:
        limit = environment._max_episode_steps
        environment = environment.env
    environment = _needed(environment)
    outer = environment
    while isinstance(outer, gymnasium.Wrapper):
        outer.env = _needed(outer.env)
        outer = outer.env
    return environment, limit


def _needed(environment: gymnasium.Env) -> gymnasium.Env:
    """Removes the wrappers that only check the use of the environment."""
    while isinstance(environment, OrderEnforcing | PassiveEnvChecker):
        environment = environment.env
    return environment
