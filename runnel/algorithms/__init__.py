"""Algorithms, one readable file each, found by name. Nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from runnel.errors import UserError, nearest

if TYPE_CHECKING:
    from runnel.algorithm import Algorithm

REGISTRY: Final = {
    "dqn": "runnel.algorithms.dqn:DQN",
    "ppo": "runnel.algorithms.ppo:PPO",
}


def names() -> list[str]:
    """The built-in algorithms."""
    return sorted(REGISTRY)


def load(name: str) -> type[Algorithm]:
    """The class of a built-in algorithm, or of the user's own, `package.module:Class`."""
    path = REGISTRY.get(name.lower(), name)
    module_name, _, class_name = path.partition(":")
    if not class_name:
        raise UserError(f"no algorithm '{name}'{nearest(name, REGISTRY)} Your own is package.module:Class")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"algorithm '{name}' cannot be imported: {error}") from error
    found = getattr(module, class_name, None)
    from runnel.algorithm import Algorithm

    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        known = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Algorithm)]
        raise UserError(f"{module_name} has no Algorithm called '{class_name}'{nearest(class_name, known)}")
    return found
