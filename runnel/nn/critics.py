"""Values of bounded actions, from one critic or from several with different initialisations.

Like `ActionValues` they are a pytree whose structure knows how to apply its parameters: `q = critics(observation,
action)`, one value from each.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from runnel.nn import networks
from runnel.nn.networks import MLP, Activation, dense, widened
from runnel.ops.hardware import launch_bound
from runnel.ops.precision import default_float
from runnel.types import Array, Box, PyTree, Space


class Critics(struct.PyTreeNode):
    """Parameters of `count` networks and last layers, stacked, `[count, ...]`."""

    torso: PyTree
    head: PyTree
    network: Any = struct.field(pytree_node=False)
    count: int = struct.field(pytree_node=False)

    @classmethod
    def create(cls, key: Array, network: Any, size: int, observation: PyTree, count: int = 1) -> Critics:
        """Creates `count` critics of actions with `size` elements; `network` is one of `joint_network`."""
        seen = (observation, jnp.zeros(size, default_float()))

        def layers(key: Array) -> tuple[PyTree, PyTree]:
            torso_key, head_key = jax.random.split(key)
            torso = network.init(torso_key, seen)
            return torso, dense(1, scale=1.0, last=True).init(head_key, network.apply(torso, seen))

        return cls(*jax.vmap(layers)(jax.random.split(key, count)), network, count)

    def __call__(self, observation: PyTree, action: Array) -> Array:
        """[count] the values of one observation and one action in units."""

        def one(torso: PyTree, head: PyTree) -> Array:
            value: Any = dense(1, last=True).apply(head, self.network.apply(torso, (observation, action)))
            return widened(jnp.squeeze(value, -1))

        layers = (self.torso, self.head)
        if launch_bound():
            return jax.vmap(one)(*layers)
        # One batched product has half as many operations to start, but an update of SAC takes a CPU twice as long.
        return jnp.stack([one(*jax.tree.map(itemgetter(k), layers)) for k in range(self.count)])


@dataclass(frozen=True)
class Joint:
    """Features of an observation by a network of the user's, joined with an action by an `MLP`."""

    network: Any
    mlp: MLP

    def init(self, key: Array, seen: tuple[PyTree, Array]) -> PyTree:
        network_key, mlp_key = jax.random.split(key)
        params = self.network.init(network_key, seen[0])
        return params, self.mlp.init(mlp_key, self._join(params, seen))

    def apply(self, params: PyTree, seen: tuple[PyTree, Array]) -> Array:
        return self.mlp.apply(params[1], self._join(params[0], seen))  # type: ignore[return-value]

    def _join(self, params: PyTree, seen: tuple[PyTree, Array]) -> Array:
        return jnp.concatenate([self.network.apply(params, seen[0]), seen[1]])


def joint_network(network: Any, space: Space, size: int, hidden: tuple[int, ...], activation: Activation) -> Any:
    """A network from an observation of `space` and an action with `size` elements to features. `network` is the setting
    of that name: None, or a user's own for observations only."""
    if network is None:
        return networks.network_for((space, Box((size,))), hidden, activation)
    return Joint(networks.resolve(network, space, hidden, activation), MLP(tuple(hidden), activation))
