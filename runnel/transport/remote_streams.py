"""Both sides of streams and parameter stores that a courier carries, with an end on another host.

A message keeps its slot where it was written until the far reader has released its copy, so a stream between hosts is
as bounded as one within a host. The copy has the number of the original, and no message is received twice.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from runnel.transport import wire
from runnel.transport.bell import Bell
from runnel.transport.compression import Compressor, unpack
from runnel.transport.link import PeerLink
from runnel.transport.parameter_store import SharedStore
from runnel.transport.ring import Ring
from runnel.transport.stream import Message, Schema, dtype_of, fingerprint
from runnel.transport.wire import Malformed


class Sends(NamedTuple):
    """A stream that is written here and read at `to`; `bell` is the writer's.

    `begins`: whether its reader needs to know the writer's claims.
    """

    id: int
    kind: str
    ring: Ring
    to: str
    bell: Bell
    begins: bool = True


class Takes(NamedTuple):
    """A stream that is written at `source` and read here; `bell` is the reader's.

    `bounds`: the stores whose newest iteration at `source` is a lower bound for the one that its writer begins with.
    """

    id: int
    kind: str
    ring: Ring
    source: str
    bell: Bell
    bounds: tuple[int, ...] = ()


class Publishes(NamedTuple):
    """A store that is published here and mirrored at `to`."""

    id: int
    store: SharedStore
    to: tuple[str, ...]


class Mirrors(NamedTuple):
    """A store that is published at `source` and read here by the owners of `bells`."""

    id: int
    store: SharedStore
    source: str
    bells: Sequence[Bell]


def bytes_of(schema: Schema) -> int:
    """The bytes of a message on the wire."""
    return sum(int(np.prod(field[0], dtype=np.int64)) * dtype_of(field).itemsize for field in schema)


def pieces(arrays: Iterable[np.ndarray]) -> list[memoryview]:
    """The bytes of each array, in place."""
    return [array.reshape(-1).view(np.uint8).data for array in arrays if array.nbytes]


class Outgoing:
    """A stream that is read on another host: its reading end here."""

    def __init__(self, spec: Sends, link: PeerLink, own_bell: Bell, count: Counter[tuple[str, str]]) -> None:
        self.spec, self.link = spec, link
        self.packing = Compressor(bytes_of(spec.ring.schema))
        self._count = count
        self._fingerprint = fingerprint(spec.ring.schema)
        self._reader = spec.ring.reader(own_bell, spec.bell)
        self._pieces: dict[int, list[memoryview]] = {}  # by slot
        self._held: dict[int, Message] = {}  # by sequence, in order
        self._sent_in: dict[int, int] = {}  # by sequence: the number of the batch
        self._said: tuple[int, int | None] | None = None

    def look(self) -> None:
        """Puts committed messages, then the latest claim: it began after all messages before it."""
        ring, reader = self.spec.ring, self._reader
        while True:
            gone, begun = ring.gone("writer"), reader.begun() if self.spec.begins else None
            if ring.gone("reader") & 1 or not reader.pending():
                break
            message = reader.receive(0.0)
            assert message is not None
            self._held[message.sequence] = message
            self.link.put(partial(self._data, message))
            self._said = None  # a message ends what was begun: if another is, even with the same iteration, it is new
        if self._said != (gone, begun):
            self._said = (gone, begun)
            self.link.put(lambda _: (wire.Begun(self.spec.id, gone, begun), None))

    def again(self) -> None:
        """Puts everything again that the peer has not acknowledged."""
        self._said = None
        for sequence in sorted(self._held):
            if self._sent_in.get(sequence, self.link.number + 1) > self.link.heard:
                self.link.put(partial(self._data, self._held[sequence]))

    def _data(self, message: Message, number: int) -> wire.Parcel | None:
        if message.sequence not in self._held:
            return None
        is_first = message.sequence not in self._sent_in
        self._sent_in[message.sequence] = number
        if message.slot not in self._pieces:
            self._pieces[message.slot] = pieces(message.arrays)
        body = b"".join(self._pieces[message.slot])
        if is_first:
            self._count[self.spec.kind, "sent_messages"] += 1
            self._count[self.spec.kind, "sent_bytes"] += len(body)
        packed = self.packing.pack(body, self.link.bytes_per_s) if self.link.unpacks else None
        if packed is not None:
            self._count[self.spec.kind, "saved_bytes"] += len(body) - len(packed)
            body = packed
        head = wire.Data(
            self.spec.id,
            self._fingerprint,
            packed is not None,
            message.sequence,
            message.iteration,
            *message.header,
            len(body),
        )
        return head, body

    def check(self, entry: wire.Released | wire.Reading) -> None:
        if isinstance(entry, wire.Reading):
            if entry.gone > 3:
                raise Malformed("no courier's")
        elif not 0 <= entry.sequence < self.spec.ring.committed():
            raise Malformed("sequence")
        elif entry.sequence in self._held and entry.sequence not in self._sent_in:
            raise Malformed("sequence")  # it was not sent yet

    def released(self, entry: wire.Released) -> None:
        message = self._held.pop(entry.sequence, None)
        if message is not None:
            self._sent_in.pop(entry.sequence, None)
            self._reader.release(message)

    def reading(self, entry: wire.Reading) -> None:
        self.spec.ring.follow("reader", entry.gone)
        self.spec.bell.ring()


class Incoming:
    """A stream that is written on another host: its writing end here."""

    def __init__(self, spec: Takes, link: PeerLink, own_bell: Bell, count: Counter[tuple[str, str]]) -> None:
        self.spec, self.link = spec, link
        self.floors: dict[int, int] = {}  # by store: the iteration that the source has
        self._count = count
        self._size = bytes_of(spec.ring.schema)
        self._fingerprint = fingerprint(spec.ring.schema)
        self._relay = spec.ring.relay(own_bell, spec.bell)
        self._pieces = [pieces(arrays) for arrays in self._relay.slots]
        self._unreleased = self._relay.unreleased()
        self._released: deque[int] = deque(maxlen=spec.ring.capacity)
        self._begun: int | None = None  # as the source said
        self._said: int | None = None
        self._relay.announce(self.begun())

    def begun(self) -> int | None:
        """The oldest iteration with which a message that has not arrived may have begun.

        The source reports it. Before it has, a message may have begun at any time if there is a free slot, with
        parameters no older than those that the source has.
        """
        if self._begun is not None:
            return self._begun
        if not self.spec.bounds or len(self._unreleased) == self.spec.ring.capacity:
            return None
        return max(0, min(self.floors.get(store, 0) for store in self.spec.bounds))

    def look(self) -> None:
        """Puts the reader's releases, after announcing that new messages may begin in these slots."""
        if self._unreleased:
            unreleased = self._relay.unreleased()
            free = sorted(self._unreleased - unreleased)
            if free:
                self._unreleased = unreleased
                self._relay.announce(self.begun())
                self._released.extend(free)
                for sequence in free:
                    self._put_released(sequence)
        gone = self.spec.ring.gone("reader")
        if gone != self._said:
            self._said = gone
            self.link.put(lambda _: (wire.Reading(self.spec.id, gone), None))

    def again(self) -> None:
        """Puts the releases again that the peer may not have received: it waits for at most as many as it has slots."""
        self._said = None
        for sequence in self._released:
            self._put_released(sequence)

    def _put_released(self, sequence: int) -> None:
        self.link.put(lambda _: (wire.Released(self.spec.id, sequence), None))

    def check(self, entry: wire.Data | wire.Begun, parts: wire.Parts, new: int) -> wire.Parts:
        """The arrays' bytes, if the entry is valid after `new` new messages that are not in the ring yet."""
        if isinstance(entry, wire.Begun):
            if entry.gone > 3:
                raise Malformed("no courier's")
            return parts
        if entry.fingerprint != self._fingerprint:
            raise Malformed("schema")
        if not 0 <= entry.sequence <= self._relay.committed() + new:
            raise Malformed("sequence")
        if self.is_new(entry, new) and len(self._relay.unreleased()) + new >= self.spec.ring.capacity:
            raise Malformed("no room")
        if entry.packed:
            parts = unpack(parts, self._size)
        elif entry.length != self._size:
            parts = []
        if not parts:
            raise Malformed("length")
        return parts

    def is_new(self, entry: wire.Data, new: int = 0) -> bool:
        return entry.sequence == self._relay.committed() + new

    def take(self, entry: wire.Data, parts: wire.Parts) -> None:
        if not self.is_new(entry):
            if entry.sequence not in self._unreleased:
                self._put_released(entry.sequence)
            return
        slot = self._relay.room()
        assert slot is not None
        wire.scatter(parts, self._pieces[slot])
        self._count[self.spec.kind, "received_messages"] += 1
        self._count[self.spec.kind, "received_bytes"] += self._size
        self._unreleased.add(entry.sequence)
        self._begun = None
        self._relay.pass_on(slot, entry.iteration, (entry.header_0, entry.header_1), self.begun())

    def hear(self, entry: wire.Begun) -> None:
        self._begun = entry.iteration
        self._relay.announce(self.begun())
        if entry.gone != self.spec.ring.gone("writer"):
            self.spec.ring.follow("writer", entry.gone)
            self.spec.bell.ring()

    def has(self, entry: wire.Has) -> None:
        if entry.id in self.spec.bounds:
            self.floors[entry.id] = entry.iteration
            self._relay.announce(self.begun())


