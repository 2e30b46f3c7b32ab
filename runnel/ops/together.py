"""Reductions across `vmap`: a loop bound or branch predicate that all rows share.

Under `jax.vmap`, a per-row loop bound becomes a select over the whole carry in every iteration, and `cond` computes
both branches. If extra iterations do not change the rows that are finished, all rows can run as many as the slowest
needs: then the bound is one scalar, and loops and branches stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from runnel.types import Array, PyTree


@jax.custom_batching.custom_vmap
def most(count: Array) -> Array:
    """The maximum over all rows under `vmap`; `count` itself without it."""
    return count


@most.def_vmap
def _most(axis_size: int, in_batched: Sequence[bool], count: Array) -> tuple[Array, bool]:
    del axis_size
    return (most(count.max(0)) if in_batched[0] else most(count)), False


def branch(all_of: Array, usual: Callable[[PyTree], PyTree], other: Callable[[PyTree], PyTree], given: PyTree) -> Any:
    """`usual(given)` if the predicate holds for all rows, otherwise `other(given)` for all of them.

    For a row whose predicate holds, `other` must return the same as `usual`. Both use traced arrays from `given` only,
    and close over none.
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
