"""Custom networks: two functions, or a linen module."""

import jax
import jax.numpy as jnp
from flax import linen

from runnel.nn import Network


def init(key, observation):  # ONE observation, as the environment returns it
    """The parameters, any pytree."""
    return {"w": 0.1 * jax.random.normal(key, (observation.size, 32)), "b": jnp.zeros(32)}


def apply(params, observation):
    """[features] of one observation."""
    return jax.nn.relu(jnp.ravel(observation) @ params["w"] + params["b"])


two_functions = Network(init, apply)


class Residual(linen.Module):
    """A layer, and a second one with a residual connection."""

    features: int = 32

    @linen.compact
    def __call__(self, observation):
        x = linen.tanh(linen.Dense(self.features)(jnp.ravel(observation)))
        return x + linen.tanh(linen.Dense(self.features)(x))


module = Residual(features=48)
