"""A gated recurrent unit (Cho et al., 2014): the lighter of the two cores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from runnel.nn import cores
from runnel.nn.networks import product, widened
from runnel.ops.precision import default_float
from runnel.types import Array


class GRUParams(NamedTuple):
    """Weights of the reset gate, the update gate and the candidate, side by side."""

    inputs: Array  # [features, 3 size]
    memory: Array  # [size, 3 size]
    bias: Array  # [3 size]
    candidate_bias: Array  # [size] inside the reset gate


@dataclass(frozen=True)
class GRU:
    """Memory of `size` numbers, zero when an episode begins: a `Core`."""

    size: int

    def init(self, key: Array, features: Array) -> GRUParams:
        inputs_key, memory_key = jax.random.split(key)
        dtype = default_float()
        return GRUParams(
            cores.gates(inputs_key, features.shape[-1], self.size, 3),
            cores.gates(memory_key, self.size, self.size, 3),
            jnp.zeros(3 * self.size, dtype),
            jnp.zeros(self.size, dtype),
        )

    def initial_memory(self) -> Array:
        return jnp.zeros(self.size, default_float())

    def step(self, params: GRUParams, memory: Array, features: Array) -> Array:
        return self._advance(params, memory, widened(product(features, params.inputs)) + params.bias)

    def unroll(self, params: GRUParams, memory: Array, features: Array, first: Array) -> Array:
        driven = widened(product(features, params.inputs)) + params.bias
        return cores.unroll(partial(self._advance, params), memory, driven, first)

    def output(self, memory: Array) -> Array:
        return memory

    def _advance(self, params: GRUParams, memory: Array, driven: Array) -> Array:
        reset_x, update_x, candidate_x = jnp.split(driven, 3, -1)
        reset_h, update_h, candidate_h = jnp.split(widened(product(memory, params.memory)), 3, -1)
        reset = jax.nn.sigmoid(reset_x + reset_h)
        update = jax.nn.sigmoid(update_x + update_h)
        candidate = jnp.tanh(candidate_x + reset * (candidate_h + params.candidate_bias))
        return (1 - update) * candidate + update * memory
