"""Decisions that everything traced together takes at once.

Under `jax.vmap`, a loop whose length each row decides for itself selects over all that it carries, in every turn, and a
branch computes both of its sides. Where going on does no harm to the rows that could have ended, all go on for as long
as one must: the decision is one number, and loops and branches stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from runnel.types import Array, PyTree


@jax.custom_batching.custom_vmap
def most(count: Array) -> Array:
    """The largest of all rows; without rows, itself."""
    return count


@most.def_vmap
def _most(axis_size: int, in_batched: Sequence[bool], count: Array) -> tuple[Array, bool]:
    del axis_size
    return (most(count.max(0)) if in_batched[0] else most(count)), False


def branch(all_of: Array, usual: Callable[[PyTree], PyTree], other: Callable[[PyTree], PyTree], given: PyTree) -> Any:
    """`usual(given)` where the predicate holds for all rows, else `other(given)` for all of them.

    `other` must give what `usual` gives for a row whose predicate holds. Both see traced arrays in `given` alone, and
    close over none.
    """

    @jax.custom_batching.custom_vmap
    def decided(all_of: Array, given: PyTree) -> PyTree:
        return jax.lax.cond(all_of, usual, other, given)

    @decided.def_vmap
    def _decided(axis_size: int, in_batched: Sequence[Any], all_of: Array, given: PyTree) -> tuple[PyTree, PyTree]:
        batched, axes = in_batched[0], jax.tree.map(lambda own: 0 if own else None, in_batched[1])

        def rows(function: Callable[[PyTree], PyTree]) -> Callable[[PyTree], PyTree]:
            return jax.vmap(function, in_axes=(axes,), axis_size=axis_size)

        found = branch(all_of.all(0) if batched else all_of, rows(usual), rows(other), given)
        return found, jax.tree.map(lambda _: True, found)

    return decided(all_of, given)
