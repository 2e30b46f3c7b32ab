"""The protocol of a recurrent core, and what cores share: concatenated gates, and a memory that resets.

A core is stepped while acting and unrolled while learning, with equal results. Unrolling multiplies all steps' inputs
by their weights at once, which leaves one small matrix product per step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from runnel.ops.precision import default_float
from runnel.types import Array, PyTree

Memory = Literal["none", "gru", "lstm"]
"""The kinds of memory that an algorithm's settings can select."""


class Core(Protocol):
    """Turns a sequence of features into memories; each memory determines the output of its step."""

    @property
    def size(self) -> int:
        """The size of the output."""
        ...

    def init(self, key: Array, features: Array) -> Any: ...

    def initial_memory(self) -> PyTree:
        """The memory at the beginning of an episode: zeros."""
        ...

    def step(self, params: Any, memory: PyTree, features: Array) -> PyTree:
        """The memory after one step."""
        ...

    def unroll(self, params: Any, memory: PyTree, features: Array, first: Array) -> PyTree:
        """[T, ...] the memory after each of T steps, reset at steps that are `first` in an episode."""
        ...

    def output(self, memory: PyTree) -> Array:
        """[..., size] the output for later layers."""
        ...


def gates(key: Array, inputs: int, size: int, count: int) -> Array:
    """[inputs, count * size] the weights of `count` gates, each orthogonal."""
    gate = jax.nn.initializers.orthogonal()
    keys = jax.random.split(key, count)
    parts = jax.vmap(lambda k: gate(k, (inputs, size), default_float()), out_axes=1)(keys)
    return parts.reshape(inputs, count * size)


def unroll(advance: Callable[[PyTree, Array], PyTree], memory: PyTree, driven: Array, first: Array) -> PyTree:
    """[T, ...] the memory after each of T steps, each driven by a row, and reset where that is `first`."""

    def body(memory: PyTree, step: tuple[Array, Array]) -> tuple[PyTree, PyTree]:
        driven, first = step
        memory = advance(jax.tree.map(lambda x: jnp.where(first, 0.0, x), memory), driven)
        return memory, memory

    return jax.lax.scan(body, memory, (driven, first))[1]
