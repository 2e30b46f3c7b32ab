"""A team's value out of its agents' (Rashid et al., 2018): any mixture that never falls when one of theirs rises.

So what each agent likes best is what the team likes best, and every agent can find its part by itself. The mixing
network's weights are made from the state by other networks, and taken without their sign; how much an agent's value
matters may change freely from state to state.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen, struct

from runnel.nn.networks import default_float, dense
from runnel.nn.teams import WholeState
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
            return dense(size, scale=1.0, name=name)(features)

        weights = jnp.abs(made("weights", self.agents * self.embed, self.hidden)).reshape(self.agents, self.embed)
        last_weights = jnp.abs(made("last_weights", self.embed, self.hidden))
        # Biases keep their sign: they say what a state is worth, whatever its agents do.
        bias, last_bias = dense(self.embed, scale=1.0, name="bias")(state), made("last_bias", 1, self.embed)
        return jax.nn.elu(values @ weights + bias) @ last_weights + last_bias[0]


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
        """[] of the agents' values [agents], given what they observe, `[agents, ...]`."""
        return self.network.apply(self.params, values, self.state(observation))  # type: ignore[return-value]
