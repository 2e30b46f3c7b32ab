"""Decentralised policies with a centralised value.

Acting needs only the policy; the value, which sees the state of the whole environment, is for learning.

    distribution, memory = policy.step(observation, memory, agent)
    value = critic(observation, agent)

An `agent` is identified by its number in the group, or by a column's index.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from runnel.nn.agents import ActorCriticSettings, check_mask, core_for
from runnel.nn.cores import Core
from runnel.nn.heads import ActionDistribution, Head, head_for
from runnel.nn.networks import dense, widened
from runnel.nn.teams import TeamNetworkSettings, WholeState, beside, identities_of, identity, network_beside
from runnel.observations import parted, view
from runnel.ops.teams import observed_together
from runnel.types import AgentSpec, Array, PyTree, zeros


class CentralCriticSettings(ActorCriticSettings, TeamNetworkSettings, Protocol):
    """Settings of an algorithm with agents' policies and a centralised value."""


class AgentPolicy(struct.PyTreeNode):
    """Parameters of a policy that the agents of a group share, and how to apply them."""

    torso: PyTree
    memory: PyTree  # () where there is none
    last: PyTree
    network: Any = struct.field(pytree_node=False)
    core: Core | None = struct.field(pytree_node=False)
    head: Head = struct.field(pytree_node=False)
    identities: int = struct.field(pytree_node=False)  # agents with a number of their own as input; 0: without

    @classmethod
    def create(cls, settings: CentralCriticSettings, key: Array, spec: AgentSpec) -> AgentPolicy:
        check_mask(spec)
        identities = identities_of(settings, spec)
        torso_key, core_key, last_key = jax.random.split(key, 3)
        space, head, core = view(spec.observation).seen, head_for(spec.action), core_for(settings)
        network = network_beside(settings.network, space, identities, settings.hidden, settings.activation)
        seen = beside(zeros(space), identity(jnp.int32(0), identities))
        torso = network.init(torso_key, seen)
        features, memory = network.apply(torso, seen), ()
        if core is not None:
            memory, features = core.init(core_key, features), core.output(core.initial_memory())
        return cls(torso, memory, head.init(last_key, features), network, core, head, identities)

    def step(self, observation: PyTree, memory: PyTree, agent: Array | int) -> tuple[ActionDistribution, PyTree]:
        """The action distribution of an agent for one observation, and its new memory."""
        features = self._features(observation, agent)
        if self.core is not None:
            memory = self.core.step(self.memory, memory, features)
            features = self.core.output(memory)
        return self._read(features, observation), memory

    def unroll(self, observation: PyTree, first: Array, memory: PyTree, agent: Array | int) -> ActionDistribution:
        """[T] Evaluates a sequence; the result is that of `step`, one at a time. `agent` is [T] too."""
        features = jax.vmap(self._features)(observation, agent)
        if self.core is not None:
            features = self.core.output(self.core.unroll(self.memory, memory, features, first))
        return jax.vmap(self._read)(features, observation)

    def _features(self, observation: PyTree, agent: Array | int) -> Array:
        seen = beside(view(observation).seen, identity(agent, self.identities))
        return self.network.apply(self.torso, seen)

    def _read(self, features: Array, observation: PyTree) -> ActionDistribution:
        legal, distribution = view(observation).action_mask, self.head.apply(self.last, features)
        return distribution if legal is None else distribution.masked(legal)


class StateValue(struct.PyTreeNode):
    """Parameters of a value function and how to apply them. Its inputs are the state, the agent's observation and its
    number.

    An environment of one agent may have no state: then the agent's observation is the state.
    """

    torso: PyTree
    critic: PyTree  # the last layer
    network: Any = struct.field(pytree_node=False)
    agents: int = struct.field(pytree_node=False)
    whole: WholeState = struct.field(pytree_node=False)

    @classmethod
    def create(cls, settings: CentralCriticSettings, key: Array, spec: AgentSpec) -> StateValue:
        torso_key, last_key = jax.random.split(key)
        whole, space = WholeState.of(spec.observation), view(spec.observation).seen
        columns = with_state(whole, zeros(spec.observation, 1, spec.agents), spec.agents)
        observation = jax.tree.map(lambda x: x[0, 0], columns)
        more = _besides(observation, jnp.int32(0), spec.agents)
        network = network_beside(settings.network, space, more.size, settings.hidden, settings.activation)
        known = beside(view(observation).seen, more)
        torso = network.init(torso_key, known)
        return cls(
            torso, dense(1, 1.0, last=True).init(last_key, network.apply(torso, known)), network, spec.agents, whole
        )

    def __call__(self, observation: PyTree, agent: Array | int) -> Array:
        """[] the value for one observation that has been through `with_state`."""
        known = beside(view(observation).seen, _besides(observation, agent, self.agents))
        value: Any = dense(1, last=True).apply(self.critic, self.network.apply(self.torso, known))
        return widened(jnp.squeeze(value, -1))

    def with_state(self, observation: PyTree) -> PyTree:
        """[T, B, ...] observations that include the state, computed from all agents' observations if necessary."""
        return with_state(self.whole, observation, self.agents)


def with_state(whole: WholeState, observation: PyTree, agents: int) -> PyTree:
    """[T, E * agents, ...] with the state; unchanged for a single agent."""
    seen, action_mask, active, state = view(observation)
    if state is None and agents > 1:
        by_environment = jax.vmap(jax.vmap(whole))(observed_together(observation, agents))  # [T, E, s]
        state = jnp.repeat(by_environment, agents, axis=1)
    return parted(seen, action_mask, active, state)


def _besides(observation: PyTree, agent: Array | int, agents: int) -> Array:
    """The inputs besides the agent's observation: its one-hot number, and the state."""
    state = view(observation).state
    who = identity(agent, agents)
    return who if state is None else jnp.concatenate([who, state.astype(who.dtype)])
