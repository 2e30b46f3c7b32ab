"""Gymnasium environments: any registered id, or a factory of the user's own. No JAX is imported here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
from gymnasium import error
from gymnasium.envs.registration import load_env_creator
from gymnasium.wrappers import TimeLimit

from runnel.envs import spaces
from runnel.envs.gymnasium_vector import GymnasiumVector
from runnel.envs.making import (
    as_user_errors,
    bad_setting,
    draw_without_screen,
    joined_lines,
    missing_dependency,
    names_parameter,
    takes_keyword,
    warn_once,
)
from runnel.errors import UserError, a, nearest
from runnel.types import EnvSpec
from runnel.user_code import source_scan

Factory = Callable[..., gymnasium.Env]


class GymnasiumEnvironment:
    """A Gymnasium id, or a callable that creates a new `gymnasium.Env` each time, and its settings."""

    def __init__(
        self,
        name_or_factory: str | Factory,
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        probe: gymnasium.Env | None = None,
    ):
        """`name`: the name of a factory in messages. `probe`: an environment that it created, closed here."""
        self._made_from = name_or_factory
        self._kwargs = dict(kwargs or {})
        self._name = name or _name_of(name_or_factory)
        if probe is None:
            with as_user_errors(self._name, name_or_factory, self._kwargs):
                probe = self._make(render=False)
        try:
            seen, action = (_space(probe, f"{which}_space", self._name) for which in ("observation", "action"))
            self._observations = spaces.observations(seen, self._name)
            self._actions = spaces.actions(action, self._name)
            native = spaces.native_format(seen, action, self._name)
            limit = _time_limit(probe)
        finally:
            probe.close()
        self.spec = EnvSpec.single(self._name, self._observations.space, self._actions.space, limit, native)

    @staticmethod
    def has_setting(name: str, setting: str) -> bool:
        """Whether the environment of an id names a setting among its arguments."""
        return names_parameter(_maker(name), setting)

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> GymnasiumVector:
        if render:
            draw_without_screen()
        make = partial(self._make, render)
        return GymnasiumVector(self._name, make, indices, seed, self._observations, self._actions)

    def _make(self, render: bool) -> gymnasium.Env:
        kwargs = dict(self._kwargs)
        if isinstance(self._made_from, str):
            if render:
                kwargs["render_mode"] = "rgb_array"
            environment = _make_registered(self._made_from, kwargs)
        else:
            if render and takes_keyword(self._made_from, "render_mode"):
                kwargs["render_mode"] = "rgb_array"
            environment = _make_own(self._made_from, self._name, kwargs)
        if render and environment.render_mode != "rgb_array":
            found, modes = environment.render_mode, environment.metadata.get("render_modes", [])
            environment.close()
            has = f"found {found!r} of {', '.join(modes)}" if modes else "its metadata has no render_modes"
            raise UserError(
                f"{self._name} cannot be rendered: expected render mode 'rgb_array', {has}. "
                "Let it take `render_mode`, and implement `render`"
            )
        return environment


def _space(environment: gymnasium.Env, which: str, name: str) -> gymnasium.Space:
    space = getattr(environment, which, None)  # gymnasium.Env declares them, and has none
    if space is None:
        raise UserError(
            f"{name} has no {which}; set one in `__init__`", page="add-an-environment#your-own-from-gymnasium"
        )
    return space


def _time_limit(environment: gymnasium.Env) -> int | None:
    """The largest number of steps in an episode, from the outermost TimeLimit."""
    outer = environment
    while isinstance(outer, gymnasium.Wrapper):
        if isinstance(outer, TimeLimit):
            return outer._max_episode_steps
        outer = outer.env
    return environment.spec.max_episode_steps if environment.spec else None


def _make_registered(name: str, kwargs: dict[str, Any]) -> gymnasium.Env:
    try:
        if "mujoco" in str(getattr(gymnasium.registry.get(name), "entry_point", "")):
            warn_once()
        return gymnasium.make(name, disable_env_checker=True, **kwargs)
    except (error.UnregisteredEnv, error.DeprecatedEnv) as problem:
        known = source_scan.hint(name, source_scan.environments(name)) or nearest(name, gymnasium.registry)
        raise UserError(
            f"no Gymnasium environment is called '{name}'{known}", page="add-an-environment#a-gymnasium-id"
        ) from problem
    except (error.DependencyNotInstalled, ImportError) as problem:
        raise missing_dependency(name, problem) from problem
    except error.Error as problem:
        raise UserError(f"Gymnasium cannot make '{name}': {joined_lines(problem)}") from problem
    except TypeError as problem:
        raise bad_setting(name, kwargs, problem, _maker(name), ("max_episode_steps",)) from problem


def _maker(name: str) -> Any:
    """The callable that creates the environment of an id; None if it cannot be found."""
    try:
        entry: Any = gymnasium.spec(name).entry_point
        return entry if callable(entry) else load_env_creator(entry)
    except (error.Error, ImportError, AttributeError, ValueError):  # making it says what is wrong
        return None


def _make_own(factory: Factory, name: str, kwargs: dict[str, Any]) -> gymnasium.Env:
    try:
        environment = factory(**kwargs)
    except (error.DependencyNotInstalled, ImportError) as problem:
        raise missing_dependency(name, problem) from problem
    except TypeError as problem:
        raise bad_setting(name, kwargs, problem, factory) from problem
    if not isinstance(environment, gymnasium.Env):
        raise UserError(f"{name} returned {a(environment)}; expected a new gymnasium.Env at each call")
    return environment


def _name_of(name_or_factory: str | Factory) -> str:
    if isinstance(name_or_factory, str):
        return name_or_factory
    named = name_or_factory if hasattr(name_or_factory, "__qualname__") else type(name_or_factory)
    return f"{named.__module__}:{named.__qualname__}"
