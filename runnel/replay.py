"""Replay as pure functions over explicit state, on flashbax: uniform, prioritised, and of sequences.

Each kind is a frozen record. `flow.replay(kind)` puts it into the dataflow graph; the runtime calls `init`, `add`,
`sample` and, for kinds with priorities, `update`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax

from runnel.types import Array, PyTree

MOST_ITEMS: Final = (1 << 31) - 1
"""Places in a replay are counted in 32 bits."""


class Prioritised(NamedTuple):
    """A batch of prioritised replay, as `learn` receives it."""

    items: PyTree  # [batch, ...]
    probability: Array  # [batch] with which each was drawn
    position: Array  # [batch] where each lies


def weighted(batch: PyTree, exponent: float) -> tuple[PyTree, Array]:
    """A batch's items, and importance weights that correct for their priorities (Schaul et al., 2016), 1 without
    priorities."""
    if not isinstance(batch, Prioritised):
        return batch, jax.numpy.ones(())
    weights = batch.probability**-exponent
    return batch.items, weights / weights.max()


def _first(tree: PyTree, axes: int) -> PyTree:
    """The shapes and dtypes of one item: `tree` without its leading axes."""
    return jax.tree.map(lambda x: jax.numpy.zeros(x.shape[axes:], x.dtype), tree)


@dataclass(frozen=True)
class UniformReplay:
    """Keeps the newest `capacity` items, drawn with equal probability. Items: `[N, ...]`; batches: `[batch, ...]`."""

    capacity: int

    def _buffer(self, batch: int) -> Any:
        from flashbax import make_item_buffer

        return make_item_buffer(self.capacity, batch, batch, add_batches=True)

    def init(self, items: PyTree, batch: int) -> PyTree:
        return self._buffer(batch).init(_first(items, 1))

    def add(self, state: PyTree, items: PyTree, batch: int) -> PyTree:
        return self._buffer(batch).add(state, items)

    def sample(self, state: PyTree, key: Array, batch: int) -> PyTree:
        return self._buffer(batch).sample(state, key).experience

    def count(self, items: PyTree) -> int:
        """The number of items that an insertion of `items` adds."""
        return jax.tree.leaves(items)[0].shape[0]

    def room(self, items: PyTree) -> int:
        """The number of such items that it can hold."""
        return self.capacity

    def cost(self, batch: int) -> int:
        """The number of items in a batch."""
        return batch


@dataclass(frozen=True)
class PrioritisedReplay:
    """Keeps the newest `capacity` items, drawn in proportion to priority ** `exponent`.

    New items have the highest priority so far. Batches are `Prioritised`; `replay.update(priorities)` sets the
    priorities of the last batch.
    """

    capacity: int
    exponent: float = 0.6

    def _buffer(self, batch: int) -> Any:
        from flashbax import make_prioritised_item_buffer

        return make_prioritised_item_buffer(
            self.capacity, batch, batch, add_batches=True, priority_exponent=self.exponent
        )

    def init(self, items: PyTree, batch: int) -> PyTree:
        return self._buffer(batch).init(_first(items, 1))

    def add(self, state: PyTree, items: PyTree, batch: int) -> PyTree:
        return self._buffer(batch).add(state, items)

    def sample(self, state: PyTree, key: Array, batch: int) -> Prioritised:
        drawn = self._buffer(batch).sample(state, key)
        # The sums of the tree are rounded, so that once in a while a place is drawn that nothing was put in yet.
        real = drawn.probabilities > 0
        row = jax.numpy.where(real, jax.numpy.arange(batch), real.argmax())
        prioritised = Prioritised(drawn.experience, drawn.probabilities, drawn.indices)
        return jax.tree.map(lambda x: x[row], prioritised)

    def update(self, state: PyTree, sample: Prioritised, priorities: Array, batch: int) -> PyTree:
        # One that is not finite would spoil the sums that all are drawn by: such an item keeps the priority it had.
        had = sample.probability * state.sum_tree_state.nodes[0]
        had = had ** (1 / self.exponent) if self.exponent else jax.numpy.ones_like(had)
        priorities = jax.numpy.where(jax.numpy.isfinite(priorities), priorities, had.astype(priorities.dtype))
        return self._buffer(batch).set_priorities(state, sample.position, priorities)

    def count(self, items: PyTree) -> int:
        return jax.tree.leaves(items)[0].shape[0]

    def room(self, items: PyTree) -> int:
        return self.capacity

    def cost(self, batch: int) -> int:
        return batch


@dataclass(frozen=True)
class SequenceReplay:
    """Keeps the newest `capacity` steps of each column in order, and draws windows of `length` steps.

    Windows begin at multiples of `period`. Items: `[T, B, ...]`; batches: `[length, batch, ...]`.
    """

    capacity: int
    length: int
    period: int = 1

    def _buffer(self, batch: int, columns: int) -> Any:
        from flashbax import make_trajectory_buffer

        return make_trajectory_buffer(
            add_batch_size=columns,
            sample_batch_size=batch,
            sample_sequence_length=self.length,
            period=self.period,
            min_length_time_axis=self.length,
            max_length_time_axis=self.capacity,
        )

    def init(self, items: PyTree, batch: int) -> PyTree:
        columns = jax.tree.leaves(items)[0].shape[1]
        return self._buffer(batch, columns).init(_first(items, 2))

    def add(self, state: PyTree, items: PyTree, batch: int) -> PyTree:
        columns = jax.tree.leaves(items)[0].shape[1]
        return self._buffer(batch, columns).add(state, jax.tree.map(lambda x: x.swapaxes(0, 1), items))

    def sample(self, state: PyTree, key: Array, batch: int) -> PyTree:
        columns = jax.tree.leaves(state.experience)[0].shape[0]
        drawn = self._buffer(batch, columns).sample(state, key).experience
        return jax.tree.map(lambda x: x.swapaxes(0, 1), drawn)

    def count(self, items: PyTree) -> int:
        steps, columns = jax.tree.leaves(items)[0].shape[:2]
        return steps * columns

    def room(self, items: PyTree) -> int:
        return self.capacity * jax.tree.leaves(items)[0].shape[1]

    def cost(self, batch: int) -> int:
        return batch * self.length


def shared_axis(state: PyTree, devices: int) -> int | None:
    """The axis of a replay's arrays, `[columns, steps, ...]`, that devices can divide evenly; None if there is none.

    Single items, `[1, capacity, ...]`, are divided by their place in the ring.
    """
    columns, steps = jax.tree.leaves(state.experience)[0].shape[:2]
    return next((axis for axis, size in enumerate((columns, steps)) if size % devices == 0), None)


Replay = UniformReplay | PrioritisedReplay | SequenceReplay
