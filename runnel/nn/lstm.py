"""A long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000): the core of IMPALA and R2D2."""

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


class LSTMParams(NamedTuple):
    """Weights of the input, forget and output gates and the candidate, side by side."""

    inputs: Array  # [features, 4 size]
    memory: Array  # [size, 4 size]
    bias: Array  # [4 size]


class LSTMMemory(NamedTuple):
    """The hidden state, which is the output, and the cell state."""

    hidden: Array  # [size]
    cell: Array  # [size]


@dataclass(frozen=True)
class LSTM:
    """Memory of twice `size` numbers, zero when an episode begins: a `Core`."""

    size: int

    def init(self, key: Array, features: Array) -> LSTMParams:
        inputs_key, memory_key = jax.random.split(key)
        shut, open_ = jnp.zeros(self.size, default_float()), jnp.ones(self.size, default_float())
        return LSTMParams(
            cores.gates(inputs_key, features.shape[-1], self.size, 4),
            cores.gates(memory_key, self.size, self.size, 4),
            # Forgets little at first (Jozefowicz et al., 2015): else nothing far back could be learnt from.
            jnp.concatenate([shut, open_, shut, shut]),
        )

    def initial_memory(self) -> LSTMMemory:
        return LSTMMemory(*jnp.zeros((2, self.size), default_float()))

    def step(self, params: LSTMParams, memory: LSTMMemory, features: Array) -> LSTMMemory:
        return self._advance(params, memory, widened(product(features, params.inputs)) + params.bias)

    def unroll(self, params: LSTMParams, memory: LSTMMemory, features: Array, first: Array) -> LSTMMemory:
        driven = widened(product(features, params.inputs)) + params.bias
        return cores.unroll(partial(self._advance, params), memory, driven, first)

    def output(self, memory: LSTMMemory) -> Array:
        return memory.hidden

    def _advance(self, params: LSTMParams, memory: LSTMMemory, driven: Array) -> LSTMMemory:
        recalled = widened(product(memory.hidden, params.memory))
        gates, candidate = jnp.split(driven + recalled, [3 * self.size], -1)
        enter, keep, tell = jnp.split(jax.nn.sigmoid(gates), 3, -1)
        cell = keep * memory.cell + enter * jnp.tanh(candidate)
        return LSTMMemory(tell * jnp.tanh(cell), cell)
