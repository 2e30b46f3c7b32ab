"""Every transport as the conformance tests use it, and a stream with both ends in one place.

`pytest tests/transport --transport package.module:NAME` runs the tests against one from outside the package instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from tcp_hosts import Ring as TcpRing
from tcp_hosts import Store as TcpStore
from transport_peers import PLAIN, Peer, check, send

from runnel.transport import in_process, interface, ring, shared_memory
from runnel.transport.stream import Message, Schema


@dataclass(frozen=True)
class TransportCase:
    """How the tests make streams, bells and stores of one kind."""

    create: Callable[[Schema, int], Any]  # a stream, or what is used like one
    bell: Callable[..., Any]
    store: Callable[[Schema], Any]
    path: str | None  # where other processes find what attaches to its streams; None where they cannot
    shares_memory: bool = True  # whether what is read is the slot that was written


CASES = {
    "in process": TransportCase(in_process.create, in_process.InProcessBell, in_process.InProcessStore, None),
    "shared memory": TransportCase(
        shared_memory.create,
        shared_memory.SharedBell.create,
        shared_memory.TRANSPORT.create_store,
        interface.SHARED_MEMORY,
    ),
    "tcp": TransportCase(TcpRing, shared_memory.SharedBell.create, TcpStore, interface.SHARED_MEMORY, False),
}


STEPS = st.lists(st.sampled_from(["send", "send", "receive", "release"]), max_size=60)
"""Whatever two ends may do, in any order."""


def add_case(path: str) -> str:
    """Registers a transport by its import path, and returns its name."""
    found = interface.load(path)
    CASES[path] = TransportCase(found.create_stream, shared_memory.SharedBell.create, found.create_store, path)
    return path


class OpenStream:
    """A stream with both ends here."""

    def __init__(self, transport: TransportCase, schema: Schema = PLAIN, slots: int = 3) -> None:
        self.transport = transport
        self.ring = transport.create(schema, slots)
        self.writer_bell, self.reader_bell = transport.bell(), transport.bell()
        self.writer, self.reader = self.new_writer(), self.new_reader()

    def new_writer(self) -> ring.RingWriter:
        return self.ring.writer(self.writer_bell, self.reader_bell)

    def new_reader(self) -> ring.RingReader:
        return self.ring.reader(self.reader_bell, self.writer_bell)

    def close(self) -> None:
        for end in (self.writer, self.reader, self.ring):
            end.close()
        for one in (self.writer_bell, self.reader_bell):
            if isinstance(one, shared_memory.SharedBell):
                one.close()


def peer(between: OpenStream, role: str, **job: Any) -> Peer:
    """Another process at one end of `between`."""
    reads, made = role in ("consume", "read_and_die"), between.ring
    own, other = between.writer_bell.fds, between.reader_bell.fds
    if reads:
        own, other = other, own
    if isinstance(made, TcpRing):  # its peer is the courier of its host
        other = (made.hosts.second if reads else made.hosts.first).bell.fds
        made = made.far if reads else made.near
    fd = made.fileno()
    job |= {"role": role, "rings": [fd], "bells": [own, other], "schema": PLAIN, "slots": made.capacity}
    return Peer(job | {"transport": between.transport.path}, (fd, *own, *other))


def words_of(end: Any) -> Any:
    """The counters of an end that is made of a ring; tests that hook into them skip other ends."""
    if not hasattr(end, "words"):
        pytest.skip("this transport is not made of rings")
    return end.words


def goes_on(stream: OpenStream, received: int, held: list[Message], sent: int) -> None:
    """The stream works with all its slots: what was sent comes, and so does what is sent now."""
    while received < sent:
        held.append(check(stream.reader.receive(0), received))
        received += 1
    for message in held:
        check(message, message.sequence)
        stream.reader.release(message)
    for n in range(sent, sent + stream.ring.capacity):
        assert send(stream.writer, n, 0)
    assert not stream.writer.free()
    for n in range(sent, sent + stream.ring.capacity):
        stream.reader.release(check(stream.reader.receive(0), n))
    assert stream.reader.receive(0) is None
