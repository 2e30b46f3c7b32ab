"""A network of Equinox: a module is a tree of arrays and constants, and becomes two pure functions."""

import equinox as eqx
import jax
import jax.numpy as jnp

from runnel.nn import Network


def make(key, observation):
    """Any module that takes one observation will do."""
    mlp = eqx.nn.MLP(observation.size, 32, width_size=32, depth=1, activation=jnp.tanh, key=key)
    return eqx.nn.Sequential([eqx.nn.Lambda(jnp.ravel), mlp])


def init(key, observation):
    """The parameters: the arrays of a new module."""
    return tuple(jax.tree.leaves(eqx.filter(make(key, observation), eqx.is_array)))


def apply(params, observation):
    """The module without its arrays is a constant; with these ones it is called."""
    module = eqx.filter_eval_shape(make, jax.random.key(0), observation)
    arrays, constant = eqx.partition(module, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), params), constant)(observation)


network = Network(init, apply)
