"""Mixes agents' values into a team's (Rashid et al., 2018), monotonically in each of them.

So the action that each agent values most is the best for the team, and every agent can choose its own. Other networks
compute the mixing network's weights from the state, and take their absolute values; the weight of an agent's value may
change freely from state to state.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen, struct

from runnel.nn.networks import dense, product, widened
from runnel.nn.teams import WholeState
from runnel.ops.precision import default_float
from runnel.ops.teams import observed_together
from runnel.types import AgentSpec, Array, PyTree, zeros


class MixingNetwork(linen.Module):
    """Two layers, of `embed` units and of one, from the values of `agents` to the team's."""

    agents: int
    embed: int
    hidden: int  # of the networks that make weights

    @linen.compact
    def __call__(self, values: Array, state: Array) -> Array:
        def made(name: str, size: int, hidden: int) -> Array:
            features = jax.nn.relu(dense(hidden, name=f"{name}_features")(state))
            return widened(dense(size, scale=1.0, name=name)(features))

        weights = jnp.abs(made("weights", self.agents * self.embed, self.hidden)).reshape(self.agents, self.embed)
        last_weights = jnp.abs(made("last_weights", self.embed, self.hidden))
        # Biases keep their sign: they say what a state is worth, whatever its agents do.
        bias, last_bias = widened(dense(self.embed, scale=1.0, name="bias")(state)), made("last_bias", 1, self.embed)
        return product(jax.nn.elu(product(values, weights, last=True) + bias), last_weights, last=True) + last_bias[0]


class Mixer(struct.PyTreeNode):
    """Parameters of a mixing network, and how to apply them: `total = mixer(values, observation)`."""

    params: PyTree
    network: MixingNetwork = struct.field(pytree_node=False)
    state: WholeState = struct.field(pytree_node=False)

    @classmethod
    def create(cls, key: Array, spec: AgentSpec, embed: int = 32, hidden: int = 64) -> Mixer:
        state, network = WholeState.of(spec.observation), MixingNetwork(spec.agents, embed, hidden)
        observation = observed_together(zeros(spec.observation, 1, spec.agents), spec.agents)
        values = jnp.zeros(spec.agents, default_float())
        return cls(network.init(key, values, state(jax.tree.map(lambda x: x[0, 0], observation))), network, state)

    def __call__(self, values: Array, observation: PyTree) -> Array:
        """[] the team's value, from the agents' values [agents] and observations, `[agents, ...]`."""
        return self.network.apply(self.params, values, self.state(observation))  # type: ignore[return-value]
