"""Updates that would bring NaN or infinity into a learner's state are refused, and what broke first is named.

    made = [*finite.leaves(out, "", scalars_only=True), *finite.leaves(new, "", before=old)]
    state, fine, tally = finite.guard("ppo's learn", finite.inputs(graph, node, inputs), made, new, instead=old)

All of it is traced, and an update that is fine pays for one look at what it made. Names are known when it is traced,
and travel as part of a tally's structure: nothing is asked of the host before a tally is read there with the other
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.graph.nodes import Graph, Node
from runnel.ops.together import branch
from runnel.types import Array, PyTree, Trajectory


@partial(jax.tree_util.register_dataclass, data_fields=["counts"], meta_fields=["names"])
@dataclass(frozen=True)
class NonFiniteCounts:
    """How often updates of a node were refused, by what was the first not to be finite. Tallies add up as trees."""

    counts: Array  # [Q]
    names: tuple[str, ...]  # of the Q quantities

    def read(self) -> dict[str, int]:
        """The quantities that broke, on the host."""
        return {name: int(count) for name, count in zip(self.names, self.counts, strict=True) if count}


class Quantity(NamedTuple):
    """An array of real numbers that is looked at."""

    name: str
    value: Array
    before: Array | None = None  # what it was: a number that was not finite already is no news


def readable_path(path: Sequence[Any], between: str = "/") -> str:
    """A leaf's place in its tree, as people write it."""
    return between.join(str(getattr(p, "name", getattr(p, "key", getattr(p, "idx", p)))) for p in path)


def leaves(
    tree: PyTree, name: str, between: str = "/", before: PyTree = None, scalars_only: bool = False
) -> list[Quantity]:
    """The leaves of a tree that hold real numbers; `before` is the same tree as it was."""
    found = []
    old = jax.tree.leaves(before) if before is not None else None
    for k, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        if not _real(leaf) or (scalars_only and jnp.ndim(leaf)):
            continue
        full = between.join(part for part in (name, readable_path(path, between)) if part)
        found.append(Quantity(full or "loss", leaf, old[k] if old is not None else None))
    return found


def inputs(graph: Graph, node: Node, values: Sequence[PyTree]) -> list[Quantity]:
    """What a node learns from, by readable names such as `trajectory.reward`.

    Only to name a cause: infinity may be a proper observation. `last_observation` is left out: most of its rows mean
    nothing and may hold anything.
    """
    found = []
    for ref, value in zip(node.inputs, values, strict=True):
        name = ".".join([graph.nodes[ref.node].called, *map(str, ref.path)])
        if isinstance(value, Trajectory):
            value = value._replace(last_observation=())
        if ref.path[-1:] != ("last_observation",):
            found += leaves(value, name, between=".")
    return found


def guard(
    owner: str,
    seen: Sequence[Quantity],
    made: Sequence[Quantity],
    new: PyTree,
    instead: PyTree,
    blame_seen: bool = True,
) -> tuple[PyTree, Array, NonFiniteCounts]:
    """`new`, bit for bit, where all that was `made` is finite; else `instead`. Also returns which, and why.

    What was `seen` is no reason to refuse, but where there is another it is named first: it was there first. Without
    `blame_seen` a refusal that comes of it is not counted, because it was counted where it was made.
    """
    blamed = [*seen, *made] if blame_seen else [*made]
    names = tuple(f"{owner}: {quantity.name}" for quantity in blamed)
    if not made:
        return new, jnp.bool_(True), NonFiniteCounts(jnp.zeros(len(names), jnp.int32), names)

    arrays = ([q[1:] for q in seen], [q[1:] for q in made], new, instead)  # names stay outside of what is traced

    def as_ever(given: Any) -> tuple[PyTree, Array, Array]:
        return given[2], jnp.bool_(True), jnp.zeros(len(names), jnp.int32)

    def looked_into(given: Any) -> tuple[PyTree, Array, Array]:
        of_seen, of_made = ([_finite(*arrays) for arrays in each] for each in given[:2])
        fine = jnp.stack(of_made).all()
        counted = ~fine
        if not blame_seen and seen:
            counted &= jnp.stack(of_seen).all()
        found = jnp.stack([*of_seen, *of_made] if blame_seen else of_made)
        counts = jnp.zeros(len(names), jnp.int32).at[jnp.argmin(found)].set(counted.astype(jnp.int32))
        return jax.tree.map(lambda n, i: jnp.where(fine, n, i), *given[2:]), fine, counts

    # What is dear, such as a look at large inputs that may be spread over devices, waits until there is a reason: for
    # one of all members, where there are several.
    kept, fine, counts = branch(_plainly_finite(made), as_ever, looked_into, arrays)
    return kept, fine, NonFiniteCounts(counts, names)


def entered(tree: PyTree, fresh: Callable[[], PyTree]) -> str | None:
    """The first array of a tree, on the host, that holds a number which is not finite where that of `fresh` is."""
    suspects = {
        readable_path(path, "."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if jnp.issubdtype(getattr(leaf, "dtype", np.int32), jnp.inexact) and not np.isfinite(np.asarray(leaf)).all()
    }
    if not suspects:  # as nearly always: nothing has to be computed
        return None
    for path, leaf in jax.tree_util.tree_leaves_with_path(fresh()):
        found = suspects.get(readable_path(path, "."))
        if found is not None and (np.isfinite(np.asarray(leaf)) & ~np.isfinite(found)).any():
            return readable_path(path, ".")
    return None


def spoilt(tree: PyTree) -> PyTree:
    """NaN for all real numbers of a tree, so that a worker that receives it can see that it was refused."""
    return jax.tree.map(lambda x: jnp.full_like(x, jnp.nan) if _real(x) else x, tree)


def any_refused(tallies: dict[str, NonFiniteCounts]) -> Array:
    """[] whether any update was."""
    refused = jnp.bool_(False)
    for each in tallies.values():
        refused = refused | (each.counts > 0).any()
    return refused


def _real(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)


def _plainly_finite(quantities: Sequence[Quantity]) -> Array:
    """[] whether every number is. By the largest of them: on a CPU that takes less time than to ask each."""
    fine = jnp.bool_(True)
    for quantity in quantities:
        fine &= jnp.max(jnp.abs(quantity.value), initial=0) < jnp.inf
    return fine


def _finite(value: Array, before: Array | None) -> Array:
    """[] whether every number is, or was not before."""
    fine = jnp.isfinite(value)
    if before is not None:
        fine |= ~jnp.isfinite(before)
    return fine.all()
