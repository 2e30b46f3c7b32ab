"""Streams and bells between processes of one machine, in memory without a name that is passed by descriptor.

The launcher creates them, keeps them and passes their descriptors on; a worker attaches, which closes its descriptors.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from typing import Self

from runnel.transport import bell, memory, ring
from runnel.transport.interface import Transport
from runnel.transport.memory_check import check_room
from runnel.transport.parameter_store import SharedStore
from runnel.transport.parameter_store import size as store_size
from runnel.transport.stream import Schema

__all__ = ["TRANSPORT", "SharedBell", "SharedRing", "check_room", "create", "size"]

_SLEEPING, _BEATS, _STEPS = range(3)  # words of a bell's page, written by its owner
_PAGE_BYTES = 64


def size(schema: Schema, slots: int) -> int:
    """The bytes of shared memory that a ring takes."""
    return ring.SlotLayout(schema, slots).size


class SharedRing(ring.Ring):
    """A ring in shared memory."""

    def __init__(self, fd: int, layout: ring.SlotLayout, new: bool) -> None:
        super().__init__(memory.attach(fd, layout.size), layout, new)
        self._fd = fd

    @classmethod
    def attach(cls, fd: int, schema: Schema, slots: int) -> Self:
        """The ring behind a descriptor received from its creator. Closes the descriptor, since the mapping is
        enough."""
        try:
            attached = cls(fd, ring.SlotLayout(schema, slots), new=False)
        finally:
            os.close(fd)
        attached._fd = -1
        return attached

    def fileno(self) -> int:
        """The descriptor to pass on, if this process created the ring; -1 elsewhere."""
        return self._fd

    def close(self) -> None:
        """Releases descriptor and memory; the memory itself is freed with the last end or array that views it."""
        super().close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def create(schema: Schema, slots: int) -> SharedRing:
    """A new ring in shared memory."""
    layout = ring.SlotLayout(schema, slots)
    fd = memory.create("runnel-stream", layout.size)
    try:
        return SharedRing(fd, layout, new=True)
    except BaseException:
        os.close(fd)
        raise


class SharedBell(bell.Bell):
    """An eventfd to sleep on, and a word that marks whether the owner sleeps: ringing an owner that is awake costs no
    system call.

    Owner and ringer each store one word and then read the other's (`sleeping`, and the new data's count), so both need
    a full fence in between, or each could miss the other.
    """

    def __init__(self, event_fd: int, page_fd: int, spin_s: float) -> None:
        self.spin_s = spin_s
        self._page_fd = page_fd
        self._words = memoryview(memory.attach(page_fd, _PAGE_BYTES)).cast("B").cast("q")
        self._event_fd = event_fd
        self._events = select.poll()
        self._events.register(event_fd, select.POLLIN)
        self._napped = False

    @classmethod
    def create(cls, spin_s: float = bell.SPIN_S) -> Self:
        """A new bell."""
        page_fd = memory.create("runnel-bell", _PAGE_BYTES)
        event_fd = -1
        try:
            event_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return cls(event_fd, page_fd, spin_s)
        except BaseException as error:
            os.close(page_fd)
            if event_fd >= 0:
                os.close(event_fd)
            if isinstance(error, OSError):
                raise memory.refused(error, "a worker's bell") from error
            raise

    @classmethod
    def attach(cls, fds: tuple[int, int], spin_s: float = bell.SPIN_S) -> Self:
        """The bell behind descriptors received from its creator, for its owner or for a peer that rings it."""
        event_fd, page_fd = fds
        try:
            attached = cls(event_fd, page_fd, spin_s)
        except BaseException:
            os.close(event_fd)
            raise
        finally:
            os.close(page_fd)  # the mapping is enough
        attached._page_fd = -1
        return attached

    @property
    def fds(self) -> tuple[int, int]:
        """The descriptors to pass on, if this process created the bell."""
        return self._event_fd, self._page_fd

    def watch(self, fd: int) -> None:
        """Wakes the owner also when `fd` is readable, from now on."""
        self._events.register(fd, select.POLLIN)

    def ring(self) -> None:
        memory.fence()
        if self._words[_SLEEPING]:
            os.eventfd_write(self._event_fd, 1)

    def beat(self) -> None:
        self._words[_BEATS] += 1

    def beats(self) -> int:
        return self._words[_BEATS]

    def beat_at(self, steps: int) -> None:
        self._words[_BEATS] += 1
        self._words[_STEPS] = steps

    def steps(self) -> int:
        return self._words[_STEPS]

    def sleeps(self) -> bool:
        return bool(self._words[_SLEEPING])

    def announce(self) -> None:
        # An old ring is answered by the coming check. It is cleared here, where that delays no peer.
        if self._napped:
            self._napped = False
            with suppress(BlockingIOError):  # woken by something else
                os.eventfd_read(self._event_fd)
        self._words[_SLEEPING] = 1
        memory.fence()

    def nap(self, timeout_s: float) -> bool:
        self._napped = True
        return bool(self._events.poll(max(1.0, timeout_s * 1000)))

    def awake(self) -> None:
        self._words[_SLEEPING] = 0

    def close(self) -> None:
        """Releases the descriptors. Ringing a closed bell does nothing, as its owner is gone too."""
        if self._event_fd >= 0:
            self._words = memoryview(bytearray(_PAGE_BYTES)).cast("q")
            os.close(self._event_fd)
            if self._page_fd >= 0:
                os.close(self._page_fd)
            self._event_fd = self._page_fd = -1


TRANSPORT = Transport(create, SharedRing.attach, size, SharedStore.create, SharedStore.attach, store_size)
"""Streams and parameter stores in shared memory: the default, unless `train(transport=...)` names another."""
