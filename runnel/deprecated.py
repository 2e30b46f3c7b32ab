"""Old names that users type. Each works for one release, and warns with the old name and the new one.

The tables are the whole policy: to rename something, add a row; to drop an old name, remove its row. This module
imports nothing of Runnel, so that `import runnel` stays cheap; a module that moved is imported when it is used.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, TypeVar

T = TypeVar("T")

MODULES: Final = {
    "runnel.building": "runnel.execution.building",
    "runnel.evaluate": "runnel.evaluation.evaluate",
    "runnel.flow": "runnel.graph.flow",
    "runnel.graph": "runnel.graph.nodes",  # a package now, which finds these names itself
    "runnel.launch.hosts": "runnel.launch.host_launcher",
    "runnel.layout": "runnel.planning.distribution",
    "runnel.machine": "runnel.planning.machine",
    "runnel.plan": "runnel.planning.plan",
    "runnel.portable": "runnel.config.serialization",
    "runnel.training": "runnel.execution.training",
    "runnel.views": "runnel.observations",
}
"""Modules that moved: old -> new."""

NAMES: Final = {
    "runnel": {"Free": "BoundedStaleness"},
    "runnel.execution.building": {"Built": "BuiltRun"},
    "runnel.execution.training": {"Built": "BuiltRun"},
    "runnel.launch.host_launcher": {
        "Agent": "AgentProcess",
        "Hosts": "HostLauncher",
        "Invitation": "AgentInvitation",
        "Joined": "JoinedHost",
        "LocalHosts": "LocalHostLauncher",
        "tell": "agent_arguments",
    },
    "runnel.planning.distribution": {"Free": "BoundedStaleness"},
    "runnel.planning.plan": {"Cut": "CutEdge", "Free": "BoundedStaleness", "Placed": "PlacedFragment"},
}
"""Names that changed, by the module that has them now: old -> new."""

FIELDS: Final = {
    "runnel.distributions.decoupled:Decoupled": {"ring": "env_splits"},
    "runnel.distributions.environments:Environments": {"ring": "env_splits"},
    "runnel.distributions.fine:Fine": {"ring": "env_splits"},
    "runnel.planning.distribution:Fragment": {"ring": "env_splits"},
    "runnel.planning.placed:PlacedFragment": {"ring": "env_splits"},
}
"""Fields that changed, by the class that has them: old -> new."""

_PACKAGE: Final = os.path.dirname(os.path.abspath(__file__))


class Renamed(DeprecationWarning):
    """An old name was used. The next release does not have it."""


def warn(old: str, new: str) -> None:
    """Warns of an old name, at the line of the user's that led to it."""
    text = f"{old} is now {new}; the next release does not know the old name"
    warnings.warn(Renamed(text), stacklevel=_level_of_user())


def _level_of_user() -> int:
    """The number of frames between the caller of this function and the user's own code."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_passed_through(frame.f_code.co_filename):
        # `warnings` does not count the frames of importlib's bootstrap.
        level += "importlib._bootstrap" not in frame.f_code.co_filename
        frame = frame.f_back
    return level


def _is_passed_through(file: str) -> bool:
    return file.startswith((_PACKAGE, "<frozen importlib")) or file == importlib.__file__


# Modules and names


class _OldModules:
    """Finds modules under their old names. Python asks it last, and so only for names without a file."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MODULES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = MODULES[module.__name__]
        warn(module.__name__, new)
        vars(module)["__getattr__"] = functools.partial(attribute, module.__name__)
        vars(module)["__dir__"] = functools.partial(_public, new)


def install() -> None:
    """Lets modules be imported by their old names."""
    if not any(type(finder).__qualname__ == _OldModules.__qualname__ for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())  # type: ignore[arg-type]


def attribute(old: str, name: str) -> Any:
    """Looks up a name, old or new, for a module that moved: the body of its `__getattr__`."""
    module = MODULES[old]
    if name == "__all__":
        return _public(module)
    if name.startswith("__"):  # questions that tools ask of every module import nothing
        raise AttributeError(f"module '{old}' has no attribute '{name}'")
    new = NAMES.get(module, {}).get(name)
    if new is not None:
        warn(f"{old}.{name}", f"{module}.{new}")
    return getattr(importlib.import_module(module), new or name)


def attribute_of_package(package: str, name: str) -> Any:
    """Looks up an old name of a package: a renamed object, or a module that moved out of it."""
    new = NAMES.get(package, {}).get(name)
    if new is not None:
        warn(f"{package}.{name}", f"{package}.{new}")
        return getattr(importlib.import_module(package), new)
    moved = MODULES.get(package)
    if moved is not None and not name.startswith("__") and hasattr(importlib.import_module(moved), name):
        warn(f"{package}.{name}", f"{moved}.{name}")
        return getattr(importlib.import_module(moved), name)
    if f"{package}.{name}" in MODULES:
        return importlib.import_module(f"{package}.{name}")
    raise AttributeError(f"module '{package}' has no attribute '{name}'")


def _public(module: str) -> list[str]:
    target = importlib.import_module(module)
    names = getattr(target, "__all__", None) or [name for name in vars(target) if not name.startswith("_")]
    return [*names, *NAMES.get(module, {})]


def current_path(path: str) -> str:
    """The current form of an import path, `module:name`, that may be old. Imports nothing."""
    module, colon, name = path.partition(":")
    module = MODULES.get(module, module)
    first, dot, rest = name.partition(".")
    return f"{module}{colon}{NAMES.get(module, {}).get(first, first)}{dot}{rest}"


# Fields


def accepts_old_fields(cls: type[T]) -> type[T]:
    """Lets a dataclass be created and read with the old names of its fields."""
    init: Callable[..., None] = cls.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **current_fields(cls, kwargs))

    def __getattr__(self: Any, name: str) -> Any:
        new = renamed_fields(type(self)).get(name)
        if new is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        warn(f"{cls.__name__}.{name}", f"{cls.__name__}.{new}")
        return getattr(self, new)

    type.__setattr__(cls, "__init__", __init__)
    type.__setattr__(cls, "__getattr__", __getattr__)
    return cls


def renamed_fields(cls: type) -> Mapping[str, str]:
    """The old names of a class's fields -> the new ones. A subclass that has a field of the old name keeps it."""
    own = {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
    tables = [FIELDS.get(f"{base.__module__}:{base.__qualname__}", {}) for base in cls.__mro__]
    return {old: new for table in tables for old, new in table.items() if old not in own}


def current_fields(cls: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of a class's fields, of which some may be old. An old name overrides the new one."""
    fields, renamed = dict(given), renamed_fields(cls)
    for old in renamed.keys() & given.keys():
        warn(f"{cls.__name__}({old}=...)", f"{cls.__name__}({renamed[old]}=...)")
        fields[renamed[old]] = fields.pop(old)
    return fields
