"""The courier: carries a host's streams and parameters to other hosts and back, in its own thread.

Workers use rings and stores of their own host only. A stream between hosts has two rings, and the courier on each side
holds the end whose worker is elsewhere. Everything that is ready for a host is sent in one message; nothing is lost,
duplicated or reordered when a connection breaks. An invalid message is dropped and counted.
"""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock, Thread
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import zmq

from runnel.transport import shared_memory, wire
from runnel.transport.curve import Call, Door, Keys
from runnel.transport.link import PeerLink
from runnel.transport.remote_streams import Incoming, Mirroring, Mirrors, Outgoing, Publishes, Publishing, Sends, Takes
from runnel.transport.wire import Malformed

__all__ = ["Courier", "Mirrors", "Peer", "Publishes", "Sends", "Takes"]

RemoteEnd = TypeVar("RemoteEnd", Outgoing, Incoming, Mirroring)

LOOK_S = 0.02
"""The interval in seconds at which connections are checked."""

AT_ONCE = 256
"""The number of batches that are received before other work."""


class Peer(NamedTuple):
    """Another host's courier: its address, and its public key."""

    address: str
    public: str


class _Joined(NamedTuple):
    sends: Sequence[Sends] = ()
    takes: Sequence[Takes] = ()
    publishes: Sequence[Publishes] = ()
    mirrors: Sequence[Mirrors] = ()


