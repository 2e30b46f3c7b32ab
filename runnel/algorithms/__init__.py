"""Algorithms, one file each, found by name and imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from runnel.config.serialization import load_class

if TYPE_CHECKING:
    from runnel.algorithm import Algorithm

REGISTRY: Final = {
    "a2c": "runnel.algorithms.a2c:A2C",
    "c51": "runnel.algorithms.c51:C51",
    "ddpg": "runnel.algorithms.ddpg:DDPG",
    "dqn": "runnel.algorithms.dqn:DQN",
    "impala": "runnel.algorithms.impala:IMPALA",
    "mappo": "runnel.algorithms.mappo:MAPPO",
    "ppo": "runnel.algorithms.ppo:PPO",
    "qmix": "runnel.algorithms.qmix:QMIX",
    "reinforce": "runnel.algorithms.reinforce:Reinforce",
    "sac": "runnel.algorithms.sac:SAC",
    "td3": "runnel.algorithms.td3:TD3",
    "vdn": "runnel.algorithms.vdn:VDN",
}

ALIASES: Final = {"ippo": "ppo"}
"""Other names of algorithms: with several agents, PPO is called IPPO."""


def names() -> list[str]:
    """The built-in algorithms."""
    return sorted(REGISTRY)


def known_as(name: str) -> str:
    """The name under which an algorithm is registered; any other name is returned unchanged."""
    lower = name.lower()
    return ALIASES.get(lower, lower if lower in REGISTRY else name)


def load(name: str) -> type[Algorithm]:
    """The class of a built-in algorithm, or of the user's own, `package.module:Class` or `file.py:Class`."""
    from runnel.algorithm import Algorithm

    return load_class(known_as(name), REGISTRY, Algorithm, "algorithm", page="algorithms")
