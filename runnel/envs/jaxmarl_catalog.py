"""A catalogue of JaxMARL's environments with traits that its interface lacks, and how to create one.

Importing `jaxmarl` imports all its environments, and with them Brax, MuJoCo, SciPy and Matplotlib, takes 5 seconds and
prints. So only the module of the requested environment is imported, in half a second or less. Besides itself it needs
`jaxtyping`; jaxnav also Matplotlib, and MABrax Brax.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, NamedTuple

import jax.numpy as jnp

from runnel.errors import UserError, nearest
from runnel.types import Array, PyTree

NEVER = 2**31 - 1


class EnvironmentTraits(NamedTuple):
    """Traits of an environment that JaxMARL's own interface does not report."""

    limit: Sequence[str] = ("max_steps",)  # the attributes whose product is the limit of steps
    stops: bool = True  # its clock can be stopped, because nothing but the limit depends on it
    legal: str = ""  # the method that returns legal actions
    active: Callable[[PyTree], Array] | None = None  # of a state: [agents], which have a choice
    tables: Mapping[str, str] = {}  # settings that may be a name in a table: `module:TABLE`
    settings: Mapping[str, Any] = {}  # which are not the user's
    narrow: bool = False  # it mixes 32 and 64 bits under `jax_enable_x64`, and fails: so it has 32 there too
    wins: bool = False  # the last reward of an episode is 1 or more where it was won, which is what JaxMARL counts too


def _alive(state: Any) -> Array:
    return getattr(state, "state", state).unit_alive  # against its own enemy, the battle is a part of the state


def _on_turn(state: Any) -> Array:
    return state.cur_player_idx[jnp.argsort(state.seat_order)]


MPE = EnvironmentTraits()
SMAX = EnvironmentTraits(
    legal="get_avail_actions",
    active=_alive,
    tables={"scenario": "smax.smax_env:MAP_NAME_TO_SCENARIO"},
    narrow=True,
    wins=True,
)
HANABI = EnvironmentTraits(limit=(), legal="get_legal_moves", active=_on_turn)
OVERCOOKED = EnvironmentTraits(stops=False, tables={"layout": "overcooked.layouts:overcooked_layouts"})
OVERCOOKED_V2 = EnvironmentTraits(stops=False, narrow=True)
COIN_GAME = EnvironmentTraits(limit=("num_inner_steps", "num_outer_steps"), stops=False)
JAXNAV = EnvironmentTraits(stops=False, active=lambda state: ~state.done, narrow=True)
MABRAX = EnvironmentTraits(limit=("episode_length",), settings={"auto_reset": False})

BATTLE = "smax.heuristic_enemy_smax_env:HeuristicEnemySMAX"

ENVIRONMENTS = {
    "MPE_simple_v3": (MPE, "mpe.simple:SimpleMPE"),
    "MPE_simple_adversary_v3": (MPE, "mpe.simple_adversary:SimpleAdversaryMPE"),
    "MPE_simple_crypto_v3": (MPE, "mpe.simple_crypto:SimpleCryptoMPE"),
    "MPE_simple_facmac_v1": (MPE, "mpe.simple_facmac:SimpleFacmacMPE"),
    "MPE_simple_facmac_3a_v1": (MPE, "mpe.simple_facmac:SimpleFacmacMPE3a"),
    "MPE_simple_facmac_6a_v1": (MPE, "mpe.simple_facmac:SimpleFacmacMPE6a"),
    "MPE_simple_facmac_9a_v1": (MPE, "mpe.simple_facmac:SimpleFacmacMPE9a"),
    "MPE_simple_push_v3": (MPE, "mpe.simple_push:SimplePushMPE"),
    "MPE_simple_reference_v3": (MPE, "mpe.simple_reference:SimpleReferenceMPE"),
    "MPE_simple_speaker_listener_v4": (MPE, "mpe.simple_speaker_listener:SimpleSpeakerListenerMPE"),
    "MPE_simple_spread_v3": (MPE, "mpe.simple_spread:SimpleSpreadMPE"),
    "MPE_simple_tag_v3": (MPE, "mpe.simple_tag:SimpleTagMPE"),
    "MPE_simple_world_comm_v3": (MPE, "mpe.simple_world_comm:SimpleWorldCommMPE"),
    "SMAX": (SMAX, "smax.smax_env:SMAX"),
    "HeuristicEnemySMAX": (SMAX, BATTLE),
    "hanabi": (HANABI, "hanabi.hanabi:HanabiEnv"),
    "overcooked": (OVERCOOKED, "overcooked.overcooked:Overcooked"),
    "overcooked_v2": (OVERCOOKED_V2, "overcooked_v2.overcooked:OvercookedV2"),
    "switch_riddle": (EnvironmentTraits(), "switch_riddle.switch_riddle:SwitchRiddle"),
    "coin_game": (COIN_GAME, "coin_game.coin_game:CoinGame"),
    "jaxnav": (JAXNAV, "jaxnav.jaxnav_env:JaxNav"),
    "ant_4x2": (MABRAX, "mabrax.mabrax_env:Ant"),
    "halfcheetah_6x1": (MABRAX, "mabrax.mabrax_env:HalfCheetah"),
    "hopper_3x1": (MABRAX, "mabrax.mabrax_env:Hopper"),
    "humanoid_9|8": (MABRAX, "mabrax.mabrax_env:Humanoid"),
    "walker2d_2x3": (MABRAX, "mabrax.mabrax_env:Walker2d"),
}
"""All of JaxMARL's but storm, which does not keep to its interface, and those that other packages bring."""


