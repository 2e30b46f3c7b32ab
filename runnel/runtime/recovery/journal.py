"""The state of a block of environments, in memory that outlives the worker that steps it. NumPy only.

A journal holds two *entries*, each the block's state between two unrolls: while one is written the other is whole.
Beside them are the actions of the unroll in progress, written as they arrive, so that a replacement can repeat the
steps whose results other workers have already seen; and the actions of the episodes in progress.

The kernel allocates a page when it is first touched: memory that is reserved and never used costs nothing.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Mapping

import numpy as np

from runnel.errors import StateLost
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery.action_history import ActionBuffer, RowSpec, row_bytes
from runnel.transport.memory import ALIGNMENT, aligned, order

Arrays = dict[str, np.ndarray]
Shapes = Mapping[str, RowSpec]

HISTORY_BYTES = 64 * 2**20
"""The bytes of the episodes in progress that a block's journal holds. A longer episode is truncated when it must be
replayed."""

SMALLEST_BYTES = 16 * 2**10
"""The size of the first buffer for them."""

_WORDS = 64
# Which entry is the newest, 1 or 2, and 0 before the first; the buffer that holds the history; 1 + the environment that
# is being stepped, if that is watched; whether episodes are being replayed.
_NEWEST, _BUFFER, _WATCHED, _REPLAYING = range(4)
_WATCHED_EPISODE, _CONDEMNED = 4, 5  # its episode; how many episodes must not be replayed
_ACTED = 8  # by group: how many steps' actions have arrived, counted from the run's start
_CONDEMNED_AT, _MOST_CONDEMNED = 32, 10  # of each: row, episode, and whether its replay killed the worker


class BlockMemory:
    """The memory of a worker's journals: one descriptor, of which each block allocates a part."""

    def __init__(self, fd: int):
        self._fd, self._end = fd, 0

    @classmethod
    def create(cls) -> BlockMemory:
        return cls(os.memfd_create("runnel-journal", os.MFD_CLOEXEC))

    def fileno(self) -> int:
        return self._fd

    def allocate(self, size: int) -> mmap.mmap:
        """The next part: the same in every process that allocates the same sizes in the same order."""
        offset, self._end = self._end, self._end + aligned(size, mmap.ALLOCATIONGRANULARITY)
        if os.fstat(self._fd).st_size < self._end:
            os.ftruncate(self._fd, self._end)
        return mmap.mmap(self._fd, self._end - offset, offset=offset)

    def rewind(self) -> None:
        """Allocates from the first part on."""
        self._end = 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Journal:
    """The journal of one block. It allocates the buffers of the block's `ActionHistory`."""

    def __init__(self, memory: BlockMemory, state: Shapes, acted: Shapes, steps: Shapes):
        """Shapes: `state` of an entry, `acted` of the unroll in progress, `steps` of one step in the history."""
        self._steps = dict(steps)
        self._smallest = max(SMALLEST_BYTES, aligned(row_bytes(steps) + ALIGNMENT * len(steps)))
        entry = _bytes(state)
        current = 8 * _WORDS + 2 * entry
        self._history = current + _bytes(acted)
        self._buffer = memory.allocate(self._history + 2 * HISTORY_BYTES)
        self._words = memoryview(self._buffer).cast("B").cast("q")
        self._entries = [_at(self._buffer, state, 8 * _WORDS + k * entry) for k in range(2)]
        self.acted = _at(self._buffer, acted, current)
        self._groups = {group: _ACTED + i for i, group in enumerate(acted)}

    # Entries

    def clear(self) -> None:
        """Forgets everything."""
        for word in range(_WORDS):
            self._words[word] = 0

    def write(self, state: Mapping[str, np.ndarray]) -> None:
        """Writes an entry; the one before it is kept."""
        number = 2 if self._words[_NEWEST] == 1 else 1
        for name, to in self._entries[number - 1].items():
            to[...] = state[name]
        order()  # whole before it counts
        self._words[_NEWEST] = number

    def resume_entry(self, handed_over: Callable[[int], bool]) -> Arrays:
        """The entry to resume from: the newest, unless a receiver lacks the unroll before it.

        Such an unroll is repeated, from the entry before it. Everything after the returned entry is dropped.
        """
        newest = self._words[_NEWEST]
        if not newest:
            raise StateLost("the journal has no entry: the worker before this one ended before its first unroll")
        last, before = self._entries[newest - 1], self._entries[2 - newest]
        unroll = int(last[names.UNROLLS]) - 1
        if int(before[names.UNROLLS]) == unroll and not handed_over(unroll):
            self._words[_NEWEST] = 3 - newest
            last = before
        return {name: array.copy() for name, array in last.items()}

    # The unroll in progress

    def note(self, group: str, step: int) -> None:
        """Records that the actions of `step` are in `acted`."""
        order()
        self._words[self._groups[group]] = step + 1

    def known(self, group: str) -> int:
        """The number of steps whose actions have arrived."""
        return self._words[self._groups[group]]

    # Which environment is being stepped

    def watch(self, row: int, episode: int = -1) -> None:
        """Records that environment `row` of the block is about to be stepped, in this episode; -1: none is."""
        self._words[_WATCHED_EPISODE] = episode
        order()
        self._words[_WATCHED] = row + 1

    def watched(self) -> tuple[int, int] | None:
        """Row and episode of the environment that is being stepped, if that is watched."""
        row = self._words[_WATCHED] - 1
        return (row, self._words[_WATCHED_EPISODE]) if row >= 0 else None

    def condemn(self, row: int, episode: int, replaying: bool) -> None:
        """Marks an episode that crashed its worker: it must not be replayed. Only the first of very many are kept."""
        count = self._words[_CONDEMNED]
        if count < _MOST_CONDEMNED:
            for word, value in enumerate((row, episode, int(replaying)), _CONDEMNED_AT + 3 * count):
                self._words[word] = value
            order()
            self._words[_CONDEMNED] = count + 1

    def condemned(self) -> list[tuple[int, int, bool]]:
        """Row, episode, and whether the worker crashed while it replayed the episode."""
        at = [_CONDEMNED_AT + 3 * k for k in range(self._words[_CONDEMNED])]
        return [(self._words[word], self._words[word + 1], bool(self._words[word + 2])) for word in at]

    def trust(self) -> None:
        """Records that an unroll is complete: no environment is watched or condemned any longer."""
        self._words[_CONDEMNED] = 0
        self.watch(-1)

    @property
    def replaying(self) -> bool:
        """Whether episodes are being replayed, to rebuild their state."""
        return bool(self._words[_REPLAYING])

    @replaying.setter
    def replaying(self, now: bool) -> None:
        self._words[_REPLAYING] = int(now)

    # Memory for the episodes in progress

    def buffer(self, number: int) -> ActionBuffer | None:
        each = row_bytes(self._steps)
        spare = ALIGNMENT * len(self._steps)
        size = self._smallest << number
        if number and size * 2 > HISTORY_BYTES:
            return None
        steps = max(1, (size - spare) // max(1, each))
        first = self._history + size - self._smallest  # all smaller ones are before it
        shapes = {group: ((steps, *shape), dtype) for group, (shape, dtype) in self._steps.items()}
        return ActionBuffer(steps, _at(self._buffer, shapes, aligned(first)))

    def moved_to(self, number: int) -> None:
        order()
        self._words[_BUFFER] = number

    def buffer_number(self) -> int:
        return self._words[_BUFFER]


def _bytes(shapes: Shapes) -> int:
    return sum(aligned(math.prod(shape) * dtype.itemsize) for shape, dtype in shapes.values())


def _at(buffer: mmap.mmap, shapes: Shapes, offset: int) -> Arrays:
    views = {}
    for name, (shape, dtype) in shapes.items():
        views[name] = np.ndarray(shape, dtype, buffer, offset)
        offset += aligned(views[name].nbytes)
    return views
