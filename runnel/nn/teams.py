"""Networks that several agents share: the agent's identity, and the state that all know together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from runnel.nn import networks
from runnel.nn.action_values import ActionValues
from runnel.nn.critics import joint_network
from runnel.observations import view
from runnel.ops.exploration import legal_only
from runnel.ops.precision import default_float
from runnel.ops.teams import taking_part
from runnel.types import AgentSpec, Array, Discrete, PyTree, Space, zeros


class TeamNetworkSettings(Protocol):
    """Settings of the network that the agents of a team share."""

    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def activation(self) -> networks.Activation: ...
    @property
    def network(self) -> Any: ...
    @property
    def agent_ids(self) -> bool: ...


def identities_of(settings: TeamNetworkSettings, spec: AgentSpec) -> int:
    """The number of agents in the one-hot identity that the network receives; 0 if it receives none."""
    return spec.agents if settings.agent_ids and spec.agents > 1 else 0


def identity(agent: Array | int, agents: int) -> Array:
    """[agents] the one-hot number of an agent, given that number or its column's; [0] for a single agent."""
    if agents <= 1:
        return jnp.zeros(0, default_float())
    return jax.nn.one_hot(agent % agents, agents, dtype=default_float())


def beside(seen: PyTree, vector: Array) -> PyTree:
    """An observation with extra numbers, in the form that networks of `network_beside` take."""
    return seen if vector.size == 0 else (seen, vector)


def network_beside(network: Any, space: Space, size: int, hidden: tuple[int, ...], activation: Any) -> Any:
    """A network from an agent's observation and `size` extra numbers to features; `network` is the setting of that
    name."""
    if size == 0:
        return networks.resolve(network, space, hidden, activation)
    return joint_network(network, space, size, hidden, activation)


@dataclass(frozen=True)
class WholeState:
    """The state of the whole environment as a vector: its own, or the concatenated observations of the group's
    agents."""

    encodings: tuple[networks.Encoding, ...]  # one for each leaf of what an agent sees, in JAX's order

    @classmethod
    def of(cls, space: Space) -> WholeState:
        return cls(tuple(networks.encoding_of(leaf) for leaf in jax.tree.leaves(view(space).seen)))

    def __call__(self, observation: PyTree) -> Array:
        """[s] the state, given all agents' observations, [agents, ...]; an own state, which they share, is included
        once."""
        seen, _, _, state = view(observation)
        if state is not None:
            return state.astype(default_float())
        return networks.widened(jnp.ravel(jax.vmap(self._encoded)(seen)))

    def _encoded(self, seen: PyTree) -> Array:
        leaves = zip(self.encodings, jax.tree.leaves(seen), strict=True)
        return jnp.concatenate([jnp.ravel(encoding(x)) for encoding, x in leaves])


class TeamValues(struct.PyTreeNode):
    """The values of each agent's actions, from one network that all share.

    A team's observations and actions are `[agents, ...]` (see `ops.teams.together`).
    """

    values: ActionValues
    identities: int = struct.field(pytree_node=False)  # agents with a number of their own as input; 0: without

    @classmethod
    def create(cls, settings: TeamNetworkSettings, key: Array, spec: AgentSpec) -> TeamValues:
        assert isinstance(spec.action, Discrete)
        space, identities = view(spec.observation).seen, identities_of(settings, spec)
        network = network_beside(settings.network, space, identities, settings.hidden, settings.activation)
        seen = beside(zeros(space), identity(jnp.int32(0), identities))
        return cls(ActionValues.create(key, network, spec.action.n, seen), identities)

    def __call__(self, seen: PyTree, agent: Array | int) -> Array:
        """[actions] the values for one agent's observation."""
        return self.values(beside(seen, identity(agent, self.identities)))

    def greedy(self, observation: PyTree) -> Array:
        """[agents] the highest value of each agent's legal actions."""
        return legal_only(self._of_all(observation), view(observation).action_mask).argmax(-1)

    def of(self, observation: PyTree, action: Array) -> Array:
        """[agents] the values of the agents' actions; 0 for agents that do not count."""
        q = jnp.take_along_axis(self._of_all(observation), action[:, None], -1)[:, 0]
        return q * taking_part(view(observation).active)

    def _of_all(self, observation: PyTree) -> Array:
        """[agents, actions]"""
        seen = view(observation).seen
        agents = jax.tree.leaves(seen)[0].shape[0]
        return jax.vmap(self)(seen, jnp.arange(agents))