def make(title: str, name: str, settings: dict[str, Any]) -> tuple[Any, EnvironmentTraits]:
    kind, place = ENVIRONMENTS.get(name, (SMAX, BATTLE))
    if name not in ENVIRONMENTS:
        maps = _import(kind.tables["scenario"])
        if name not in maps:
            raise UserError(
                f"no JaxMARL environment or map of SMAX is called '{name}'{nearest(name, [*ENVIRONMENTS, *maps])}",
                page="add-an-environment#jaxmarl",
            )
        settings = {"scenario": name, **settings}
    for setting, table in kind.tables.items():
        if isinstance(chosen := settings.get(setting), str):
            known = _import(table)
            if chosen not in known:
                raise UserError(f"{title}: no {setting} is called '{chosen}'{nearest(chosen, known)}")
            settings = {**settings, setting: known[chosen]}
    made = _import(place)
    try:
        environment = made(**settings, **kind.settings)
    except (TypeError, ValueError, AssertionError) as problem:
        raise UserError(f"{title} cannot be made with {', '.join(settings) or 'no settings'}: {problem}") from problem
    # Some constructors take what they do not know, and ignore it.
    takers = (made, *type(environment).__mro__[:-1])
    known = {name for taker in takers for name in inspect.signature(taker).parameters} | vars(environment).keys()
    known |= vars(getattr(environment, "_env", environment)).keys()
    for setting in settings:
        if setting not in known:
            raise UserError(f"{title} has no setting '{setting}'{nearest(setting, known)}")
    return environment, kind


def classes_of(name: str) -> list[Any]:
    """The classes that take an environment's settings; two for a battle of SMAX, which passes some on."""
    place = ENVIRONMENTS.get(name, (SMAX, BATTLE))[1]
    return [_import(each) for each in ((place, ENVIRONMENTS["SMAX"][1]) if place == BATTLE else (place,))]


def take_limit(environment: Any, kind: EnvironmentTraits) -> int | None:
    """The limit of steps, which is disabled in the environment itself where that is possible."""
    if not kind.limit:
        return None
    limit = math.prod(getattr(environment, part) for part in kind.limit)
    for holder in (environment, *vars(environment).values()) if kind.stops else ():
        for clock in kind.limit:
            if clock in getattr(holder, "__dict__", {}):
                setattr(holder, clock, NEVER)
    return int(limit)


def _import(place: str) -> Any:
    """The object `module:name` of JaxMARL's environments, imported without the imports of its parent packages."""
    module, _, name = place.partition(":")
    path = f"jaxmarl.environments.{module}"
    parents = [path[: dot.start()] for dot in re.finditer(r"\.", path)]
    bare = [parent for parent in parents if parent not in sys.modules]
    # MABrax's module sets `sys.stdout` to what it once was: back again.
    with redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):
        try:
            for parent in bare:
                sys.modules[parent] = _bare(parent)
            return getattr(importlib.import_module(path), name)
        finally:
            for parent in bare:  # a later import gets the whole package
                sys.modules.pop(parent, None)


def _bare(package: str) -> ModuleType:
    """A package whose modules can be imported without running its own `__init__`."""
    above = package.rpartition(".")[0]
    spec = PathFinder.find_spec(package, sys.modules[above].__path__ if above else None)
    if spec is None:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package.partition(".")[0])
    module = ModuleType(package)
    module.__spec__, module.__path__ = spec, spec.submodule_search_locations or []
    return module


@contextmanager
def quiet() -> Iterator[None]:
    """Silences warnings of JaxMARL and Brax, at every trace, about code that the user cannot change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
