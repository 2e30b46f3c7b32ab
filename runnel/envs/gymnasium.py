"""Gymnasium environments: any registered id, or a factory of the user's own. No JAX is imported here.

The vector is our own loop. It takes off the wrappers whose work it does itself (the time limit, the order
of calls), because one Python call around a `step` of a few microseconds is a measurable part of it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from runnel.environment import Episode, HostStep, episode_seed
from runnel.envs import spaces
from runnel.errors import UserError, nearest
from runnel.types import DEFAULT_GROUP, EnvSpec, PyTree

Factory = Callable[..., gymnasium.Env]

_call: Any = operator.call

NEVER = 1 << 62
"""The clock time at which the episode of an environment without a time limit is cut."""


class GymnasiumEnvironment:
    """A Gymnasium id, or a callable that makes a new `gymnasium.Env` each time, and its settings."""

    def __init__(
        self,
        name_or_factory: str | Factory,
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        probe: gymnasium.Env | None = None,
    ):
        """`name` is what a factory is called in messages; `probe` is one already made, closed here."""
        self._made_from = name_or_factory
        self._kwargs = dict(kwargs or {})
        self._name = name or _name_of(name_or_factory)
        if probe is None:
            probe = self._make(render=False)
        try:
            self._observations = spaces.observations(probe.observation_space, self._name)
            self._actions = spaces.actions(probe.action_space, self._name)
            limit = _time_limit(probe)
        finally:
            probe.close()
        self.spec = EnvSpec.single(self._name, self._observations.space, self._actions.space, limit)

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> GymnasiumVector:
        if render and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            # Without a screen, MuJoCo's and pygame's own choices fail or complain.
            os.environ.setdefault("MUJOCO_GL", "egl")
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        environments = [self._make(render) for _ in indices]
        return GymnasiumVector(self._name, environments, indices, seed, self._observations, self._actions)

    def _make(self, render: bool) -> gymnasium.Env:
        kwargs = dict(self._kwargs)
        if isinstance(self._made_from, str):
            if render:
                kwargs["render_mode"] = "rgb_array"
            environment = _make_registered(self._made_from, kwargs)
        else:
            if render and _takes(self._made_from, "render_mode"):
                kwargs["render_mode"] = "rgb_array"
            environment = _make_own(self._made_from, self._name, kwargs)
        if render and environment.render_mode != "rgb_array":
            found, modes = environment.render_mode, environment.metadata.get("render_modes", [])
            environment.close()
            raise UserError(
                f"{self._name} gives no pictures: wanted render mode 'rgb_array', found {found!r} "
                f"of {', '.join(modes) or 'none'}. Let it take `render_mode`, and implement `render`"
            )
        return environment


class GymnasiumVector:
    """Several environments of one id, stepped one after the other."""

    def __init__(
        self,
        name: str,
        environments: Sequence[gymnasium.Env],
        indices: Sequence[int],
        seed: int,
        observations: spaces.Observations,
        actions: spaces.Actions,
    ):
        self._name = name
        self._environments = environments
        self._indices = [int(index) for index in indices]
        self._seed = int(seed)
        self._observations = observations
        self._actions = actions
        bare, limits = zip(*map(_strip, environments), strict=True)
        self._bare: Sequence[gymnasium.Env] = bare
        for environment in bare:
            _quicken(environment)
        self._steps = [environment.step for environment in bare]
        self._resets = [environment.reset for environment in bare]
        self._limits: Sequence[int] = limits
        self._episodes = [0] * len(environments)
        self._clock = 0  # steps of the vector since `reset` or `restore`
        self._deadlines = [NEVER] * len(environments)  # the clock time at which each episode is cut
        self._next_deadline = NEVER

    def reset(self, observation: dict[str, PyTree]) -> None:
        self._clock = 0
        self._episodes = [0] * len(self._environments)
        first = [self._begin(row) for row in range(len(self._environments))]
        self._check(first)
        self._observations.write(observation[DEFAULT_GROUP], first)

    def step(self, action: dict[str, np.ndarray], out: HostStep) -> None:
        self._clock += 1
        steps = map(_call, self._steps, self._actions.unpack(action[DEFAULT_GROUP]))
        observations, rewards, terminated, truncated, _ = zip(*steps, strict=True)
        out.reward[DEFAULT_GROUP][:] = rewards
        out.terminated[:] = False
        out.truncated[:] = False
        if True in terminated or True in truncated or self._clock >= self._next_deadline:
            observations = self._begin_next_episodes(observations, terminated, truncated, out)
        self._observations.write(out.observation[DEFAULT_GROUP], observations)

    def episode_numbers(self) -> np.ndarray:
        return np.array(self._episodes, np.int64)

    def restore(self, episodes: Sequence[Episode], observation: dict[str, PyTree]) -> None:
        self._clock = 0
        self._episodes = [int(episode.number) for episode in episodes]
        for row, episode in enumerate(episodes):
            last = self._begin(row)
            actions = list(self._actions.unpack(np.asarray(episode.actions[DEFAULT_GROUP])))
            for step, action in enumerate(actions):
                last, _, terminated, truncated, _ = self._steps[row](action)
                if terminated or truncated:
                    raise UserError(
                        f"{self._name}: an episode of {len(actions)} steps and more ended after {step + 1} "
                        "when played again: it is not deterministic, and a run of it cannot be resumed"
                    )
            self._deadlines[row] = self._limits[row] - len(actions)
            self._observations.write_row(observation[DEFAULT_GROUP], row, last)
        self._next_deadline = min(self._deadlines)

    def render(self, row: int) -> np.ndarray:
        try:
            picture = self._bare[row].render()
        except (error.DependencyNotInstalled, ImportError) as problem:
            raise _missing_dependency(self._name, problem) from problem
        return np.asarray(picture, np.uint8)

    def close(self) -> None:
        for environment in self._environments:
            environment.close()

    def _begin(self, row: int) -> Any:
        """Starts the episode whose number stands in `_episodes`; returns its first observation."""
        self._deadlines[row] = self._clock + self._limits[row]
        self._next_deadline = min(self._deadlines)
        seed = episode_seed(self._seed, self._indices[row], self._episodes[row])
        return self._resets[row](seed=seed)[0]

    def _begin_next_episodes(
        self, last: Sequence[Any], terminated: Sequence[bool], truncated: Sequence[bool], out: HostStep
    ) -> Sequence[Any]:
        """Keeps the last observations of episodes that ended; gives the next ones' first in their place."""
        following = list(last)
        for row, deadline in enumerate(self._deadlines):
            if terminated[row] or truncated[row] or self._clock >= deadline:
                out.terminated[row] = terminated[row]
                out.truncated[row] = not terminated[row]  # said both: there is no value to bootstrap
                self._observations.write_row(out.last_observation[DEFAULT_GROUP], row, last[row])
                self._episodes[row] += 1
                following[row] = self._begin(row)
        return following

    def _check(self, observations: Sequence[Any]) -> None:
        """An observation of another shape than the space says would be broadcast into its row, unseen."""
        for environment, observation in zip(self._environments, observations, strict=True):
            found, wanted = np.shape(observation), environment.observation_space.shape
            if isinstance(environment.observation_space, gymnasium.spaces.Box) and found != wanted:
                raise UserError(
                    f"{self._name}: `reset` gave an observation of shape {found}, its observation_space says "
                    f"{wanted}; correct the environment's observation_space"
                )


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