class Publishing:
    """A store that is mirrored on other hosts. A publication is read once, and sent to each host once."""

    def __init__(self, spec: Publishes, links: Sequence[PeerLink], count: Counter[tuple[str, str]]) -> None:
        self.spec, self.links = spec, links
        self._count = count
        self._fingerprint = fingerprint(spec.store.schema)
        self._reader = spec.store.reader()
        self._read: tuple[wire.PublishedEntry, bytes] | None = None
        self.under_way: dict[str, int] = {}  # by host: the number of the publication
        self._arrived: dict[str, int] = {}

    def now(self) -> wire.Has:
        number = self._reader.number()
        return wire.Has(self.spec.id, number, self._reader.iteration())

    def look(self) -> None:
        number = self._reader.number()
        for link in self.links:
            if number and link.is_up and link.name not in self.under_way and self._arrived.get(link.name) != number:
                self.under_way[link.name] = 0
                link.put(partial(self._newest, link.name))

    def again(self, link: PeerLink) -> None:
        self.under_way.pop(link.name, None)

    def _newest(self, to: str, _: int) -> wire.Parcel:
        number = self._reader.number()
        if self._read is None or self._read[0].number != number:
            version, iteration, arrays = self._reader.read()  # this one or a newer one: then it is read again later
            body = b"".join(pieces(arrays))
            self._read = (
                wire.PublishedEntry(self.spec.id, self._fingerprint, number, version, iteration, len(body)),
                body,
            )
        self.under_way[to] = number
        self._count["parameters", "sent_messages"] += 1
        self._count["parameters", "sent_bytes"] += len(self._read[1])
        return self._read

    def has(self, name: str, entry: wire.Has) -> None:
        if self.under_way.get(name) == entry.number:
            del self.under_way[name]
            self._arrived[name] = entry.number


