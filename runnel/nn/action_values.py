"""The value of each of a discrete set of actions.

Like `ActorCritic` it is a pytree whose structure knows how its parameters are applied: `q = values(observation)`.
"""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from runnel.nn.networks import dense
from runnel.types import Array, PyTree


class ActionValues(struct.PyTreeNode):
    """Parameters of a network and of a last layer with one output for each action."""

    torso: PyTree
    head: PyTree
    network: Any = struct.field(pytree_node=False)
    actions: int = struct.field(pytree_node=False)

    @classmethod
    def create(cls, key: Array, network: Any, actions: int, observation: PyTree) -> ActionValues:
        torso_key, head_key = jax.random.split(key)
        torso = network.init(torso_key, observation)
        head = dense(actions, scale=1.0).init(head_key, network.apply(torso, observation))
        return cls(torso, head, network, actions)

    def __call__(self, observation: PyTree) -> Array:
        """[actions] for one observation."""
        return dense(self.actions).apply(self.head, self.network.apply(self.torso, observation))  # type: ignore[return-value]