class Courier:
    """The courier of one host. Workers of this host ring its `bell` in place of those of workers elsewhere.

    Every batch belongs to an epoch, which is the same on all hosts: after rings were cleared, batches of an older epoch
    that were still under way are dropped.

    It is one class because one lock guards its sockets, rings and stores: the thread that carries and the host that
    joins, clears and pauses change the same links.
    """

    def __init__(self, host: str, keys: Keys, interface: str = "127.0.0.1") -> None:
        self.host = host
        self.failed: str | None = None
        """The reason why the courier ended without being stopped: an error of its own, which no peer can cause."""
        self._keys = keys
        self.door = Door(keys, interface, 2 * wire.FRAME_BYTES)
        self.address, self.public = self.door.address, keys.public
        self.bell = shared_memory.SharedBell.create(spin_s=0.0)
        for socket in self.door.sockets:
            self.bell.watch(int(socket.getsockopt(zmq.FD)))
        self._lock = RLock()  # held during any access to the sockets, rings and stores
        self._thread: Thread | None = None
        self._stopping = False
        self._peers: dict[str, Peer] = {}
        self._links: dict[str, PeerLink] = {}
        self._dropped: Counter[str] = Counter()
        self._wire: Counter[str] = Counter()
        self._count: Counter[tuple[str, str]] = Counter()  # (kind of stream, what)
        self._epoch = 0
        self._joined = _Joined()
        self._begin()

    # Of the host

    def join(
        self,
        peers: Mapping[str, Peer],
        *,
        sends: Sequence[Sends] = (),
        takes: Sequence[Takes] = (),
        publishes: Sequence[Publishes] = (),
        mirrors: Sequence[Mirrors] = (),
        epoch: int,
    ) -> None:
        """Carries these streams and stores from now on, and no others. Ids and epoch are the same on all hosts."""
        with self._lock:
            for name in [name for name, peer in self._peers.items() if peers.get(name) != peer]:
                self.door.expel(name)
                self._links.pop(name).call.close()
            for name, peer in peers.items():
                if name not in self._links:
                    self.door.admit(name, peer.public)
                    call = Call(self._keys, peer.address, peer.public, context=self.door.context)
                    self._links[name] = PeerLink(name, call)
            self._peers = dict(peers)
            self._joined = _Joined(sends, takes, publishes, mirrors)
            self._epoch = epoch
            self._begin()

    def clear(self, epoch: int) -> None:
        """Begins a new epoch after the rings and stores were cleared, while `paused`: messages of an older epoch are
        dropped."""
        with self._lock:
            self._epoch = epoch
            self._begin()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context, the courier uses neither rings nor stores."""
        with self._lock:
            yield

    def start(self) -> None:
        if self._thread is None:
            self._stopping = False
            self._thread = Thread(target=self._work, name="courier", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stops carrying, and releases rings and stores; `join` and `start` begin again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self.bell.ring()
            thread.join()
        with self._lock:
            self._joined = _Joined()
            self._begin()

    def close(self) -> None:
        self.stop()
        for link in self._links.values():
            link.call.close()
        self._links.clear()
        self.door.close()
        self.bell.close()

    def tally(self) -> dict[str, Any]:
        """Counts since the start: messages by kind of stream, bytes and batches on the wire, drops by reason, and
        peers."""
        with self._lock:
            now = monotonic()
            carried: dict[str, dict[str, int]] = defaultdict(dict)
            for (kind, what), count in self._count.items():
                carried[kind][what] = count
            return {
                "carried": dict(carried),
                "wire": dict(self._wire),
                "dropped": dict(self._dropped + self.door.counts),
                "rejected": self.rejected(),
                "packed": {
                    out.spec.id: {
                        "kind": out.spec.kind,
                        "packed": out.packing.pays,
                        "ratio": round(out.packing.ratio, 2),
                    }
                    for out in self._outgoing.values()
                },
                "peers": {
                    name: {
                        "connected": link.is_up,
                        "silent_s": None if link.heard_at is None else round(now - link.heard_at, 3),
                        "bytes_per_s": round(link.bytes_per_s),
                        "unpacks": link.unpacks,
                    }
                    for name, link in self._links.items()
                },
                "failed": self.failed,
            }

    def delivered(self, store: int) -> bool:
        """Whether every host is known to have the newest parameters that were sent to it."""
        with self._lock:
            return not self._publishing[store].under_way

    def rejected(self) -> dict[str, dict[str, int]]:
        """Connections that were refused, by reason and by address."""
        return self.door.rejected.json()

    # The thread

    def _begin(self) -> None:
        """Takes all ends, in the state that their memory has."""
        links, joined = self._links, self._joined
        for link in links.values():
            link.begin(self._epoch)
        self._said: dict[tuple[str, int], wire.Has] = {}  # by host and store
        self._outgoing = {e.id: Outgoing(e, links[e.to], self.bell, self._count) for e in joined.sends}
        self._incoming = {e.id: Incoming(e, links[e.source], self.bell, self._count) for e in joined.takes}
        self._publishing = {e.id: Publishing(e, [links[name] for name in e.to], self._count) for e in joined.publishes}
        self._mirroring = {e.id: Mirroring(e, links[e.source], self._count) for e in joined.mirrors}
        self._looked = 0.0
        self.bell.ring()
        # Which hosts need to know what this host has: the publisher, and those that take what was made with it.
        takers = {e.to for e in joined.sends}
        self._hears = {e.id: takers for e in joined.publishes} | {e.id: takers | {e.source} for e in joined.mirrors}

    def _work(self) -> None:
        try:
            while not self._stopping:
                self.bell.wait(self.serve, 1.0)
        except Exception:
            self.failed = traceback.format_exc()

    def serve(self) -> bool | None:
        """What the thread does each time it wakes: processes received messages, then sends everything that is ready."""
        with self._lock:
            now = monotonic()
            for _ in range(AT_ONCE):
                came = self.door.receive()
                if came is None:
                    break
                self._hear(*came, now)
            else:
                self.bell.ring()  # there may be more
            self._look_after(now)
            # Read before the rings: an unroll that begins later begins with at least these parameters.
            has = [each.now() for each in (*self._publishing.values(), *self._mirroring.values())]
            for out in self._outgoing.values():
                if out.link.is_up:
                    out.look()
            for into in self._incoming.values():
                into.look()
            for publishing in self._publishing.values():
                publishing.look()
            self._announce(has)
            for link in self._links.values():
                self._flush(link, now)
        return True if self._stopping else None

    def _look_after(self, now: float) -> None:
        if now < self._looked + LOOK_S:
            return
        self._looked = now
        for link in self._links.values():
            if link.renewed() or link.overdue(now):
                self._afresh(link)

    def _afresh(self, link: PeerLink) -> None:
        """Sends everything again that a peer may not have received."""
        link.afresh()
        for each in (*self._outgoing.values(), *self._incoming.values()):
            if each.link is link:
                each.again()
        for publishing in self._publishing.values():
            publishing.again(link)
        for name, store in [key for key in self._said if key[0] == link.name]:
            del self._said[name, store]

    def _announce(self, has: Sequence[wire.Has]) -> None:
        for entry in has:
            for name in self._hears[entry.id]:
                if entry.number and self._said.get((name, entry.id)) != entry:
                    self._said[name, entry.id] = entry
                    self._links[name].put(lambda _, entry=entry: (entry, None))

    def _flush(self, link: PeerLink, now: float) -> None:
        batches, size = link.flush(now)
        if batches:
            self._wire["sent_batches"] += batches
            self._wire["sent_bytes"] += size

    # Received messages

    def _hear(self, name: str, frames: list[memoryview], now: float) -> None:
        """Handles a message of a peer: accepted as a whole, or dropped as a whole and counted."""
        link = self._links[name]
        link.heard_at = now
        size = wire.wire_bytes(frames)
        self._wire["received_batches"] += 1
        self._wire["received_bytes"] += size
        try:
            head, came = wire.decode(frames)
            if head.epoch != self._epoch:
                raise Malformed("old epoch" if head.epoch < self._epoch else "early epoch")
            if head.heard > link.number:
                raise Malformed("no courier's")
            why = link.admits(head, now)
            if why is not None:
                raise Malformed(why)
            came = self._checked(link, came)
        except Malformed as malformed:
            self._dropped[str(malformed)] += 1
            return
        if link.take(head, size, len(came), now):
            self._afresh(link)
        for entry, parts in came:
            self._take(name, entry, parts)

    def _checked(
        self, link: PeerLink, came: Sequence[tuple[wire.Entry, wire.Parts]]
    ) -> list[tuple[wire.Entry, wire.Parts]]:
        """The entries of a batch, each checked against this peer's permissions and state; compressed ones unpacked."""
        checked: list[tuple[wire.Entry, wire.Parts]] = []
        new: Counter[int] = Counter()  # by stream: messages in this batch
        for entry, parts in came:
            if isinstance(entry, wire.Data | wire.Begun):
                into = _known(self._incoming.get(entry.id), link)
                parts = into.check(entry, parts, new[entry.id])
                if isinstance(entry, wire.Data):
                    new[entry.id] += into.is_new(entry, new[entry.id])
            elif isinstance(entry, wire.Released | wire.Reading):
                _known(self._outgoing.get(entry.id), link).check(entry)
            elif isinstance(entry, wire.PublishedEntry):
                _known(self._mirroring.get(entry.id), link).check(entry)
            checked.append((entry, parts))
        return checked

    def _take(self, name: str, entry: wire.Entry, parts: wire.Parts) -> None:
        match entry:
            case wire.Data():
                self._incoming[entry.id].take(entry, parts)
            case wire.Begun():
                self._incoming[entry.id].hear(entry)
            case wire.Released():
                self._outgoing[entry.id].released(entry)
            case wire.Reading():
                self._outgoing[entry.id].reading(entry)
            case wire.PublishedEntry():
                self._mirroring[entry.id].take(entry, parts)
                self._said.pop((name, entry.id), None)  # it is not sure that it was heard before
            case wire.Has():
                if entry.id in self._publishing:
                    self._publishing[entry.id].has(name, entry)
                for into in self._incoming.values():
                    if into.spec.source == name:
                        into.has(entry)


def _known(end: RemoteEnd | None, link: PeerLink) -> RemoteEnd:
    """The stream or store that an entry of a peer names: the peer must be at its other end."""
    if end is None or end.link is not link:
        raise Malformed("id")
    return end
