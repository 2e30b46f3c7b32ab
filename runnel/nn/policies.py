"""Policies for bounded actions: a deterministic one, and a stochastic one with probabilities.

Like `ActionValues` they are pytrees whose structure knows how to apply their parameters. Their outputs are in units,
`[n]`; `policy.bounds.action(unit)` is the environment's action.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from runnel.nn.bounds import Bounds
from runnel.nn.heads import POLICY_SCALE, Gaussian
from runnel.nn.networks import dense, widened
from runnel.types import Array, PyTree

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
"""Bounds of a squashed Gaussian, as in Haarnoja et al. (2018): beyond these, probabilities overflow floats."""


class DeterministicPolicy(struct.PyTreeNode):
    """Parameters of a network and of a last layer with one output for each element of an action."""

    torso: PyTree
    head: PyTree
    network: Any = struct.field(pytree_node=False)
    bounds: Bounds = struct.field(pytree_node=False)

    @classmethod
    def create(cls, key: Array, network: Any, bounds: Bounds, observation: PyTree) -> DeterministicPolicy:
        return cls(*_layers(key, network, bounds.size, observation), network, bounds)

    def __call__(self, observation: PyTree) -> Array:
        """[n] the action for one observation, in units."""
        return jnp.tanh(_outputs(self, observation, self.bounds.size))


class SquashedGaussian(NamedTuple):
    """Independent normal numbers, each squashed to within -1 and 1 by a hyperbolic tangent."""

    mean: Array  # [..., n] before it
    log_std: Array  # [..., n]

    def sample_and_log_prob(self, key: Array) -> tuple[Array, Array]:
        """[..., n] samples and [...] their log-probabilities, computed together: rounding can make an action exactly 1,
        from which its sample cannot be recovered."""
        gaussian = Gaussian(self.mean, self.log_std)
        drawn = gaussian.sample(key)
        log_slope = 2 * (math.log(2) - drawn - jax.nn.softplus(-2 * drawn))  # of tanh, where 1 - tanh^2 would be 0
        return jnp.tanh(drawn), gaussian.log_prob(drawn) - log_slope.sum(-1)

    def mode(self) -> Array:
        """[..., n] the squashed mean. It is not the mode if much of the distribution is squashed, but the intended
        action."""
        return jnp.tanh(self.mean)


class StochasticPolicy(struct.PyTreeNode):
    """Parameters of a network and of a last layer with a mean and a deviation for each element of an action."""

    torso: PyTree
    head: PyTree
    network: Any = struct.field(pytree_node=False)
    bounds: Bounds = struct.field(pytree_node=False)

    @classmethod
    def create(cls, key: Array, network: Any, bounds: Bounds, observation: PyTree) -> StochasticPolicy:
        return cls(*_layers(key, network, 2 * bounds.size, observation), network, bounds)

    def __call__(self, observation: PyTree) -> SquashedGaussian:
        """The distribution for one observation."""
        mean, log_std = jnp.split(_outputs(self, observation, 2 * self.bounds.size), 2, -1)
        return SquashedGaussian(mean, jnp.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))


def _layers(key: Array, network: Any, size: int, observation: PyTree) -> tuple[PyTree, PyTree]:
    torso_key, head_key = jax.random.split(key)
    torso = network.init(torso_key, observation)
    return torso, dense(size, POLICY_SCALE, last=True).init(head_key, network.apply(torso, observation))


def _outputs(policy: DeterministicPolicy | StochasticPolicy, observation: PyTree, size: int) -> Array:
    features = policy.network.apply(policy.torso, observation)
    return widened(dense(size, last=True).apply(policy.head, features))
