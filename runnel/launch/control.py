"""Messages between a worker and the process that started it: JSON objects, descriptors and arrays.

The two ends are a pair of Unix sockets that preserve message boundaries. A message that is too large for a socket's
buffer is written to a memfd, whose descriptor is sent instead. Nothing that arrives is ever executed: JSON is parsed,
and arrays are raw bytes with a dtype and a shape. Standard library only (NumPy where arrays are sent): every
worker imports this.

A message is one or more packets. Each begins with a header: `F` packets bring descriptors that belong to the
message that follows; one of `J` (the JSON follows the header) or `M` (it is in a memfd, with the bytes
of arrays behind it) ends the message.
"""

from __future__ import annotations

import array
import errno
import os
import resource
import select
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from runnel.errors import OutOfDescriptors
from runnel.launch.framing import ALIGNMENT, MalformedMessage, Received, decode, describe, encode, memfd

if TYPE_CHECKING:
    import numpy as np

INLINE_BYTES = 32 * 1024
"""Longer JSON goes through a memfd: a socket's buffer is some 200 kB, and is shared by all messages in it."""

FDS_PER_PACKET = 250
"""The kernel takes at most 253."""

SEND_S = 30.0
"""How long a sender waits by default for a receiver that does not read."""

_HEADER = struct.Struct("<4scxxxIQ")  # magic, kind, descriptors of the message so far, bytes of JSON
_MAGIC = b"rnl1"


class Control:
    """One end. Any thread may send; one thread receives.

    A loop that serves it until the other end is gone:

        while not control.closed:
            message = control.receive(timeout_s=1.0)
            if message is not None:
                ...
    """

    def __init__(self, end: socket.socket):
        end.setblocking(False)
        self._socket = end
        self._sending = threading.Lock()
        self.closed = False
        """The other end is gone (or this one was closed) and everything it sent has been received."""

    @classmethod
    def pair(cls) -> tuple[Control, Control]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def attach(cls, fd: int) -> Control:
        """The end that has this descriptor, which is the control's from now on."""
        return cls(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fd))

    def fileno(self) -> int:
        """For select and poll: readable when there is a message or the other end is gone."""
        return self._socket.fileno()

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def send(self, value: Mapping[str, Any], fds: Sequence[int] = (), timeout_s: float = SEND_S) -> None:
        """Sends a JSON object and copies of descriptors.

        Raises BrokenPipeError where the other end is gone, and TimeoutError where it does not read.
        """
        text = encode(value)
        if len(text) <= INLINE_BYTES:
            self._send(b"J", text, len(text), list(fds), timeout_s)
            return
        with memfd([text]) as body:
            self._send(b"M", b"", len(text), [*fds, body], timeout_s)

    def send_arrays(
        self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], timeout_s: float = SEND_S
    ) -> None:
        """Sends a JSON object with named arrays, which the receiver finds in `Received.arrays`."""
        entries, parts = describe(arrays)
        text = encode({"header": header, "arrays": entries})
        text += b" " * (-len(text) % ALIGNMENT)
        with memfd([text, *parts]) as body:
            self._send(b"A", b"", len(text), [body], timeout_s)

    def receive(self, timeout_s: float = 0.0) -> Received | None:
        """The next message; None where none arrives in time, and at once where the other end is gone (`closed`)."""
        deadline = time.monotonic() + timeout_s
        fds: list[int] = []
        try:
            while True:
                packet = self._packet(deadline, fds)
                if packet is None:
                    return None
                kind, length, body = packet
                if kind == b"F":
                    # The sender is in the middle of a message; its rest follows at once or never.
                    deadline = time.monotonic() + SEND_S
                    continue
                received = decode(kind, length, body, fds)
                fds = []
                return received
        finally:
            for fd in fds:
                os.close(fd)

    def _packet(self, deadline: float, fds: list[int]) -> tuple[bytes, int, bytes] | None:
        """One packet: its kind, the length of the JSON, and what follows the header; adds to `fds`."""
        while not self.closed:
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    _HEADER.size + INLINE_BYTES, socket.CMSG_SPACE(FDS_PER_PACKET * 4), socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                if not _ready(self._socket, select.POLLIN, deadline):
                    return None
                continue
            except ConnectionResetError:
                continue  # raised once if the other end closed with data unread; what it sent can still be received
            for level, kind, content in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.extend(array.array("i", content[: len(content) // 4 * 4]))
            if flags & socket.MSG_CTRUNC:
                raise too_many_descriptors("no room for a descriptor that another process sent")
            if not data:
                self.closed = True
                return None
            if len(data) < _HEADER.size or flags & socket.MSG_TRUNC:
                raise MalformedMessage(f"found a packet of {len(data)} bytes, expected one with a header")
            magic, kind, count, length = _HEADER.unpack_from(data)
            if magic != _MAGIC or kind not in (b"F", b"J", b"M", b"A"):
                raise MalformedMessage(f"found a packet that begins with {data[:8]!r}")
            if count != len(fds):
                raise MalformedMessage(f"found {len(fds)} descriptors, expected the {count} that the message names")
            return kind, length, data[_HEADER.size :]
        return None

    def _send(self, kind: bytes, body: bytes, length: int, fds: list[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._sending:
            sent = 0
            try:
                while len(fds) - sent > FDS_PER_PACKET:
                    part = fds[sent : sent + FDS_PER_PACKET]
                    self._transmit(_HEADER.pack(_MAGIC, b"F", sent + len(part), 0), part, deadline)
                    sent += len(part)
                self._transmit(_HEADER.pack(_MAGIC, kind, len(fds), length) + body, fds[sent:], deadline)
            except TimeoutError:
                if sent:  # half a message is in the socket: nothing that follows could be understood
                    self.close()
                raise

    def _transmit(self, data: bytes, fds: list[int], deadline: float) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while True:
            if self._socket.fileno() < 0:
                raise BrokenPipeError("this control is closed")
            try:
                self._socket.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                waited = _ready(self._socket, select.POLLOUT, deadline)
            except ConnectionResetError as error:
                raise BrokenPipeError("the other end of the control is gone") from error
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                # The kernel bounds the descriptors that are on their way: some must be received first.
                time.sleep(0.005)
                waited = time.monotonic() < deadline
            if not waited:
                raise TimeoutError("the other end of the control does not read what it is sent")


def too_many_descriptors(what: str) -> OutOfDescriptors:
    """The error of a process that has reached its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OutOfDescriptors(
        f"found {what}: this process may open {soft} files; use fewer workers, or raise the limit with "
        f"`ulimit -n` (up to {'any number' if hard == resource.RLIM_INFINITY else hard})"
    )


def _ready(end: socket.socket, event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(end, event)
    left_s = deadline - time.monotonic()
    return bool(poll.poll(max(0.0, left_s) * 1000))
