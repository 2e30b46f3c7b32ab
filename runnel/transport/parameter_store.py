"""The parameter store: versioned parameters with one writer and many readers, which read the newest.

The writer never waits and readers never see a mixture: there are three buffers, filled in turn. A reader that copies
the newest has as long as two more publications take; if it was slower, it detects that and copies again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from runnel.transport import memory
from runnel.transport.bell import Bell
from runnel.transport.memory import ALIGNMENT, LINE_WORDS, arrays_at, arrays_bytes, order
from runnel.transport.stream import Schema, dtype_of, fingerprint

BUFFERS = 3

READ_LIMIT_S = 10.0
"""The seconds for which a read retries before it fails. One try is nearly always enough."""

# Words at the head of the store: written once by its creator, and by the writer.
_MAGIC, _SCHEMA = range(2)
_NEWEST = LINE_WORDS  # number of the newest complete publication: 1, 2, 3 ...; 0 before the first
_FIRST = 2 * LINE_WORDS

# Words at the head of a buffer: the publication that began to fill it, and what it is.
_BEGUN, _VERSION, _ITERATION = range(3)

_MAGIC_VALUE = 0x72756E6E656C0002


class Parameters(NamedTuple):
    """One publication. The arrays are the reader's to keep and not to change: they are read-only."""

    version: int
    iteration: int
    arrays: list[np.ndarray]


class StoreWriter(Protocol):
    """The end that publishes."""

    def publish(self, arrays: Sequence[Any], version: int, iteration: int) -> None:
        """Makes `arrays` the newest parameters and rings the readers' bells. Never waits."""
        ...


class StoreReader(Protocol):
    """An end that reads. `version` and `iteration` are cheap enough to poll."""

    def version(self) -> int:
        """The version of the newest parameters; -1 before the first."""
        ...

    def iteration(self) -> int:
        """The iteration of the newest parameters; -1 before the first."""
        ...

    def read(self) -> Parameters:
        """The newest parameters, whole. ValueError before the first."""
        ...


class ParameterStore(Protocol):
    """A store, on the host that created it or in a worker that attached to it."""

    schema: Schema

    def writer(self, bells: Sequence[Bell] = ()) -> StoreWriter:
        """The end that publishes and rings `bells`, those of the readers. It continues where an earlier one ended."""
        ...

    def reader(self) -> StoreReader:
        """An end that reads."""
        ...

    def fileno(self) -> int:
        """The descriptor to pass to workers, if this process created the store; -1 elsewhere."""
        ...

    def clear(self) -> None:
        """Clears the store. Existing ends must not be used afterwards."""
        ...

    def close(self) -> None:
        """Frees this process's resources. May be called twice."""
        ...


def checked(arrays: Sequence[Any], schema: Schema) -> list[np.ndarray]:
    """`arrays` in this process's memory, refused if they do not fit the schema."""
    found = [np.asarray(a) for a in arrays]
    wanted = [(tuple(field[0]), dtype_of(field)) for field in schema]
    if [(a.shape, a.dtype) for a in found] != wanted:
        raise ValueError(f"the store takes {wanted}; found {[(a.shape, a.dtype) for a in found]}")
    return found


