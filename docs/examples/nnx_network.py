"""A network of Flax NNX: a module with state becomes two pure functions."""

import jax
import jax.numpy as jnp
from flax import nnx

from runnel.nn import Network


class Tower(nnx.Module):
    """Two layers; any module that takes one observation will do."""

    def __init__(self, inputs, features=32, *, rngs):
        self.first = nnx.Linear(inputs, features, rngs=rngs)
        self.second = nnx.Linear(features, features, rngs=rngs)

    def __call__(self, observation):
        return jnp.tanh(self.second(jnp.tanh(self.first(jnp.ravel(observation)))))


def make(key, observation):
    return Tower(observation.size, rngs=nnx.Rngs(key))


def init(key, observation):
    """The parameters: the arrays of a new module."""
    return tuple(jax.tree.leaves(nnx.state(make(key, observation))))


def apply(params, observation):
    """The module without its arrays is a constant; with these ones it is called."""
    constant, state = nnx.split(nnx.eval_shape(lambda: make(jax.random.key(0), observation)))
    return nnx.merge(constant, jax.tree.unflatten(jax.tree.structure(state), params))(observation)


network = Network(init, apply)
