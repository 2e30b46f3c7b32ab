"""Builds the actor-critic that an algorithm's settings describe, for one agent's spaces."""

from __future__ import annotations

from typing import Any, Protocol

from runnel.errors import UserError
from runnel.nn import networks
from runnel.nn.actor_critic import ActorCritic, initial_memory
from runnel.nn.cores import Core, Memory
from runnel.nn.gru import GRU
from runnel.nn.heads import head_for
from runnel.nn.lstm import LSTM
from runnel.observations import view
from runnel.types import AgentSpec, Array, Discrete, MultiDiscrete, PyTree, zeros


class ActorCriticSettings(Protocol):
    """Settings of an algorithm with an actor-critic."""

    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> networks.Activation: ...
    @property
    def network(self) -> Any: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def memory_size(self) -> int: ...


def actor_critic_for(settings: ActorCriticSettings, key: Array, spec: AgentSpec) -> ActorCritic:
    """The actor-critic for an agent's spaces; actions that a mask in its observations forbids are never drawn."""
    check_mask(spec)
    network = networks.resolve(settings.network, view(spec.observation).seen, settings.hidden, settings.activation)
    return ActorCritic.create(
        key, network, head_for(spec.action), zeros(spec.observation), core_for(settings), _towers(spec)
    )


def initial_memory_for(settings: ActorCriticSettings, spec: AgentSpec) -> PyTree:
    """One agent's memory at the start of an episode."""
    return initial_memory(core_for(settings), _towers(spec))


def core_for(settings: ActorCriticSettings) -> Core | None:
    """The recurrent core that the settings describe; None without memory."""
    kinds: dict[Memory, type[GRU | LSTM]] = {"gru": GRU, "lstm": LSTM}
    return None if settings.memory == "none" else kinds[settings.memory](settings.memory_size)


def check_mask(spec: AgentSpec) -> None:
    """Refuses observations whose mask does not fit the actions."""
    mask, action = view(spec.observation).action_mask, spec.action
    if mask is None:
        return
    if not isinstance(action, Discrete | MultiDiscrete):
        raise UserError("observations have an `action_mask`, but actions are a Box; only numbered actions have masks")
    wanted = action.n if isinstance(action, Discrete) else sum(action.sizes)
    if mask.shape != (wanted,):
        raise UserError(f"found an `action_mask` of shape {mask.shape}, expected ({wanted},): a bool for each action")


def _towers(spec: AgentSpec) -> bool:
    """Policy and value each have a network. For images they share one, because convolutions are expensive."""
    return not networks.is_image(view(spec.observation).seen)
