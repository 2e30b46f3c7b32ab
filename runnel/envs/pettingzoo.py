"""PettingZoo environments, of PettingZoo itself, of mpe2 or of the user's own module. No JAX is imported here."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import pettingzoo

from runnel.config import serialization
from runnel.envs.making import bad_setting, draw_without_screen, names_parameter
from runnel.envs.pettingzoo_games import Parallel, Turns
from runnel.envs.recovery import raised
from runnel.envs.team_games import Agent, Game, Moment
from runnel.envs.team_vector import TeamVector
from runnel.envs.teams import groups_of, sight_of, state_of, team_of
from runnel.errors import EnvironmentFailed, UserError, nearest
from runnel.types import AgentSpec, EnvSpec
from runnel.user_code import named_modules

GROUPS = ("kind", "each", "one")

FAMILIES = ("atari", "butterfly", "classic", "mpe", "sisl")
"""PettingZoo's packages of environments."""

TOGETHER = ("mpe2.", "butterfly.cooperative_pong", "butterfly.pistonball", "classic.rps", "sisl.pursuit")
"""Parallel environments whose agents are all there from the first step of an episode to the last."""


class PettingZooEnvironment:
    """An environment by the name of its module: `mpe2.simple_spread_v3`, `classic.tictactoe_v3`, `my.module`.

    The module has `parallel_env`, or, where agents act in turns, `env`; these receive the settings. Besides those:
    `groups` decides which agents share a policy ("kind": one name before the number, and equal spaces; "each": none;
    "one": all), `state` whether observations carry the whole state, and `active` whether they mark the agents that act
    (None: where agents act in turns, or may die or arrive).
    """

    def __init__(
        self, name: str, /, *, groups: str = "kind", state: bool = False, active: bool | None = None, **settings: Any
    ):
        self._name = f"pettingzoo:{name}"
        if groups not in GROUPS:
            raise UserError(f"{self._name}: groups is '{groups}'{nearest(groups, GROUPS)}")
        name = name.removeprefix("pettingzoo.")
        self._made_from, self._settings = _find(name), settings
        if active is None:
            active = self._made_from.play is Turns or not name.startswith(TOGETHER)
        probe = self._make(render=False)
        try:
            moment, world = _first(probe, self._name), probe.environment
            sights = {agent: sight_of(world, agent, moment) for agent in _agents(world, self._name)}
            self._state, size = state_of(world, sights) if state else (None, 0)
            self._teams = {
                group: team_of(agents, sights[agents[0]], active, size, self._name)
                for group, agents in groups_of(sights, groups, self._name).items()
            }
            limit = _time_limit(probe)
        finally:
            probe.environment.close()
        specs = {
            group: AgentSpec(
                team.observations.space, team.actions.space, len(team.agents), tuple(map(str, team.agents)), team.native
            )
            for group, team in self._teams.items()
        }
        self.spec = EnvSpec(self._name, specs, limit)

    @staticmethod
    def has_setting(name: str, setting: str) -> bool:
        """Whether the function that makes an environment names a setting among its arguments."""
        return names_parameter(_find(name.removeprefix("pettingzoo.")).make, setting)

    def open(self, indices: Sequence[int], seed: int, render: bool = False) -> TeamVector:
        if render:
            draw_without_screen()
        return TeamVector(self._name, partial(self._make, render), indices, seed, self._teams, self._state)

    def _make(self, render: bool) -> Game:
        settings = {**self._settings, "render_mode": "rgb_array"} if render else self._settings
        try:
            world = self._made_from.make(**settings)
        except TypeError as problem:
            if render and "'render_mode'" in str(problem):
                raise UserError(f"{self._name} cannot be rendered: let it take `render_mode`") from problem
            raise bad_setting(self._name, settings, problem) from problem
        except Exception as problem:
            # The registry has an exception of its own for what cannot be imported.
            cause = problem if isinstance(problem, ImportError) else problem.__cause__
            if isinstance(cause, ImportError):
                raise _missing(self._name, cause) from problem
            raise
        modes = getattr(world, "metadata", {}).get("render_modes", ())
        if render and "rgb_array" not in modes:
            world.close()
            raise UserError(
                f"{self._name} cannot be rendered: expected render mode 'rgb_array', "
                + (f"its metadata has {', '.join(modes)}" if modes else "its metadata has no render_modes")
            )
        return self._made_from.play(world)


def _first(probe: Game, name: str) -> Moment:
    """The first reset of a new environment, which parts of its spec are read from."""
    try:
        return probe.reset(0)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        fault = raised("reset", problem)
        raise EnvironmentFailed(f"{name}: {fault.what}. Its own traceback:\n{fault.traceback}") from problem


