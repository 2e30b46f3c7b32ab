"""Applies each row's own parameters, one set of several, with rows grouped by their parameters.

Gathering the weights of every row would move far more bytes than the rows have. Instead, rows that share parameters are
put into blocks, and each block gathers its weights once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from runnel.types import Array, PyTree

SPARE: int = 4
"""Blocks are small enough that at most one row in `SPARE` is padding when there are many rows."""

LARGEST_BLOCK: int = 256


class RowBlocks(NamedTuple):
    """Rows in blocks, each with rows of one place."""

    place: Array  # [N] the place of each block
    row: Array  # [N, b] the row at each slot; any row where the slot is padding
    slot: Array  # [B] the slot of each row, counted over all blocks


def block_size(rows: int, places: int) -> int:
    """The number of rows of a block: as large as possible while padding is cheap."""
    return max(1, min(LARGEST_BLOCK, rows // (SPARE * places)))


def in_blocks(place: Array, places: int, size: int) -> RowBlocks:
    """Puts rows [B] into blocks of `size`, each with rows of one place. The number of blocks is fixed: B / size, and
    one more for each place."""
    (rows,) = place.shape
    member = place[:, None] == jnp.arange(places)  # [B, K]
    rank = jnp.take_along_axis(jnp.cumsum(member, axis=0, dtype=jnp.int32), place[:, None], axis=1)[:, 0] - 1
    blocks = -(-member.sum(axis=0, dtype=jnp.int32) // size)  # [K]
    ends = jnp.cumsum(blocks)
    slot = (ends - blocks)[place] * size + rank
    count = -(-rows // size) + places
    row = jnp.zeros(count * size, jnp.int32).at[slot].set(jnp.arange(rows, dtype=jnp.int32))
    of_block = jnp.minimum(jnp.searchsorted(ends, jnp.arange(count), side="right"), places - 1)
    return RowBlocks(of_block.astype(jnp.int32), row.reshape(count, size), slot)


def apply_by_place(function: Callable[..., PyTree], stacked: PyTree, place: Array, rows: PyTree) -> PyTree:
    """`function(parameters, row)` for each row [B, ...], with the parameters of its place among `stacked` [K, ...]."""
    places = jax.tree.leaves(stacked)[0].shape[0]

    def one_place(k: Array, rows: PyTree) -> PyTree:
        own = jax.tree.map(lambda x: x[k], stacked)
        return jax.vmap(lambda row: function(own, row))(rows)

    if places == 1:
        return one_place(jnp.int32(0), rows)
    blocks = in_blocks(place, places, block_size(place.shape[0], places))
    given = jax.vmap(one_place)(blocks.place, jax.tree.map(lambda x: x[blocks.row], rows))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[blocks.slot], given)
