"""Environments by name. Each family is one adapter, imported only when a name asks for it."""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from runnel.config import serialization
from runnel.environment import Environment, HostEnvironment, JaxEnvironment, is_traceable
from runnel.envs import frame_stack, lineups, seats
from runnel.envs.making import COUNT, as_user_errors, check_settings, names_parameter, requires_parameter
from runnel.errors import EnvironmentFailed, NotInstalled, UserError, a
from runnel.types import EnvSpec


class Family(NamedTuple):
    """Environments with one prefix and one adapter, which receives the rest of the name and the settings."""

    prefix: str
    adapter: str  # runnel.envs.module:Class
    package: str  # what must be installed; empty for families that need nothing more
    extra: str  # of runnel: brings it
    summary: str
    central: bool = False  # takes `state=True`: observations then carry the whole environment's state
    modules: bool = False  # its names are modules, and may be the user's; its adapter's module has `is_shipped`
    stacks: str = ""  # the setting by which its environments stack frames themselves

    @property
    def installed(self) -> bool:
        return not self.package or importlib.util.find_spec(self.package) is not None


FAMILIES = (
    Family("ALE/", "runnel.envs.ale:AleEnvironment", "ale_py", "atari", "an Atari game: ALE/Pong-v5",
           stacks="stack"),
    Family("gymnax:", "runnel.envs.gymnax:GymnaxEnvironment", "gymnax", "gymnax",
           "a gymnax environment, in JAX: gymnax:CartPole-v1, gymnax:Breakout-MinAtar"),
    Family("brax:", "runnel.envs.brax:BraxEnvironment", "brax", "brax",
           "a Brax environment, in JAX: brax:ant, brax:halfcheetah"),
    Family("jaxmarl:", "runnel.envs.jaxmarl:JaxMarlEnvironment", "jaxmarl", "jaxmarl",
           "several agents, in JAX: jaxmarl:MPE_simple_spread_v3, jaxmarl:3m, jaxmarl:hanabi", central=True),
    Family("pgx:", "runnel.envs.pgx:PgxEnvironment", "pgx", "pgx",
           "a board or card game, in JAX: pgx:connect_four, pgx:go_9x9, pgx:kuhn_poker"),
    Family("matrix:", "runnel.envs.matrix_games:make", "", "",
           "a game of two with simultaneous moves, in JAX: matrix:rock_paper_scissors, matrix:prisoners_dilemma"),
    Family("hide:", "hide_and_seek.environment:HideAndSeek", "hide_and_seek", "",
           "hide-and-seek with boxes and ramps, in JAX: hide:quadrant, hide:full", central=True),
    Family("openspiel:", "runnel.envs.openspiel:OpenSpielEnvironment", "pyspiel", "openspiel",
           "a game of OpenSpiel: openspiel:kuhn_poker, openspiel:leduc_poker, openspiel:goofspiel", central=True),
    Family("pettingzoo:", "runnel.envs.pettingzoo:PettingZooEnvironment", "pettingzoo", "pettingzoo",
           "several agents, parallel or in turns: pettingzoo:mpe2.simple_spread_v3",
           central=True, modules=True),
    Family("envpool:", "runnel.envs.envpool:EnvPoolEnvironment", "envpool", "envpool",
           "many C++ environments at once: envpool:Pong-v5"),
)  # fmt: skip


CHOICES = frozenset({
    "act_type", "action_type", "attack_mode", "backend", "desc", "game_version", "groups", "homogenisation_method",
    "layout", "lineups", "map_id", "map_name", "maze_map", "obs_method", "obs_type", "observation_type", "observe",
    "reward_type", "rules", "scenario", "score_function",
})  # fmt: skip
"""Settings of environments whose text is one of a library's own words. Other texts may be files."""


class Scheme(NamedTuple):
    """A way of naming environments: `gymnax:NAME`, and its description."""

    name: str
    summary: str
    installed: bool = True

    @property
    def prefix(self) -> str:
        """The part of the name before the colon; empty if there is none."""
        return self.name.partition(":")[0] if ":" in self.name else ""


