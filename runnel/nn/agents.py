"""The actor-critic that an algorithm's settings ask for, for one agent's spaces."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from runnel.nn import networks
from runnel.nn.actor_critic import ActorCritic
from runnel.nn.actor_critic import initial_memory as memory_of
from runnel.nn.gru import GRU
from runnel.nn.heads import head_for
from runnel.types import AgentSpec, Array, PyTree, zeros


class Settings(Protocol):
    """What an algorithm with an actor-critic lets its user choose of it."""

    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> networks.Activation: ...
    @property
    def network(self) -> Any: ...
    @property
    def memory(self) -> Literal["none", "gru"]: ...
    @property
    def memory_size(self) -> int: ...


def actor_critic_for(settings: Settings, key: Array, spec: AgentSpec) -> ActorCritic:
    network = networks.resolve(settings.network, spec.observation, settings.hidden, settings.activation)
    return ActorCritic.create(
        key, network, head_for(spec.action), zeros(spec.observation), _gru(settings), _towers(spec)
    )


def initial_memory(settings: Settings, spec: AgentSpec) -> PyTree:
    """One agent's memory at the start of an episode."""
    return memory_of(_gru(settings), _towers(spec))


def _gru(settings: Settings) -> GRU | None:
    return GRU(settings.memory_size) if settings.memory == "gru" else None


def _towers(spec: AgentSpec) -> bool:
    """Policy and value each have a network, but for images: convolutions are dear and serve both."""
    return not networks.is_image(spec.observation)