def kept(array: np.ndarray) -> np.ndarray:
    """A read-only copy."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def size(schema: Schema) -> int:
    """The bytes of shared memory that a store takes."""
    return 8 * _FIRST + BUFFERS * (ALIGNMENT + arrays_bytes(schema))


class SharedStore:
    """A parameter store in shared memory. The launcher creates it and passes its descriptor on."""

    def __init__(self, fd: int, schema: Schema, new: bool) -> None:
        self.schema = schema
        self.buffer = memory.attach(fd, size(schema))
        self.words = memoryview(self.buffer).cast("B").cast("q")
        wanted = (_MAGIC_VALUE, fingerprint(schema))
        if new:
            self.words[_MAGIC], self.words[_SCHEMA] = wanted
        elif (found := (self.words[_MAGIC], self.words[_SCHEMA])) != wanted:
            raise ValueError(f"this memory is not a store of this schema; its head is {found} in place of {wanted}")
        self._fd = fd

    @classmethod
    def create(cls, schema: Schema) -> Self:
        """A new, empty store."""
        fd = memory.create("runnel-store", size(schema))
        try:
            return cls(fd, schema, new=True)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, schema: Schema) -> Self:
        """The store behind a descriptor received from its creator. Closes the descriptor, since the mapping is
        enough."""
        try:
            attached = cls(fd, schema, new=False)
        finally:
            os.close(fd)
        attached._fd = -1
        return attached

    def fileno(self) -> int:
        """The descriptor to pass on, if this process created the store; -1 elsewhere."""
        return self._fd

    def writer(self, bells: Sequence[Bell] = ()) -> SharedWriter:
        """The end that publishes; `bells` are those of the readers. It continues after an earlier writer's last
        version."""
        return SharedWriter(self.buffer, self.words, self.schema, bells)

    def reader(self) -> SharedReader:
        """An end that reads."""
        return SharedReader(self.buffer, self.words, self.schema)

    def clear(self) -> None:
        """Clears the store. Existing ends are invalid afterwards."""
        self.words[_NEWEST] = 0

    def close(self) -> None:
        """Releases descriptor and memory; the memory itself is freed with the last end that views it."""
        self.buffer = bytearray()
        self.words = memoryview(self.buffer).cast("q")
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _buffers(buffer: Any, schema: Schema) -> tuple[list[int], list[list[np.ndarray]]]:
    """For each buffer, the index of its first header word and its arrays."""
    each = ALIGNMENT + arrays_bytes(schema)
    firsts = [8 * _FIRST + i * each for i in range(BUFFERS)]
    return [first // 8 for first in firsts], [arrays_at(buffer, schema, first + ALIGNMENT) for first in firsts]


class SharedWriter:
    """The publishing end of a store in shared memory: a `StoreWriter`."""

    def __init__(self, buffer: Any, words: memoryview[int], schema: Schema, bells: Sequence[Bell]) -> None:
        self.words = words
        self._schema = schema
        self._headers, self._arrays = _buffers(buffer, schema)
        self._bells = tuple(bells)

    def publish(self, arrays: Sequence[Any], version: int, iteration: int) -> None:
        found = checked(arrays, self._schema)
        words = self.words
        # A writer killed before the last line left the newest as it was, and its successor fills the same buffer again.
        number = words[_NEWEST] + 1
        header = self._headers[number % BUFFERS]
        words[header + _BEGUN] = number
        order()  # a reader of the old contents can see this before the first of them changes
        words[header + _VERSION] = version
        words[header + _ITERATION] = iteration
        for target, array in zip(self._arrays[number % BUFFERS], found, strict=True):
            target[...] = array
        order()  # everything is there before it is the newest
        words[_NEWEST] = number
        for bell in self._bells:
            bell.ring()


class SharedReader:
    """A reading end of a store in shared memory: a `StoreReader`."""

    def __init__(self, buffer: Any, words: memoryview[int], schema: Schema) -> None:
        self.words = words
        self._headers, self._arrays = _buffers(buffer, schema)
        self._seen = (0, -1, -1)  # number, version and iteration as last looked up

    def number(self) -> int:
        """The number of publications."""
        return self.words[_NEWEST]

    def version(self) -> int:
        return self._look()[1]

    def iteration(self) -> int:
        return self._look()[2]

    def _look(self) -> tuple[int, int, int]:
        if self.words[_NEWEST] != self._seen[0]:
            self._seen = self._whole(copy=False)[0]
        return self._seen

    def read(self) -> Parameters:
        if not self.words[_NEWEST]:
            raise ValueError("nothing was published yet: wait until iteration() is 0 or more")
        self._seen, arrays = self._whole(copy=True)
        return Parameters(self._seen[1], self._seen[2], arrays)

    def _whole(self, copy: bool) -> tuple[tuple[int, int, int], list[np.ndarray]]:
        """The newest publication, read again until it did not change meanwhile."""
        words, end = self.words, monotonic() + READ_LIMIT_S
        while True:
            number = words[_NEWEST]
            order()
            header = self._headers[number % BUFFERS]
            seen = (number, words[header + _VERSION], words[header + _ITERATION])
            arrays = [kept(a) for a in self._arrays[number % BUFFERS]] if copy else []
            order()
            if words[header + _BEGUN] == number:
                return seen, arrays
            if monotonic() > end:
                raise TimeoutError(f"the parameters changed under every read for {READ_LIMIT_S:.0f} s")
            sleep(0)  # the writer is far faster than we: a new time slice is likely to be a longer one
