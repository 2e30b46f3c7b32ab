"""The interface between a vector and a host environment of several agents. No JAX is imported here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

Agent = Any
"""An environment's identifier of an agent, nearly always text."""


class Moment(NamedTuple):
    """The result of a reset or a step; dicts are by agent, and need not have all of them."""

    observations: Mapping[Agent, Any]  # of those that are there, and of those that died with this step
    infos: Mapping[Agent, Mapping[str, Any]]
    rewards: Mapping[Agent, float]  # for this step
    acting: Collection[Agent]  # whose actions count in the next step
    terminated: bool = False  # the episode, for all of them
    truncated: bool = False


class Game(Protocol):
    """An environment that can be stepped."""

    environment: Any

    def reset(self, seed: int) -> Moment: ...

    def step(self, actions: Mapping[Agent, Any]) -> Moment:
        """`actions` has one for every agent there can be; those of agents that do not act are ignored."""
        ...