def _time_limit(environment: gymnasium.Env) -> int | None:
    """The most steps an episode can have, as the outermost limit says."""
    outer = environment
    while isinstance(outer, gymnasium.Wrapper):
        if isinstance(outer, TimeLimit):
            return outer._max_episode_steps
        outer = outer.env
    return environment.spec.max_episode_steps if environment.spec else None


def _make_registered(name: str, kwargs: dict[str, Any]) -> gymnasium.Env:
    if name.startswith("ALE/"):
        try:
            gymnasium.register_envs(importlib.import_module("ale_py"))
        except ImportError as problem:
            raise _missing_dependency(name, problem) from problem
    try:
        return gymnasium.make(name, disable_env_checker=True, **kwargs)
    except (error.UnregisteredEnv, error.DeprecatedEnv) as problem:
        known = nearest(name, gymnasium.registry)
        raise UserError(f"no Gymnasium environment is called '{name}'{known}") from problem
    except (error.DependencyNotInstalled, ImportError) as problem:
        raise _missing_dependency(name, problem) from problem
    except error.Error as problem:
        raise UserError(f"Gymnasium cannot make '{name}': {_one_line(problem)}") from problem
    except TypeError as problem:
        raise _bad_setting(name, kwargs, problem) from problem


def _make_own(factory: Factory, name: str, kwargs: dict[str, Any]) -> gymnasium.Env:
    try:
        environment = factory(**kwargs)
    except (error.DependencyNotInstalled, ImportError) as problem:
        raise _missing_dependency(name, problem) from problem
    except TypeError as problem:
        raise _bad_setting(name, kwargs, problem) from problem
    if not isinstance(environment, gymnasium.Env):
        raise UserError(f"{name} gave a {type(environment).__name__}; wanted a new gymnasium.Env at each call")
    return environment


def _bad_setting(name: str, kwargs: dict[str, Any], problem: TypeError) -> Exception:
    """Says which setting the environment does not take; any other TypeError is its own and passes."""
    unknown = [key for key in kwargs if f"unexpected keyword argument '{key}'" in str(problem)]
    if not unknown:
        return problem
    return UserError(f"{name} has no setting '{unknown[0]}'; leave it out")


def _missing_dependency(name: str, problem: Exception) -> UserError:
    text = _one_line(problem)
    if "mujoco" in text.lower() and importlib.util.find_spec("mujoco") is None:
        return UserError(f"{name} needs MuJoCo, which is not installed; run: pip install 'runnel[mujoco]'")
    if "pygame" in text.lower() and importlib.util.find_spec("pygame") is None:
        return UserError(f"{name} needs pygame, which is not installed; run: pip install 'runnel[classic]'")
    if "ale_py" in text:
        return UserError(f"{name} needs the Arcade Learning Environment; run: pip install ale-py")
    return UserError(f"{name} needs something that is not installed: {text}")


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def _takes(factory: Factory, keyword: str) -> bool:
    """Whether a callable accepts a keyword argument."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == keyword or p.kind is p.VAR_KEYWORD for p in parameters)


def _name_of(name_or_factory: str | Factory) -> str:
    if isinstance(name_or_factory, str):
        return name_or_factory
    named = name_or_factory if hasattr(name_or_factory, "__qualname__") else type(name_or_factory)
    return f"{named.__module__}:{named.__qualname__}"
