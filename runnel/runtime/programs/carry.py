"""Everything that training carries from one iteration to the next, as one pytree.

A worker holds the parts that its fragment's nodes need: dicts with the entries of its own nodes, and `()` for
what lives elsewhere. Put together again they are a checkpoint, the same under every distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from runnel.ops.episodes import Running, Window
from runnel.runtime.programs.finite import NonFiniteCounts, readable_path
from runnel.types import Array, PyTree


class EnvStates(NamedTuple):
    """JAX environments between two steps."""

    state: PyTree  # [E, ...]
    observation: dict[str, PyTree]  # by group: [B, ...]
    first: Array  # [E] the observation begins an episode


class ActorStates(NamedTuple):
    """What acting carries from unroll to unroll, by group."""

    memory: dict[str, PyTree]  # [B, ...]
    discounted_sum: dict[str, Array]  # [B]


class ReplayState(NamedTuple):
    """A replay node's state."""

    items: PyTree
    inserted: Array  # [] how many items came in, counted up to `min_size`
    credit: Array  # [] how many items may be sampled before more must come in


class Carry(NamedTuple):
    """The state of training between two iterations."""

    seed: Array  # [] which the program does not know: one compiled program serves all seeds
    iteration: Array  # []
    # What learning needs
    updates: dict[str, Array]  # by group: []; the parameters' version
    states: dict[str, PyTree]  # by group: the learner's state
    replays: dict[str, ReplayState]  # by replay node
    window: Window | tuple[()]  # the newest episodes
    # What stepping environments needs
    actors: ActorStates | tuple[()]
    running: Running | tuple[()]  # the episodes in progress
    environments: EnvStates | tuple[()]  # () for host environments, which live outside


StateChange = Callable[[Mapping[str, PyTree], Mapping[str, Any]], Mapping[str, PyTree]]
"""Takes the learners' states and versions by group; returns the states of groups that get another one."""


class IterationMetrics(NamedTuple):
    """The metrics of an iteration, as sums that can be added up."""

    episodes: Array  # [] how many ended
    updates: dict[str, Array]  # by learning node: [] how many updates were made
    out: dict[str, dict[str, Array]]  # by learning node: the sums of `out`'s scalars over its updates
    broken: dict[str, NonFiniteCounts] = {}  # noqa: RUF012  (never changed) by node that changes state: the updates refused
    env: dict[str, Array] = {}  # noqa: RUF012  (never changed) by metric of the environment: [2] sum and number of episodes


def scalars(out: PyTree) -> dict[str, Array]:
    """The scalar leaves of a node's `out` by name; the others are for other nodes."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        if jnp.ndim(leaf) == 0:
            named[readable_path(path) or "loss"] = jnp.asarray(leaf, jnp.float32)
    return named


def update(node: str, out: PyTree, fine: Array, tally: NonFiniteCounts) -> IterationMetrics:
    """The metrics of one update; of a refused one, only why it was refused."""
    sums = {name: jnp.where(fine, value, 0.0) for name, value in scalars(out).items()}
    return IterationMetrics(jnp.zeros((), jnp.int32), {node: fine.astype(jnp.int32)}, {node: sums}, {node: tally})


def noted(metrics: IterationMetrics, learnt: IterationMetrics) -> IterationMetrics:
    """Metrics with those of what other nodes learnt."""
    return IterationMetrics(
        metrics.episodes + learnt.episodes,
        {**metrics.updates, **learnt.updates},
        {**metrics.out, **learnt.out},
        {**metrics.broken, **learnt.broken},
        {**metrics.env, **learnt.env},
    )
