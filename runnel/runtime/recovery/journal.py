"""What it takes to go on with a block of environments, in memory that outlives the worker that plays it. NumPy only.

A journal holds two *entries*, each the block's state between two unrolls: while one is written the other is whole.
Beside them are the actions of the unroll in progress, written as they come, so that a replacement can take the very
steps again that others have already seen the results of; and the actions of the episodes in progress.

Pages are taken when they are first touched: what is reserved and never used costs nothing.
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
"""How much of the episodes in progress a block's journal can hold; what is longer is cut where it must be replayed."""

SMALLEST_BYTES = 16 * 2**10
"""The first room for them."""

_WORDS = 64
# Which entry is the newest, 1 or 2, and 0 before the first; the room that holds the history; 1 + the environment that
# is being stepped, where that is watched; whether what is stepped are episodes that are played again.
_NEWEST, _ROOM, _WATCHED, _REPLAYING = range(4)
_WATCHED_EPISODE, _CONDEMNED = 4, 5  # its episode; how many episodes are not to be played again
_ACTED = 8  # by group: how many steps' actions have come, counted from the run's start
_CONDEMNED_AT, _MOST_CONDEMNED = 32, 10  # of each: row, episode, and whether playing it again is what killed


class BlockMemory:
    """A worker's journals: one descriptor, of which each block takes a part."""

    def __init__(self, fd: int):
        self._fd, self._end = fd, 0

    @classmethod
    def create(cls) -> BlockMemory:
        return cls(os.memfd_create("runnel-journal", os.MFD_CLOEXEC))

    def fileno(self) -> int:
        return self._fd

    def take(self, size: int) -> mmap.mmap:
        """The next part: the same in every process that takes the same sizes in the same order."""
        offset, self._end = self._end, self._end + aligned(size, mmap.ALLOCATIONGRANULARITY)
        if os.fstat(self._fd).st_size < self._end:
            os.ftruncate(self._fd, self._end)
        return mmap.mmap(self._fd, self._end - offset, offset=offset)

    def again(self) -> None:
        """From the first part on."""
        self._end = 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Journal:
    """Of one block. Its rooms are those of a `History`."""

    def __init__(self, memory: BlockMemory, state: Shapes, acted: Shapes, steps: Shapes):
        """`state`: the arrays of an entry; `acted`: those of the unroll in progress; `steps`: by group, what the
        history keeps of one step."""
        self._steps = dict(steps)
        self._smallest = max(SMALLEST_BYTES, aligned(row_bytes(steps) + ALIGNMENT * len(steps)))
        entry = _bytes(state)
        current = 8 * _WORDS + 2 * entry
        self._history = current + _bytes(acted)
        self._buffer = memory.take(self._history + 2 * HISTORY_BYTES)
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
        """An entry; the one before it is kept."""
        number = 2 if self._words[_NEWEST] == 1 else 1
        for name, to in self._entries[number - 1].items():
            to[...] = state[name]
        order()  # whole before it counts
        self._words[_NEWEST] = number

    def take_up(self, handed_over: Callable[[int], bool]) -> Arrays:
        """The entry to go on from: the newest, unless the unroll that led to it was not handed over to everybody.

        That one is then played again. What comes after the entry is forgotten.
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
        """The actions of `step` stand in `acted`."""
        order()
        self._words[self._groups[group]] = step + 1

    def known(self, group: str) -> int:
        """How many steps' actions have come."""
        return self._words[self._groups[group]]

    # Which environment is stepped

    def watch(self, row: int, episode: int = -1) -> None:
        """Environment `row` of the block is about to be stepped, in this episode; -1: none is."""
        self._words[_WATCHED_EPISODE] = episode
        order()
        self._words[_WATCHED] = row + 1

    def watched(self) -> tuple[int, int] | None:
        """Row and episode of the environment that is being stepped, where that is watched."""
        row = self._words[_WATCHED] - 1
        return (row, self._words[_WATCHED_EPISODE]) if row >= 0 else None

    def condemn(self, row: int, episode: int, replaying: bool) -> None:
        """An episode brought its worker down, and is not to be played again; of very many, the first are kept."""
        count = self._words[_CONDEMNED]
        if count < _MOST_CONDEMNED:
            for word, value in enumerate((row, episode, int(replaying)), _CONDEMNED_AT + 3 * count):
                self._words[word] = value
            order()
            self._words[_CONDEMNED] = count + 1

    def condemned(self) -> list[tuple[int, int, bool]]:
        """Row, episode, and whether it was its replay that brought the worker down."""
        at = [_CONDEMNED_AT + 3 * k for k in range(self._words[_CONDEMNED])]
        return [(self._words[word], self._words[word + 1], bool(self._words[word + 2])) for word in at]

    def trust(self) -> None:
        """An unroll is complete: nobody is watched or condemned any more."""
        self._words[_CONDEMNED] = 0
        self.watch(-1)

    @property
    def replaying(self) -> bool:
        """Whether episodes are being played again, to stand where they stood."""
        return bool(self._words[_REPLAYING])

    @replaying.setter
    def replaying(self, now: bool) -> None:
        self._words[_REPLAYING] = int(now)

    # Memory for the episodes in progress

    def room(self, number: int) -> ActionBuffer | None:
        each = row_bytes(self._steps)
        spare = ALIGNMENT * len(self._steps)
        size = self._smallest << number
        if number and size * 2 > HISTORY_BYTES:
            return None
        steps = max(1, (size - spare) // max(1, each))
        first = self._history + size - self._smallest  # all smaller ones are before it
        shapes = {group: ((steps, *shape), dtype) for group, (shape, dtype) in self._steps.items()}
        return ActionBuffer(steps, _at(self._buffer, shapes, aligned(first)))

    def moved(self, number: int) -> None:
        order()
        self._words[_ROOM] = number

    def room_number(self) -> int:
        return self._words[_ROOM]


def _bytes(shapes: Shapes) -> int:
    return sum(aligned(math.prod(shape) * dtype.itemsize) for shape, dtype in shapes.values())


def _at(buffer: mmap.mmap, shapes: Shapes, offset: int) -> Arrays:
    views = {}
    for name, (shape, dtype) in shapes.items():
        views[name] = np.ndarray(shape, dtype, buffer, offset)
        offset += aligned(views[name].nbytes)
    return views
