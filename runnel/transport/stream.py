"""The interface of a stream: messages of a fixed schema, one writer, one reader, bounded.

    slot = writer.claim(iteration, timeout_s=1.0)      message = reader.receive(timeout_s=1.0)
    writer.slots[slot][0][:] = observation             learn(message.header, message.arrays)
    writer.commit(header=(17, 0))                      reader.release(message)

The writer fills a slot in place and the reader reads it there, so nothing is copied on the way. A full stream makes its
writer wait; nothing is ever dropped. Each end belongs to one thread.

A message has a header of two integers beside its arrays. A transport carries the header and does not interpret it: the
workers at the two ends define its meaning (`runtime/workers/stream_headers.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from runnel.transport.bell import Bell

End = Literal["writer", "reader"]


class Field(NamedTuple):
    """One array of a message. JSON-able, so that it can be sent to another process."""

    shape: tuple[int, ...]
    dtype: str  # np.dtype(...).str, as in "<f4"; for bfloat16 and other dtypes of ml_dtypes, the name


Schema = tuple[Field, ...]
"""One message: a list of arrays."""


def schema_of(arrays: Iterable[Any]) -> Schema:
    """The schema of messages like `arrays`, which may be anything with a shape and a dtype."""
    return tuple(Field(tuple(int(n) for n in a.shape), _dtype_name(np.dtype(a.dtype))) for a in arrays)


def _dtype_name(dtype: np.dtype) -> str:
    added = dtype.isbuiltin == 2  # by another library: its `str` has only the number of bytes
    return dtype.name if added else dtype.str


def dtype_of(field: Field) -> np.dtype:
    """The dtype of an array, refused where it holds Python objects."""
    _, name = field
    try:
        dtype = np.dtype(name)
    except TypeError:
        import ml_dtypes  # JAX's small floats, which NumPy knows from then on

        dtype = np.dtype(getattr(ml_dtypes, name))
    if dtype.hasobject:
        raise ValueError(f"an array of dtype {name} holds Python objects; only plain numbers and bytes can travel")
    return dtype


def fingerprint(schema: Schema) -> int:
    """A hash of a schema: equal for equal schemas, and almost never for others."""
    return zlib.crc32(repr([(tuple(shape), dtype) for shape, dtype in schema]).encode())


Header = tuple[int, int]
"""Two integers of 64 bits that a message carries beside its arrays."""

NO_HEADER: Header = (0, 0)


class Message(NamedTuple):
    """A received message. `arrays` are views of the slot, valid until it is released."""

    sequence: int  # 0, 1, 2 ... in the order of commits
    iteration: int  # announced when the slot was claimed
    header: Header
    slot: int
    arrays: list[np.ndarray]  # each begins at a multiple of 64 bytes


class Closed(Exception):
    """The other end has closed or is lost, and nothing is left to receive."""

    def __init__(self, text: str, lost: bool = False) -> None:
        super().__init__(text)
        self.lost = lost  # it died and may be replaced, against: it said goodbye


class Stream(Protocol):
    """A stream, on the host that created it or in a worker that attached to it."""

    schema: Schema
    capacity: int

    def writer(self, own_bell: Bell, reader_bell: Bell) -> Writer:
        """The writing end. The reader rings `own_bell` when a slot becomes free; the writer rings `reader_bell`."""
        ...

    def reader(self, own_bell: Bell, writer_bell: Bell) -> Reader:
        """The reading end. The writer rings `own_bell` when a message arrives; the reader rings `writer_bell`."""
        ...

    def fileno(self) -> int:
        """The descriptor to pass to workers, if this process created the stream; -1 elsewhere."""
        ...

    def committed(self) -> int:
        """The number of messages ever committed."""
        ...

    def pending(self) -> int:
        """The number of messages that wait to be received."""
        ...

    def lost(self, end: End) -> None:
        """Records that the worker at `end` has died. The other end's waits raise Closed, once its bell is rung."""
        ...

    def reset_end(self, end: End) -> None:
        """Prepares `end`, whose worker is gone, for a replacement.

        A new writer starts without the claim of the dead one. A new reader receives again, in order, the messages that
        the dead one had received and not released.
        """
        ...

    def clear(self) -> None:
        """Resets the stream. There must be no worker at either end."""
        ...

    def close(self) -> None:
        """Frees this process's resources. May be called twice."""
        ...


class Writer(Protocol):
    """The end that writes messages."""

    slots: list[list[np.ndarray]]
    """The arrays of every slot, so that views of their rows can be prepared once."""

    def claim(self, iteration: int, timeout_s: float) -> int | None:
        """The index of a free slot to fill in place, with `iteration` announced as begun; None if none became free in
        time. Raises Closed if the reader closed or is lost. Claiming again before the commit returns the same slot."""
        ...

    def free(self) -> bool:
        """Whether `claim` would return at once, with a slot or with Closed."""
        ...

    def commit(self, header: Header = NO_HEADER) -> None:
        """Hands the claimed slot to the reader and rings its bell."""
        ...

    def last_header(self) -> Header | None:
        """The header of the message committed last, by this writer or one it replaces; None before the first."""
        ...

    def close(self) -> None:
        """Ends the stream. Committed messages can still be received; a claimed slot is dropped."""
        ...


class Reader(Protocol):
    """The end that reads messages."""

    def receive(self, timeout_s: float) -> Message | None:
        """The oldest unread message; None if none arrived in time. Raises Closed if the writer closed or is lost and
        everything it committed was received."""
        ...

    def peek(self) -> bool:
        """Whether `receive` would return at once, with a message or with Closed."""
        ...

    def release(self, message: Message) -> None:
        """Releases the slot to be filled again. Messages may be held, and released in any order."""
        ...

    def begun(self) -> int | None:
        """The iteration of a claim not yet committed, if there is one. A commit counts the message before it ends the
        claim, so call `begun` first and `pending` second: then no message is missed."""
        ...

    def pending(self) -> int:
        """The number of messages that are committed and not yet received."""
        ...

    def close(self) -> None:
        """Stops receiving. The writer's next claim raises Closed."""
        ...