class Mirroring:
    """A store that is published on another host."""

    def __init__(self, spec: Mirrors, link: PeerLink, count: Counter[tuple[str, str]]) -> None:
        self.spec, self.link = spec, link
        self._count = count
        self._size = bytes_of(spec.store.schema)
        self._fingerprint = fingerprint(spec.store.schema)
        self._writer = spec.store.writer(spec.bells)
        self._taken = wire.Has(spec.id, 0, spec.store.reader().iteration())

    def now(self) -> wire.Has:
        return self._taken

    def check(self, entry: wire.PublishedEntry) -> None:
        if entry.fingerprint != self._fingerprint:
            raise Malformed("schema")
        if entry.number < 1:
            raise Malformed("sequence")
        if entry.length != self._size:
            raise Malformed("length")

    def take(self, entry: wire.PublishedEntry, parts: wire.Parts) -> None:
        if entry.number <= self._taken.number:
            return
        payload = parts[0] if len(parts) == 1 else b"".join(parts)
        arrays, at = [], 0
        for field in self.spec.store.schema:
            array = np.ndarray(tuple(field[0]), dtype_of(field), payload, at)
            arrays.append(array)
            at += array.nbytes
        self._writer.publish(arrays, entry.version, entry.iteration)
        self._count["parameters", "received_messages"] += 1
        self._count["parameters", "received_bytes"] += at
        self._taken = wire.Has(entry.id, entry.number, entry.iteration)