OWN = "package.module"
"""Placeholder for the module of the user's own environment."""

WANTED = "a gymnasium.Env or VectorEnv, a JaxEnvironment or a HostEnvironment"


def schemes() -> list[Scheme]:
    """The ways of naming environments in this version."""

    def of(family: Family) -> Scheme:
        missing = "" if family.installed else f" (not installed; run: pip install 'runnel[{family.extra}]')"
        return Scheme(f"{family.prefix}NAME", family.summary + missing, family.installed)

    return [
        Scheme("NAME", "a Gymnasium id: CartPole-v1, HalfCheetah-v5"),
        *map(of, FAMILIES),
        Scheme(f"{OWN}:callable", f"your own: the callable returns {WANTED}"),
    ]


def make(name: str, /, **kwargs: Any) -> Environment:
    """The environment of that name, made with the settings `kwargs`."""
    if family := _family(name):
        if not family.installed:
            raise NotInstalled(name, f"'{family.package}'", family.extra)
        if family.stacks and frame_stack.SETTING in kwargs:
            frames = kwargs[frame_stack.SETTING]
            raise UserError(
                f"{name} stacks its frames itself: found env.{frame_stack.SETTING}={frames}, expected "
                f"env.{family.stacks}={frames}"
            )
        adapter, known_as = serialization.import_object(family.adapter), name.removeprefix(family.prefix)
        with _blaming(name, kwargs):
            return _stacked(kwargs, partial(_has_setting, adapter, known_as), lambda rest: adapter(known_as, **rest))
    if ":" not in name:
        from runnel.envs.gymnasium import GymnasiumEnvironment

        with _blaming(name, kwargs):
            has_setting = partial(_has_setting, GymnasiumEnvironment, name)
            return _stacked(kwargs, has_setting, lambda rest: GymnasiumEnvironment(name, rest))
    module, _, attribute = name.rpartition(":")
    return _own(name, _find(name, module, attribute), kwargs)


def _stacked(
    settings: dict[str, Any], has_setting: Callable[[str], bool], make: Callable[[dict[str, Any]], Environment]
) -> Environment:
    """The environment that `make` creates, wrapped in frame stacks, seats and line-ups as the settings ask.

    If the environment itself has a setting of such a name, the setting is passed to it instead.
    """
    if lineups.SETTING in settings and not has_setting(lineups.SETTING):
        rest = {key: value for key, value in settings.items() if key != lineups.SETTING}
        return lined_up(_stacked(rest, has_setting, make), settings[lineups.SETTING])
    if seats.SETTING in settings and not has_setting(seats.SETTING):
        rest = {key: value for key, value in settings.items() if key != seats.SETTING}
        return seated(_stacked(rest, has_setting, make), seats.checked(settings[seats.SETTING]))
    if frame_stack.SETTING not in settings or has_setting(frame_stack.SETTING):
        return make(settings)
    frames = frame_stack.checked(settings[frame_stack.SETTING])
    made = make({key: value for key, value in settings.items() if key != frame_stack.SETTING})
    if frames == 1:
        return made
    if not is_traceable(made):
        return frame_stack.FrameStackedEnvironment(cast(HostEnvironment, made), frames)
    from runnel.envs.frame_stack_jax import FrameStackedJaxEnvironment

    return FrameStackedJaxEnvironment(cast(JaxEnvironment, made), frames)


def lined_up(made: Environment, groups: Any) -> Environment:
    """An environment whose roles are played by several groups each; see `runnel.envs.lineups`."""
    if not is_traceable(made):
        return lineups.LinedUpEnvironment(cast(HostEnvironment, made), groups)
    from runnel.envs.lineups_jax import LinedUpJaxEnvironment

    return LinedUpJaxEnvironment(cast(JaxEnvironment, made), groups)


def seated(made: Environment, learning: int) -> Environment:
    """The environment with `learning` seats that learn."""
    if not is_traceable(made):
        return seats.SeatedEnvironment(cast(HostEnvironment, made), learning)
    from runnel.envs.seats_jax import SeatedJaxEnvironment

    return SeatedJaxEnvironment(cast(JaxEnvironment, made), learning)


