"""Finds dtypes of a JAX environment's state that `reset` and `step` can share, so that a scan can carry it.

Environments often ignore dtypes: a reset makes a Python 0 where a step makes an array, or adds booleans to integers. A
single step works, but a scan refuses a state that changes its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.types import Array, Leaf, PyTree


class StateTypes:
    """The dtypes of an environment's state, found by tracing it; `cast` converts a state to them."""

    def __init__(
        self, reset: Callable[[Array], PyTree], step: Callable[[PyTree, PyTree, Array], PyTree], action: PyTree
    ):
        """`reset(key)` and `step(state, action, key)` may return any dtypes; `action` is a tree of spaces."""
        self._reset, self._step = reset, step
        self._action = jax.tree.map(_struct, action)
        self._found: dict[bool, PyTree] = {}  # by whether there are 64 bits

    def cast(self, state: PyTree) -> PyTree:
        x64 = jnp.result_type(float) == np.float64
        if x64 not in self._found:
            self._found[x64] = self._settle()
        return jax.tree.map(lambda leaf, dtype: jnp.asarray(leaf, dtype), state, self._found[x64])

    def _settle(self) -> PyTree:
        key = jax.eval_shape(jax.random.key, 0)
        state = jax.tree.map(_struct, jax.eval_shape(self._reset, key))
        while True:  # promotion only widens, so this ends
            stepped = jax.eval_shape(self._step, state, self._action, key)
            widened = jax.tree.map(_widest, state, stepped)
            if jax.tree.leaves(widened) == jax.tree.leaves(state):
                return jax.tree.map(lambda leaf: leaf.dtype, state)
            state = widened


def _struct(leaf: Leaf | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Without its weak type, if it has one."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _widest(a: jax.ShapeDtypeStruct, b: Any) -> jax.ShapeDtypeStruct:
    return a if a.dtype == b.dtype else jax.ShapeDtypeStruct(a.shape, jnp.promote_types(a.dtype, b.dtype))
