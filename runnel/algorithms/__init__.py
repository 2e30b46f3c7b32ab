"""Algorithms, one readable file each, found by name. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runnel.portable import load_class

if TYPE_CHECKING:
    from runnel.algorithm import Algorithm

REGISTRY: Final = {
    "a2c": "runnel.algorithms.a2c:A2C",
    "ddpg": "runnel.algorithms.ddpg:DDPG",
    "dqn": "runnel.algorithms.dqn:DQN",
    "impala": "runnel.algorithms.impala:IMPALA",
    "ppo": "runnel.algorithms.ppo:PPO",
    "sac": "runnel.algorithms.sac:SAC",
    "td3": "runnel.algorithms.td3:TD3",
}


def names() -> list[str]:
    """The built-in algorithms."""
    return sorted(REGISTRY)


def load(name: str) -> type[Algorithm]:
    """The class of a built-in algorithm, or of the user's own, `package.module:Class` or `file.py:Class`."""
    from runnel.algorithm import Algorithm

    return load_class(name.lower() if name.lower() in REGISTRY else name, REGISTRY, Algorithm, "algorithm")