def _has_setting(adapter: Any, name: str, setting: str) -> bool:
    """Whether an environment has a setting of that name, as far as its adapter knows."""
    has_setting = getattr(adapter, "has_setting", None)
    return has_setting is not None and has_setting(name, setting)


@contextlib.contextmanager
def _blaming(name: str, settings: dict[str, Any]) -> Iterator[None]:
    """Surrounds the creation of a library's environment, whose errors for unknown settings it converts."""
    try:
        yield
    except (UserError, EnvironmentFailed):
        raise
    except Exception as problem:
        if not settings:
            raise
        given = ", ".join(f"{key}={value}"[:60] for key, value in settings.items())
        reason = (str(problem).strip() or "no reason given").splitlines()[0]
        raise UserError(f"{name} cannot be made with {given}: {type(problem).__name__}: {reason}") from problem


def is_registered(name: str) -> bool:
    """Whether a name refers to an environment of an installed library, and not to a module of the user's."""
    family = _family(name)
    if family is None:
        # Gymnasium's own environments, except those that make another one, of any module, by its id.
        return ":" not in name and not name.startswith("GymV2")
    if not family.modules or not family.installed:  # `make` says that it is not
        return True
    return _adapter_module(family).is_shipped(name.removeprefix(family.prefix))


def is_choice(setting: str, text: str) -> bool:
    """Whether a text in this setting can only be one of a library's own words."""
    return setting in CHOICES and re.fullmatch(r"[\w|-]*", text) is not None


def in_jax(name: str) -> str | None:
    """The name of an environment's version in JAX, where gymnax has one."""
    gymnax = next(family for family in FAMILIES if family.package == "gymnax")
    if _family(name) or ":" in name or not gymnax.installed:
        return None
    return f"gymnax:{name}" if name in importlib.import_module("gymnax").registered_envs else None


def module_of(name: str) -> str | None:
    """The module, or file, that a name of the user's own environment leads to; None of other names."""
    family = _family(name)
    if family is not None:
        return name.removeprefix(family.prefix) if family.modules else None
    parts = serialization.split(name)
    return parts[0] if parts else None


def _adapter_module(family: Family) -> Any:
    return importlib.import_module(family.adapter.partition(":")[0])


def central_settings(name: str) -> dict[str, Any]:
    """The settings that make an environment's observations carry its whole state, if it needs any."""
    family = _family(name)
    return {"state": True} if family is not None and family.central else {}


def _family(name: str) -> Family | None:
    return next((family for family in FAMILIES if name.startswith(family.prefix)), None)


def of_object(found: Any, kwargs: dict[str, Any]) -> Environment:
    """The environment of a Python object: a class, a function, a `functools.partial`, or an environment itself."""
    return _own(label(found), found, kwargs)


def label(found: Any) -> str:
    """The display name of an environment given as an object: its import path, otherwise its name in its source."""
    if isinstance(found, str):
        return found
    named = found
    while isinstance(named, functools.partial):
        named = named.func
    named = named if hasattr(named, "__qualname__") else type(named)
    return serialization.path_of(found) or named.__qualname__.rpartition(".")[2].strip("<>")


