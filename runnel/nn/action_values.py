"""Values of a discrete set of actions.

Like `ActorCritic` it is a pytree whose structure knows how to apply its parameters: `q = values(observation)`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, struct

from runnel.nn.networks import dense, widened
from runnel.nn.noisy import NOISE, NoisyDense
from runnel.observations import view
from runnel.types import Array, PyTree


class ActionHead(linen.Module):
    """Maps features to `[actions, *each]`: by one layer, or dueling (Wang et al., 2016).

    When dueling, one stream computes the value of the observation and another each action's advantage over the mean.
    Each stream has its own hidden layer, as wide as the features: without it, the two would be one layer.
    """

    actions: int
    each: tuple[int, ...] = ()
    dueling: bool = False
    noisy: bool = False

    @linen.compact
    def __call__(self, features: Array) -> Array:
        if not self.dueling:
            return self._outputs(features, self.actions)
        advantage = self._outputs(self._hidden(features), self.actions)
        return self._outputs(self._hidden(features), 1) + advantage - advantage.mean(0)

    def _hidden(self, features: Array) -> Array:
        width = features.shape[-1]
        return jax.nn.relu((NoisyDense(width) if self.noisy else dense(width))(features))

    def _outputs(self, features: Array, rows: int) -> Array:
        size = rows * math.prod(self.each)
        layer = NoisyDense(size, last=True) if self.noisy else dense(size, scale=1.0, last=True)
        return widened(layer(features)).reshape(rows, *self.each)


class ActionValues(struct.PyTreeNode):
    """Parameters of a network and of an `ActionHead`.

    Where an agent has no turn (`runnel.observations`), its action has no effect: each action has the mean of all
    values. So the network learns the value of such a step, which earlier steps bootstrap from, and no preference among
    actions.
    """

    torso: PyTree
    last: PyTree
    network: Any = struct.field(pytree_node=False)
    head: ActionHead = struct.field(pytree_node=False)

    @classmethod
    def create(
        cls, key: Array, network: Any, actions: int, observation: PyTree, each: tuple[int, ...] = (),
        dueling: bool = False, noisy: bool = False,
    ) -> ActionValues:  # fmt: skip
        """A value for each action, or of shape `each`: `(51,)` for the logits of a distribution of returns."""
        torso_key, head_key = jax.random.split(key)
        head, seen = ActionHead(actions, each, dueling, noisy), view(observation).seen
        torso = network.init(torso_key, seen)
        return cls(torso, head.init(head_key, network.apply(torso, seen)), network, head)

    @property
    def actions(self) -> int:
        """The number of actions."""
        return self.head.actions

    def __call__(self, observation: PyTree, key: Array | None = None) -> Array:
        """[actions, *each] for one observation; noisy layers draw from the key, and without one use their means."""
        seen = view(observation)
        features = self.network.apply(self.torso, seen.seen)
        outputs: Any = self.head.apply(self.last, features, rngs={} if key is None else {NOISE: key})
        if seen.active is None:
            return outputs
        return jnp.where(seen.active, outputs, outputs.mean(0))

    def batch(self, observation: PyTree, key: Array | None = None) -> Array:
        """[N, actions, *each] for N observations, all with the same noise."""
        return jax.vmap(partial(self.__call__, key=key))(observation)