class _MadeFrom(NamedTuple):
    make: Callable[..., Any]
    play: Callable[[Any], Game]


def _find(name: str) -> _MadeFrom:
    """Finds an environment's maker in PettingZoo's registry, if it has one, or in a module."""
    for kind, play in (("parallel", Parallel), ("aec", Turns)):
        if registered := _registry(kind).get(name):
            return _MadeFrom(partial(cast(Any, pettingzoo).make, kind, registered), play)
    module = _module(name)
    for attribute, play in (("parallel_env", Parallel), ("env", Turns)):
        if make := getattr(module, attribute, None):
            return _MadeFrom(make, play)
    raise UserError(
        f"pettingzoo:{name}: '{module.__name__}' has neither `parallel_env` nor `env`{nearest(name, _known(name))}"
    )


def is_shipped(name: str) -> bool:
    """Whether a name is that of an environment of PettingZoo's or mpe2's. Nothing is imported to know that."""
    name = name.removeprefix("pettingzoo.")
    package, _, module = name.rpartition(".")
    if name in _registry("aec") or name in _registry("parallel"):
        return True
    if not re.fullmatch(r"[a-z0-9_]+_v\d+", module) or package not in (*FAMILIES, "mpe2"):
        return False
    found = importlib.util.find_spec("mpe2" if package == "mpe2" else "pettingzoo")
    below = "" if package == "mpe2" else package
    places = found.submodule_search_locations or () if found else ()
    return module in {each.name for place in places for each in pkgutil.iter_modules([os.path.join(place, below)])}


def _registry(kind: str = "aec") -> dict[str, str]:
    """PettingZoo's own environments (1.26 and later) by our names: `classic.go_v5` is its `classic/go-v5`."""
    known = getattr(pettingzoo, f"{kind}_registry", {})
    return {one.replace("/", ".").replace("-v", "_v"): one for one in known}


def _module(name: str) -> Any:
    if name.partition(".")[0] in serialization.STANDARD:
        raise UserError(f"pettingzoo:{name} is of Python's standard library; expected a module with environments")
    named_modules.name(name)
    paths = (name, f"pettingzoo.{name}")
    for path in reversed(paths) if name.partition(".")[0] in FAMILIES else paths:
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as problem:
            if problem.name is None or not f"{path}.".startswith(f"{problem.name}."):  # it is there; another is not
                raise _missing(f"pettingzoo:{name}", problem) from problem
    raise UserError(
        f"no PettingZoo environment is called '{name}'{nearest(name, _known(name))}",
        page="add-an-environment#pettingzoo",
    )


def known_names() -> set[str]:
    """The environments of PettingZoo, and those of mpe2 where that is installed."""
    return _known("mpe2")


def maker_of(name: str) -> Any:
    """The callable that takes an environment's settings: the bare class, which PettingZoo's modules have."""
    module = _module(name.removeprefix("pettingzoo."))
    return next((found for key in ("raw_env", "parallel_env", "env") if (found := getattr(module, key, None))), None)


def _known(name: str) -> set[str]:
    """Suggestions for a name: PettingZoo's, mpe2's, and those beside it in its package."""
    known, package = set(_registry()), name.partition(".")[0]
    for path in {"mpe2", package, f"pettingzoo.{package}"}:
        if (found := importlib.util.find_spec(path)) and found.submodule_search_locations:
            modules = pkgutil.iter_modules(found.submodule_search_locations, f"{path}.".removeprefix("pettingzoo."))
            known |= {one.name for one in modules if not one.ispkg}
    return known - {"mpe2.all_modules", f"{package}.all_modules"}


def _missing(name: str, problem: ImportError) -> UserError:
    family = name.removeprefix("pettingzoo:").partition(".")[0]
    own = any(one.startswith(f"{family}.") for one in _registry())
    remedy = f"pip install 'pettingzoo[{family}]'" if own else "pip install it"
    text = f"{name} needs '{problem.name or problem}', which is not installed; run: {remedy}"
    return UserError(text, page="add-an-environment#pettingzoo")


def _agents(world: Any, name: str) -> list[Agent]:
    if not (agents := getattr(world, "possible_agents", None)):
        raise UserError(
            f"{name} does not say which agents it can have: expected `possible_agents`, a list, found "
            f"{'none' if agents is None else agents}"
        )
    return list(agents)


def _time_limit(probe: Game) -> int | None:
    """The most steps an episode can have; of turns, environments count the rounds only."""
    limit = getattr(getattr(probe.environment, "unwrapped", None), "max_cycles", None)
    return limit if isinstance(probe, Parallel) and isinstance(limit, int) else None
