"""Cuts a batch of T steps in B columns into minibatches that are equal on one device and on several.

The columns form fixed column blocks. A minibatch takes an equal share of each, and rows are permuted inside their own
only: with the columns spread over devices, only gradients cross between them, and the result does not depend on the
number of devices (permuting freely makes XLA gather the whole batch everywhere).

    parts = cut(batch, count, sequences=False)
    for order in parts.orders(key):  # [count, ...]
        minibatch = parts.take(order)
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from runnel.ops.column_blocks import ColumnBlocks, column_block_layout
from runnel.ops.primitives import equations
from runnel.types import Array, PyTree

MARK = "runnel.minibatches"
"""The prefix of the name under which JAX records how a batch was cut: plans read it, and it computes nothing."""

MOST_LOW_BITS = 12
"""The most of the 32 random bits of a row that its number may replace; the remaining 20 or more decide its place."""


def cut(batch: PyTree, count: int, sequences: bool) -> Cut:
    """Prepares a batch `[T, B, ...]` to be taken in `count` minibatches, every step once.

    Minibatches of `sequences` have whole columns, `[T, B / count, ...]`, and a leaf `[1, B, ...]` goes with its column.
    Others are flat, `[T * B / count, ...]`; they also take whole columns if there are enough, because contiguous rows
    are cheaper to gather, otherwise single steps.
    """
    leaves, structure = jax.tree.flatten(batch)
    steps, columns = (max(sizes) for sizes in zip(*(x.shape[:2] for x in leaves), strict=True))
    blocks, by_column = column_block_layout(steps, columns, count, sequences)
    rows = columns // blocks * (1 if by_column else steps)

    def by_row(x: Array) -> Array:  # [T, B, ...] -> [blocks, rows, T or 1, ...]
        x = jnp.moveaxis(x.reshape(x.shape[0], blocks, columns // blocks, *x.shape[2:]), 0, 2)
        return x if by_column else x.reshape(blocks, rows, 1, *x.shape[3:])

    # Scalars of one type lie side by side, to be gathered in one go.
    packs: dict[Hashable, list[int]] = {}
    for i, x in enumerate(leaves):
        packs.setdefault((x.dtype, x.shape) if x.ndim == 2 else i, []).append(i)
    sources = [by_row(jnp.stack([leaves[i] for i in pack], -1)) for pack in packs.values()]
    sources[0] = checkpoint_name(sources[0], f"{MARK} {columns} {count} {blocks}")
    return Cut(count, blocks, rows, sequences, structure, list(packs.values()), sources)


@dataclass(frozen=True)
class Cut:
    """A batch laid out for gathering minibatches."""

    count: int
    blocks: int
    rows: int  # in each block
    sequences: bool
    structure: Any
    packs: list[list[int]]  # which leaves each source holds
    sources: list[Array]  # [blocks, rows, T or 1, ..., leaves]

    def orders(self, key: Array) -> Array:
        """[count, blocks, rows / count] a random order of the rows of each block, one part for each minibatch."""
        order = _random_orders(key, self.blocks, self.rows)
        return jnp.moveaxis(order.reshape(self.blocks, self.count, -1), 1, 0)

    def take(self, order: Array) -> PyTree:
        """The minibatch of one part of an order."""
        leaves: dict[int, Array] = {}
        for pack, source in zip(self.packs, self.sources, strict=True):
            taken = jax.vmap(lambda block, index: block[index])(source, order)  # [blocks, n, T or 1, ..., leaves]
            taken = taken.reshape(-1, *taken.shape[2:])
            taken = jnp.moveaxis(taken, 0, 1) if self.sequences else taken.reshape(-1, *taken.shape[2:])
            leaves |= {i: taken[..., k] for k, i in enumerate(pack)}
        return jax.tree.unflatten(self.structure, [leaves[i] for i in range(len(leaves))])


def cuts_of(jaxpr: Any) -> tuple[ColumnBlocks, ...]:
    """The divisions of batches in a traced function, each once."""
    names = [str(each.params["name"]) for each in equations(jaxpr) if each.primitive.name == "name"]
    found = [ColumnBlocks(*map(int, name.split()[1:])) for name in names if name.startswith(f"{MARK} ")]
    return tuple(dict.fromkeys(found))


def _random_orders(key: Array, count: int, size: int) -> Array:
    """[count, size] `count` random permutations of the numbers below `size`."""
    drawn = jax.random.bits(key, (count, size))
    low_bits = (size - 1).bit_length()
    if low_bits > MOST_LOW_BITS:
        return jnp.argsort(drawn)
    # One array sorts more than twice as fast as two side by side: each number rides in the low bits of what it drew.
    numbered = (drawn >> low_bits << low_bits) | jnp.arange(size, dtype=drawn.dtype)
    return (jnp.sort(numbered) & ((1 << low_bits) - 1)).astype(jnp.int32)
