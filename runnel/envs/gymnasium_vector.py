"""Gymnasium environments stepped together. No JAX is imported here.

The vector is our own loop. It takes off the wrappers whose work it does itself (the time limit, the order
of calls), because one Python call around a `step` of a few microseconds is a measurable part of it. The same goes
for looking whether all went well: that is done for all environments at once, and for each only where it did not.
"""

from __future__ import annotations

import contextlib
import importlib.util
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from runnel.environment import Episode, Failure, HostStep, episode_seed
from runnel.envs import spaces
from runnel.envs.recovery import Failures, Fault, fault_of_reset, fault_of_step, raised
from runnel.errors import UserError
from runnel.types import DEFAULT_GROUP, PyTree, zeros

_call: Any = operator.call

NEVER = 1 << 62
"""The clock time at which the episode of an environment without a time limit is cut."""


class GymnasiumVector:
    """Several environments of one id, stepped one after the other."""

    stateful = False
    watch: Callable[[int], None] | None = None

    def __init__(
        self,
        name: str,
        make: Callable[[], gymnasium.Env],
        indices: Sequence[int],
        seed: int,
        observations: spaces.Observations,
        actions: spaces.Actions,
    ):
        """`make` gives a new environment: one for each index, and one for each that failed."""
        self._name, self._make = name, make
        self._indices = [int(index) for index in indices]
        self._seed = int(seed)
        self._observations = observations
        self._actions = actions
        rows = len(self._indices)
        self._environments = [make() for _ in indices]
        self._bare: list[gymnasium.Env] = [*self._environments]
        self._steps: list[Callable[..., Any]] = [_call] * rows
        self._resets: list[Callable[..., Any]] = [_call] * rows
        self._limits = [NEVER] * rows
        for row in range(rows):
            self._use(row, self._environments[row])
        self._episodes = [0] * rows
        self._clock = 0  # steps of the vector since `reset` or `restore`
        self._deadlines = [NEVER] * rows  # the clock time at which each episode is cut
        self._next_deadline = NEVER
        self._shown = zeros(observations.space, rows)  # our own copy: callers may write where we wrote the last
        self._failures = Failures(name, rows)
        self._condemned: dict[tuple[int, int], str] = {}  # by row and episode
        self._proven = False  # whether every environment has once begun an episode

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._start([0] * len(self._indices))
        for row in range(len(self._indices)):
            self._begin(row)
        self._started(observation)

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        self._clock += 1
        actions = self._actions.unpack(action[DEFAULT_GROUP])
        results: list[Any] = []
        reward = out.reward[DEFAULT_GROUP]
        ends: Sequence[tuple[int, bool]] = ()
        shown, good = self._shown, False
        if self.watch is None and not self._condemned:
            try:
                results.extend(map(_call, self._steps, actions))  # where one raises, those before it are kept
                observations, rewards, terminated, truncated, _ = zip(*results, strict=True)
                shown = self._observations.write(out.observation[DEFAULT_GROUP], observations)
                reward[:] = rewards
                if True in terminated or True in truncated or self._clock >= self._next_deadline:
                    ends = self._ends(terminated, truncated)
                largest = reward.item(reward.argmax())  # NaN, where one is
                good = largest == largest
            except Exception as problem:
                if len(results) < len(self._steps):
                    results.append(raised("step", problem))
        out.terminated.fill(False)
        out.truncated.fill(False)
        if good:
            self._shown = shown
        else:
            ends = self._look_at_each(actions, results, out)
        for row, terminated_row in ends:
            self._end(row, terminated_row, out)
        if self.watch is not None:
            self.watch(-1)

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

    def render(self, row: int) -> np.ndarray:
        try:
            picture = self._bare[row].render()
        except (error.DependencyNotInstalled, ImportError) as problem:
            raise missing_dependency(self._name, problem) from problem
        return np.asarray(picture, np.uint8)

    def close(self) -> None:
        for environment in self._environments:
            with contextlib.suppress(Exception):  # what it did was good, and is done
                environment.close()

    def _use(self, row: int, environment: gymnasium.Env) -> None:
        bare, limit = _strip(environment)
        _quicken(bare)
        self._environments[row], self._bare[row], self._limits[row] = environment, bare, limit
        self._steps[row], self._resets[row] = bare.step, bare.reset

    def _start(self, episodes: list[int]) -> None:
        self._clock = 0
        self._episodes = episodes
        self._condemned.clear()
        self._failures.forget()

    def _started(self, observation: dict[str, PyTree]) -> None:
        self._proven = True
        self._next_deadline = min(self._deadlines)
        self._observations.copy(observation[DEFAULT_GROUP], self._shown)
        if self.watch is not None:
            self.watch(-1)

    def _begin(self, row: int) -> None:
        """Starts the episode whose number stands in `_episodes`, or the first after it that can be started."""
        while fault := self._reset(row):
            if fault.misfit and not self._proven:
                raise UserError(f"{self._name}: {fault.what}; correct the environment's observation_space")
            self._fail(row, fault)
            self._episodes[row] += 1

    def _reset(self, row: int) -> Fault | None:
        if what := self._condemned.pop((row, self._episodes[row]), None):
            return Fault(what)
        if self.watch is not None:
            self.watch(row)
        seed = episode_seed(self._seed, self._indices[row], self._episodes[row])
        try:
            result = self._resets[row](seed=seed)
        except Exception as problem:
            return raised("reset", problem)
        try:
            observation, _ = result
            self._observations.write_row(self._shown, row, observation)
        except Exception as problem:
            return fault_of_reset(result, self._observations) or raised("reset", problem)
        self._deadlines[row] = self._clock + self._limits[row]
        self._next_deadline = min(self._deadlines)
        return None

    def _ends(self, terminated: Sequence[bool], truncated: Sequence[bool]) -> list[tuple[int, bool]]:
        """The rows whose episodes end with this step, and whether they say so themselves."""
        return [
            (row, bool(terminated[row]))  # said both: there is no value to bootstrap
            for row, deadline in enumerate(self._deadlines)
            if terminated[row] or truncated[row] or self._clock >= deadline
        ]

    def _end(self, row: int, terminated: bool, out: HostStep) -> None:
        """What is shown is an episode's last observation; shows the next one's first."""
        out.terminated[row] = terminated
        out.truncated[row] = not terminated
        self._observations.copy_row(out.last_observation[DEFAULT_GROUP], self._shown, row)
        self._episodes[row] += 1
        self._begin(row)
        self._observations.copy_row(out.observation[DEFAULT_GROUP], self._shown, row)

    def _look_at_each(self, actions: Iterable[Any], results: list[Any], out: HostStep) -> list[tuple[int, bool]]:
        """Something is wrong, or we are watched: steps those not yet stepped, and goes on without what failed.

        Gives the rows whose episodes end; of those that failed, the last good observation stays shown.
        """
        for row, action in enumerate(actions):
            if row >= len(results):
                results.append(self._try_step(row, action))
        terminated, truncated = [False] * len(results), [True] * len(results)
        for row, result in enumerate(results):
            if fault := self._fault(result):
                out.reward[DEFAULT_GROUP][row] = 0
                self._fail(row, fault, stepping=True)
            else:
                observation, reward, terminated[row], truncated[row], _ = result
                out.reward[DEFAULT_GROUP][row] = reward
                self._observations.write_row(self._shown, row, observation)
        self._observations.copy(out.observation[DEFAULT_GROUP], self._shown)
        return self._ends(terminated, truncated)

    def _try_step(self, row: int, action: Any) -> Any:
        """What a step gave, or a `Fault`."""
        if what := self._condemned.pop((row, self._episodes[row]), None):
            return Fault(what)
        if self.watch is not None:
            self.watch(row)
        try:
            return self._steps[row](action)
        except Exception as problem:
            return raised("step", problem)

    def _fault(self, result: Any) -> Fault | None:
        return result if isinstance(result, Fault) else fault_of_step(result, self._observations)

    def _replay(self, row: int, episode: Episode) -> Fault | None:
        """Plays an episode that has just begun as far as its actions go."""
        played = np.asarray(episode.actions.get(DEFAULT_GROUP, ()))
        for step, action in enumerate(self._actions.unpack(played) if len(played) else (), 1):
            result = self._try_step(row, action)
            if fault := self._fault(result):
                return fault
            if result[2] or result[3]:
                lengths = f"an episode of {len(played)} steps and more ended after {step}"
                return Fault(f"{lengths}: the environment is not deterministic")
            if step == len(played):
                self._observations.write_row(self._shown, row, result[0])
        self._deadlines[row] -= len(played)
        return None

    def _fail(self, row: int, fault: Fault, stepping: bool = False) -> None:
        """Counts a failure, and puts an environment made anew in the place of the one that failed."""
        problem: Fault | None = fault
        while problem:
            failure = Failure(row, self._indices[row], self._episodes[row], problem.what, problem.traceback)
            self._failures.add(failure, self._clock, stepping)
            problem = self._rebuild(row)

    def _rebuild(self, row: int) -> Fault | None:
        if self.watch is not None:
            self.watch(row)
        with contextlib.suppress(Exception):
            self._environments[row].close()
        try:
            self._use(row, self._make())
        except Exception as problem:
            return raised("making it anew", problem)
        return None


class _QuickDiscrete(gymnasium.spaces.Discrete):
    """The same space with a quicker answer to whether an action is in it.

    Many environments assert that at every step. In a run of PPO on CartPole, stepping took a fifth less time with it.
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
    """Without the wrappers that only check how the environment is used: the vector uses it rightly."""
    while isinstance(environment, OrderEnforcing | PassiveEnvChecker):
        environment = environment.env
    return environment


def missing_dependency(name: str, problem: Exception) -> UserError:
    text = one_line(problem)
    if "mujoco" in text.lower() and importlib.util.find_spec("mujoco") is None:
        return UserError(f"{name} needs MuJoCo, which is not installed; run: pip install 'runnel[mujoco]'")
    if "pygame" in text.lower() and importlib.util.find_spec("pygame") is None:
        return UserError(f"{name} needs pygame, which is not installed; run: pip install 'runnel[classic]'")
    if "ale_py" in text:
        return UserError(f"{name} needs the Arcade Learning Environment; run: pip install ale-py")
    return UserError(f"{name} needs something that is not installed: {text}")


def one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())
