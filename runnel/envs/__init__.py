"""Environments by name. Each family is one adapter, imported only when a name asks for it.

| name | family |
|---|---|
| `CartPole-v1`, `ALE/Pong-v5` | Gymnasium |
| `gymnax:CartPole-v1` | gymnax |
| `package.module:callable` | the user's own |
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
import sys
from typing import Any, NamedTuple, cast

from runnel import portable
from runnel.environment import Environment, HostEnvironment, JaxEnvironment
from runnel.errors import UserError
from runnel.types import EnvSpec


class Scheme(NamedTuple):
    """A way of naming environments: `gymnax:NAME`, and what it means."""

    name: str
    summary: str

    @property
    def prefix(self) -> str:
        """What stands before the colon; empty where there is none."""
        return self.name.partition(":")[0] if ":" in self.name else ""

    @property
    def installed(self) -> bool:
        return self.prefix == OWN or importlib.util.find_spec(self.prefix or "gymnasium") is not None


OWN = "package.module"
"""Stands for the module of the user's own environment."""

PLANNED = ("brax", "envpool", "jaxmarl", "pettingzoo")
"""Prefixes that the design has and this version has not."""

WANTED = "a gymnasium.Env, a JaxEnvironment or a HostEnvironment"


def schemes() -> list[Scheme]:
    """How environments can be named in this version."""
    known = [
        Scheme("NAME", "a Gymnasium id: CartPole-v1, HalfCheetah-v5, ALE/Pong-v5"),
        Scheme("gymnax:NAME", "a gymnax environment, in JAX: gymnax:CartPole-v1, gymnax:Breakout-MinAtar"),
        Scheme(f"{OWN}:callable", f"your own: what the callable gives is {WANTED}"),
    ]
    missing = " (not installed; run: pip install 'runnel[gymnax]')"
    return [Scheme(name, what if Scheme(name, what).installed else what + missing) for name, what in known]


def make(name: str, **kwargs: Any) -> Environment:
    """The environment of that name, made with the settings `kwargs`."""
    prefix, colon, rest = name.partition(":")
    if not colon:
        from runnel.envs.gymnasium import GymnasiumEnvironment

        return GymnasiumEnvironment(name, kwargs)
    if prefix == "gymnax":
        from runnel.envs.gymnax import GymnaxEnvironment

        return GymnaxEnvironment(rest, **kwargs)
    if prefix in PLANNED:
        supported = "a Gymnasium id, 'gymnax:NAME' or your own 'package.module:callable'"
        raise UserError(f"'{name}': this version has no adapter for {prefix} yet; it takes {supported}")
    module, _, attribute = name.rpartition(":")
    return _own(name, _find(name, module, attribute), kwargs)


def _own(name: str, found: Any, kwargs: dict[str, Any]) -> Environment:
    """The user's own environment: what `found` is, or what it gives when called."""
    if _is_environment(found) and not kwargs:
        return found
    if not callable(found):
        raise UserError(f"'{name}' is a {type(found).__name__}; wanted a callable that gives {WANTED}")
    given = _call(name, found, kwargs)
    if _is_gymnasium(given):
        from runnel.envs.gymnasium import Factory, GymnasiumEnvironment

        return GymnasiumEnvironment(cast("Factory", found), kwargs, name=name, probe=given)
    if not _is_environment(given):
        raise UserError(f"'{name}' gave a {type(given).__name__}; wanted {WANTED}")
    return given


def _find(name: str, module: str, attribute: str) -> Any:
    """What `package.module:callable` (or `/path/to/file.py:callable`) stands for."""
    families = [scheme.prefix for scheme in schemes() if scheme.prefix not in ("", OWN)]
    if meant := difflib.get_close_matches(module, families, n=1, cutoff=0.7):
        raise UserError(f"'{name}' is no environment name; did you mean '{meant[0]}:{attribute}'?")
    if not all(part.isidentifier() for part in attribute.split(".")):
        raise UserError(
            f"'{name}' is no environment name. For an id that a package registers, write a function that "
            "makes it and name that: 'package.module:callable'"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return portable.import_object(name)
    except UserError as problem:
        raise UserError(f"environment '{name}': {problem}") from problem


def _call(name: str, factory: Any, kwargs: dict[str, Any]) -> Any:
    try:
        inspect.signature(factory).bind(**kwargs)
    except TypeError as problem:
        settings = ", ".join(kwargs) or "no settings"
        raise UserError(f"'{name}' cannot be called with {settings}: {problem}") from problem
    except ValueError:
        pass  # a callable without a signature: calling it will tell
    return factory(**kwargs)


def _is_gymnasium(value: Any) -> bool:
    """Asked first: a gymnasium.Env has `spec`, `reset` and `step`, and would pass for a JaxEnvironment."""
    gymnasium = sys.modules.get("gymnasium")  # an Env cannot exist before its module
    return gymnasium is not None and isinstance(value, gymnasium.Env)


def _is_environment(value: Any) -> bool:
    if isinstance(value, type) or _is_gymnasium(value):
        return False
    return isinstance(value, JaxEnvironment | HostEnvironment) and isinstance(value.spec, EnvSpec)
