"""Arrays as one row of bytes.

Every array that enters or leaves a program costs microseconds, and tens of them where another device runs it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.transport.memory import aligned, bytes_of
from runnel.transport.stream import Schema, dtype_of
from runnel.types import Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Row:
    """A message as it lies in memory: a program takes it as one array."""

    memory: Array
    schema: Schema = field(metadata={"static": True})

    def arrays(self) -> list[Array]:
        """Inside a program: the message's arrays."""
        arrays, begin = [], 0
        for shape, dtype in ((each.shape, dtype_of(each)) for each in self.schema):
            size = math.prod(shape) * dtype.itemsize
            arrays.append(_array(self.memory[begin : begin + size], shape, dtype))
            begin += aligned(size)
        return arrays


PackedMessage = Row | Sequence[Array]
"""What a program is given: a message as it lies in memory, or its arrays."""


def whole(arrays: Sequence[np.ndarray], schema: Schema) -> PackedMessage:
    """A message in one piece, given its arrays as `memory.arrays_at` made them.

    In several where one of them is of 64 bits: without `jax_enable_x64`, programs shorten such numbers.
    """
    known = all(jax.dtypes.canonicalize_dtype(dtype) == dtype for dtype in map(dtype_of, schema))
    return Row(bytes_of(arrays), schema) if known else arrays


def apart(message: PackedMessage) -> Sequence[Array]:
    """Inside a program: a message's arrays."""
    return message.arrays() if isinstance(message, Row) else message


def packed(leaves: Sequence[Array]) -> Array:
    """Arrays as one row, each right after the one before it."""
    return jnp.concatenate([_bytes(x) for x in leaves])


def _bytes(x: Array) -> Array:
    x = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, jnp.uint8)
    return x.reshape(-1)


def _array(row: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    if dtype == jnp.bool_:
        return row.reshape(shape).astype(jnp.bool_)
    each = shape if dtype.itemsize == 1 else (*shape, dtype.itemsize)
    return jax.lax.bitcast_convert_type(row.reshape(each), dtype)
