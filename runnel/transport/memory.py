"""Arrays and counters laid out in plain memory, and what may be relied on when two processes share it.

Counters are 8-byte words, each written by one side only. Relied on:
- A store or load of one element of `memoryview.cast("q")` at an 8-byte boundary is one machine access (CPython copies
  8 bytes with a fixed-size memcpy, which compilers turn into one move), so that a word is never seen half-written.
- A copy of arrays is finished, for other processors too, in the order of the program: the C library ends a copy that
  goes past the caches with the fence this takes.
- Processors may reorder accesses to different words. x86 keeps the order of stores, of loads, and of a load before a
  store, and only lets a later load overtake an earlier store; aarch64 lets anything overtake. `order()` forbids all
  but the last, `fence()` all of it. Nothing else is assumed of two words: what was read before an `order()` is no
  newer than what is read after it.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import platform
from _thread import allocate_lock
from collections.abc import Sequence
from typing import Any

import numpy as np

from runnel.errors import OutOfDescriptors, UserError
from runnel.transport.stream import Schema, dtype_of

ALIGNMENT = 64
"""The alignment of arrays: a cache line, and what XLA on the CPU needs to use an array in place."""

LINE_WORDS = 16
"""Words apart at which two sides write without disturbing each other: 128 bytes, for lines are fetched in pairs."""


def fence() -> None:
    """No access to memory after this is done before all those ahead of it are.

    Python has no fence, but its locks are made of atomic operations. Giving back a lock is a store with release
    semantics, taking it one with acquire semantics; the second stays behind the first, accesses ahead stay ahead of
    the first, later ones behind the second. The lock is new each time: no other thread or signal handler can hold it.
    """
    lock = allocate_lock()
    lock.acquire()
    lock.release()
    lock.acquire()


def _in_order_anyway() -> None:
    """x86 needs no help here, and the C library's calls in between keep compilers from it."""


order = _in_order_anyway if platform.machine() in ("x86_64", "AMD64") else fence
"""Stores and loads ahead stay ahead, except that a load may still overtake an earlier store to another word."""


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """`size`, rounded up."""
    return -(-size // to) * to


def arrays_bytes(schema: Schema) -> int:
    """The bytes of the arrays of one message."""
    return sum(aligned(math.prod(field[0]) * dtype_of(field).itemsize) for field in schema)


def arrays_at(buffer: Any, schema: Schema, offset: int) -> list[np.ndarray]:
    """Views of one message's arrays, the first at `offset`. They keep the memory mapped while any of them lives."""
    views = []
    for field in schema:
        view = np.ndarray(tuple(field[0]), dtype_of(field), buffer, offset)
        views.append(view)
        offset += aligned(view.nbytes)
    return views


def bytes_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The memory of one message, given its arrays as `arrays_at` made them."""
    first, last = arrays[0], arrays[-1]
    size = last.ctypes.data + last.nbytes - first.ctypes.data
    return np.lib.stride_tricks.as_strided(first.reshape(-1).view(np.uint8), (size,), (1,))


def zeros(size: int) -> np.ndarray:
    """`size` bytes of this process's memory, aligned for arrays."""
    memory = np.zeros(size + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + size]


def create(name: str, size: int) -> int:
    """A new descriptor of `size` bytes of shared memory, all zero, sealed against shrinking and growing.

    It has no name in any directory: the kernel frees it when the last process that has it ends, for whatever reason.
    Pages are taken when first touched; `memory_check.check_room` checks beforehand that there will be enough.
    """
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise refused(error, "a piece of shared memory") from error
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        raise refused(error, f"{size:,} bytes of shared memory") from error
    return fd


def refused(error: OSError, wanted: str) -> UserError:
    """The error for the user when the system provides no descriptor or memory."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return OutOfDescriptors(
            f"no file descriptor is left for {wanted}; raise the limit (ulimit -n) or use fewer workers",
            page="command-line#doctor",
        )
    return UserError(
        f"the system refused {wanted} ({os.strerror(error.errno or 0)}); use fewer or smaller streams",
        page="troubleshooting#out-of-memory",
    )


def attach(fd: int, size: int) -> mmap.mmap:
    """The memory behind `fd`. It stays mapped until the last view of it is gone, and is never unmapped by hand."""
    found = os.fstat(fd).st_size
    if found != size:
        raise ValueError(
            f"the shared memory has {found} bytes where this schema takes {size}: both sides need the same"
        )
    try:
        return mmap.mmap(fd, size)
    except OSError as error:
        raise refused(error, f"a mapping of {size:,} bytes") from error