def to_json(found: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The entry of an environment in a run's configuration: a name for other processes, otherwise noted as
    unavailable."""
    if isinstance(found, str):
        file, _, attribute = found.rpartition(":")
        # A script by its whole path: the run is evaluated from anywhere.
        name = f"{Path(file).resolve()}:{attribute}" if file.endswith(".py") else found
        return {"name": name, "settings": kwargs}
    noted = {} if serialization.path_of(found) else serialization.unavailable(f"the environment {label(found)}", found)
    return {"name": label(found), "settings": kwargs, **noted}


def _own(name: str, found: Any, kwargs: dict[str, Any]) -> Environment:
    """The user's own environment: `found` itself, or the result of calling it."""
    return _stacked(kwargs, partial(names_parameter, found), lambda rest: _unstacked(name, found, rest))


def _unstacked(name: str, found: Any, kwargs: dict[str, Any]) -> Environment:
    if _is_environment(found) and not kwargs:
        return found
    if _is_vector_env(found):
        from runnel.envs.user_vector import UserVectorEnvironment

        _check_no_settings(name, kwargs)
        return UserVectorEnvironment.of_object(name, found)
    if _is_gymnasium(found):
        found = _copies(name, found, kwargs)
    if not callable(found):
        raise UserError(
            f"'{name}' is {a(found)}; expected a callable that returns {WANTED}",
            page="add-an-environment#an-object-of-python",
        )
    given = _call(name, found, kwargs)
    if _is_vector_env(given):
        from runnel.envs.user_vector import Maker, UserVectorEnvironment

        return UserVectorEnvironment.of_callable(name, cast("Maker", found), kwargs, probe=given)
    if _is_gymnasium(given):
        from runnel.envs.gymnasium import Factory, GymnasiumEnvironment

        return GymnasiumEnvironment(cast("Factory", found), kwargs, name=name, probe=given)
    if not _is_environment(given):
        raise UserError(
            f"'{name}' returned {a(given)}; expected {WANTED}", page="add-an-environment#an-object-of-python"
        )
    return given


def _copies(name: str, environment: Any, kwargs: dict[str, Any]) -> Callable[[], Any]:
    """Copies an environment object, because a run needs several and only one was given."""
    _check_no_settings(name, kwargs)
    make = partial(copy.deepcopy, environment)
    try:
        make().close()
    except Exception as problem:
        raise UserError(
            f"'{name}' is one environment, and cannot be copied ({type(problem).__name__}: {problem}); give its class, "
            "or a function that makes a new one",
            page="add-an-environment#an-object-of-python",
        ) from problem
    return make


def _check_no_settings(name: str, kwargs: dict[str, Any]) -> None:
    if kwargs:
        raise UserError(f"'{name}' is made already; settings ({', '.join(kwargs)}) need what makes it: its class")


def _find(name: str, module: str, attribute: str) -> Any:
    """The object at `package.module:callable` or `/path/to/file.py:callable`."""
    families = [family.prefix.rstrip(":") for family in FAMILIES if family.prefix.endswith(":")]
    if meant := difflib.get_close_matches(module, families, n=1, cutoff=0.7):
        raise UserError(
            f"'{name}' is no environment name; did you mean '{meant[0]}:{attribute}'?",
            page="command-line#algorithms-and-environments",
        )
    if not all(part.isidentifier() for part in attribute.split(".")):
        raise UserError(
            f"'{name}' is no environment name. For an id that a package registers, write a function that "
            "makes it and name that: 'package.module:callable'",
            page="command-line#algorithms-and-environments",
        )
    try:
        return serialization.import_object(name)
    except UserError as problem:
        raise UserError(f"environment '{name}': {problem}", page=problem.page) from problem


def _call(name: str, factory: Any, kwargs: dict[str, Any]) -> Any:
    if requires_parameter(factory, COUNT) and COUNT not in kwargs:
        kwargs = {**kwargs, COUNT: 1}  # it makes vectors, of as many environments as are asked for
    check_settings(name, factory, kwargs)
    with as_user_errors(name, factory, kwargs):
        return factory(**kwargs)


def _is_gymnasium(value: Any) -> bool:
    """Whether an object is a gymnasium.Env. Must be checked first: it also has `spec`, `reset` and `step`, as a
    JaxEnvironment does."""
    gymnasium = sys.modules.get("gymnasium")  # an Env cannot exist before its module
    return gymnasium is not None and isinstance(value, gymnasium.Env)


def _is_vector_env(value: Any) -> bool:
    vector = sys.modules.get("gymnasium.vector")
    return vector is not None and isinstance(value, vector.VectorEnv)


def _is_environment(value: Any) -> bool:
    if isinstance(value, type) or _is_gymnasium(value):
        return False
    return isinstance(value, JaxEnvironment | HostEnvironment) and isinstance(value.spec, EnvSpec)
