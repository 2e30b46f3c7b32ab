"""A gated recurrent unit (Cho et al., 2014) that can be stepped while acting and unrolled while learning.

Both give the same numbers. Unrolling multiplies all steps' inputs by their weights at once, which leaves one
small matrix product in each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from runnel.nn.networks import default_float
from runnel.types import Array


class GRUParams(NamedTuple):
    """Weights of the reset gate, the update gate and the candidate, side by side."""

    inputs: Array  # [features, 3 size]
    memory: Array  # [size, 3 size]
    bias: Array  # [3 size]
    candidate_bias: Array  # [size] inside the reset gate


@dataclass(frozen=True)
class GRU:
    """Memory of `size` numbers, zero when an episode begins."""

    size: int

    def init(self, key: Array, features: Array) -> GRUParams:
        inputs_key, memory_key = jax.random.split(key)
        dtype = default_float()

        def gates(key: Array, inputs: int) -> Array:  # each gate orthogonal by itself
            gate = jax.nn.initializers.orthogonal()
            parts = jax.vmap(lambda k: gate(k, (inputs, self.size), dtype), out_axes=1)(jax.random.split(key, 3))
            return parts.reshape(inputs, 3 * self.size)

        return GRUParams(
            gates(inputs_key, features.shape[-1]),
            gates(memory_key, self.size),
            jnp.zeros(3 * self.size, dtype),
            jnp.zeros(self.size, dtype),
        )

    def initial_memory(self) -> Array:
        return jnp.zeros(self.size, default_float())

    def step(self, params: GRUParams, memory: Array, features: Array) -> Array:
        """The memory after one step."""
        return self._advance(params, memory, features @ params.inputs + params.bias)

    def unroll(self, params: GRUParams, memory: Array, features: Array, first: Array) -> Array:
        """[T, size] the memory after each of T steps, begun anew at steps that are `first` in an episode."""
        driven = features @ params.inputs + params.bias

        def body(memory: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
            driven, first = step
            memory = self._advance(params, jnp.where(first, 0.0, memory), driven)
            return memory, memory

        return jax.lax.scan(body, memory, (driven, first))[1]

    def _advance(self, params: GRUParams, memory: Array, driven: Array) -> Array:
        reset_x, update_x, candidate_x = jnp.split(driven, 3, -1)
        reset_h, update_h, candidate_h = jnp.split(memory @ params.memory, 3, -1)
        reset = jax.nn.sigmoid(reset_x + reset_h)
        update = jax.nn.sigmoid(update_x + update_h)
        candidate = jnp.tanh(candidate_x + reset * (candidate_h + params.candidate_bias))
        return (1 - update) * candidate + update * memory
