"""Streams and stores between two hosts, both here: two rings or stores, and two couriers with real sockets in between.

Ends made here first wait until the couriers have carried everything where a test asks what is there *now*: one host's
memory is not the other's a moment later, which the contract of a stream does not ask for.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from transport_peers import LIMIT_S

from runnel.transport import parameter_store, ring, shared_memory
from runnel.transport.bell import Bell
from runnel.transport.courier import Courier, Mirrors, Peer, Publishes, Sends, Takes
from runnel.transport.curve import new_keys
from runnel.transport.stream import End, Schema


def until(true: Callable[[], Any], *couriers: Courier, seconds: float = LIMIT_S) -> None:
    """Waits until something holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, [courier.tally() for courier in couriers]
        for courier in couriers:
            courier.bell.ring()
        time.sleep(2e-4)


class Hosts:
    """Two couriers that know each other, and what they carry from the first to the second."""

    def __init__(self) -> None:
        self.first, self.second = (Courier(name, new_keys()) for name in ("first", "second"))
        self.epoch = 0
        self.streams: dict[int, Ring] = {}
        self.stores: dict[int, Store] = {}
        self.first.start()
        self.second.start()

    def join(self) -> None:
        self.epoch += 1
        self.first.join(
            {"second": Peer(self.second.address, self.second.public)},
            sends=[Sends(i, "test", one.near, "second", one.bells[0]) for i, one in self.streams.items()],
            publishes=[Publishes(i, one.near, ("second",)) for i, one in self.stores.items()],
            epoch=self.epoch,
        )
        self.second.join(
            {"first": Peer(self.first.address, self.first.public)},
            takes=[Takes(i, "test", one.far, "first", one.bells[1]) for i, one in self.streams.items()],
            mirrors=[Mirrors(i, one.far, "first", one.bells) for i, one in self.stores.items()],
            epoch=self.epoch,
        )

    def until(self, true: Callable[[], Any]) -> None:
        until(true, self.first, self.second)

    def close(self) -> None:
        self.first.close()
        self.second.close()


_hosts: list[Hosts] = []


def hosts() -> Hosts:
    """The same two for all tests: each joins them anew."""
    if not _hosts:
        _hosts.append(Hosts())
    return _hosts[0]


def close_hosts() -> None:
    while _hosts:
        _hosts.pop().close()


class _Silent:
    def ring(self) -> None:
        pass


_numbers = iter(range(1, 2**32))


class Ring:
    """A stream between two hosts, used as if it were one ring."""

    def __init__(self, schema: Schema, slots: int) -> None:
        self.near, self.far = shared_memory.create(schema, slots), shared_memory.create(schema, slots)
        self.schema, self.capacity = schema, slots
        self.bells: list[Any] = [_Silent(), _Silent()]
        self.hosts, self._id = hosts(), next(_numbers)
        self.hosts.streams[self._id] = self

    def writer(self, own_bell: Bell, reader_bell: Bell, plain: bool = False) -> ring.RingWriter:
        self._heed(0, own_bell)
        if plain:
            return self.near.writer(own_bell, self.hosts.first.bell)
        return _Writer(self, own_bell)

    def reader(self, own_bell: Bell, writer_bell: Bell, plain: bool = False) -> ring.RingReader:
        self._heed(1, own_bell)
        if plain:
            return self.far.reader(own_bell, self.hosts.second.bell)
        return _Reader(self, own_bell)

    def _heed(self, end: int, own_bell: Bell) -> None:
        if self.bells[end] is not own_bell:
            self.bells[end] = own_bell
            self.hosts.join()

    def settle(self) -> None:
        """Waits until both rings say the same."""
        if self._id in self.hosts.streams:
            self.hosts.until(lambda: _state(self.near, self.near) == _state(self.far, self.near))

    def committed(self) -> int:
        self.settle()
        return self.far.committed()

    def pending(self) -> int:
        self.settle()
        return self.far.pending()

    def lost(self, end: End) -> None:
        (self.near if end == "writer" else self.far).lost(end)
        self.hosts.first.bell.ring()
        self.hosts.second.bell.ring()

    def reset_end(self, end: End) -> None:
        (self.near if end == "writer" else self.far).reset_end(end)

    def clear(self) -> None:
        first, second = self.hosts.first, self.hosts.second
        self.hosts.epoch += 1
        with first.paused():
            self.near.clear()
            first.clear(self.hosts.epoch)
        with second.paused():
            self.far.clear()
            second.clear(self.hosts.epoch)

    @property
    def words(self) -> Any:
        self.settle()
        return self.far.words

    def close(self) -> None:
        if self.hosts.streams.pop(self._id, None) is not None:
            self.hosts.join()
        self.near.close()
        self.far.close()


def _state(of: shared_memory.SharedRing, near: shared_memory.SharedRing) -> Any:
    """All that one ring tells of its stream."""
    words, layout = of.words, of.layout
    committed = of.committed()
    gone = of.gone("writer"), of.gone("reader")
    begun = None if gone[0] else words[ring.BEGUN]
    last = [words[layout.prefix(slot)] for slot in range(of.capacity)]
    held = {n for slot, n in enumerate(last) if 0 <= n < committed and words[layout.released + slot] != n + 1}
    if gone[1] & 1:  # what is committed after the reader closed is not carried
        return gone, begun
    return gone, begun, committed, held


class _Writer(ring.RingWriter):
    def __init__(self, made: Ring, own_bell: Bell) -> None:
        near = made.near
        super().__init__(near.buffer, near.words, near.layout, own_bell, made.hosts.first.bell)
        self._made = made

    def claim(self, iteration: int, timeout_s: float) -> int | None:
        if timeout_s <= 0:
            self._made.settle()
        return super().claim(iteration, timeout_s)

    def free(self) -> bool:
        self._made.settle()
        return super().free()


class _Reader(ring.RingReader):
    def __init__(self, made: Ring, own_bell: Bell) -> None:
        made.settle()
        far = made.far
        super().__init__(far.buffer, far.words, far.layout, own_bell, made.hosts.second.bell)
        self._made = made

    def receive(self, timeout_s: float) -> Any:
        if timeout_s <= 0:
            self._made.settle()
        return super().receive(timeout_s)

    def peek(self) -> bool:
        self._made.settle()
        return super().peek()

    def begun(self) -> int | None:
        self._made.settle()
        return super().begun()

    def pending(self) -> int:
        self._made.settle()
        return super().pending()


class Store:
    """A parameter store that is published on one host and read on another."""

    def __init__(self, schema: Schema) -> None:
        self.near, self.far = parameter_store.SharedStore.create(schema), parameter_store.SharedStore.create(schema)
        self.bells: Sequence[Bell] = ()
        self.hosts, self._id = hosts(), next(_numbers)
        self.hosts.stores[self._id] = self
        self.hosts.join()

    def writer(self, bells: Sequence[Bell] = ()) -> parameter_store.SharedWriter:
        if bells:
            self.bells = bells
            self.hosts.join()
        return self.near.writer([self.hosts.first.bell])

    def reader(self) -> parameter_store.SharedReader:
        return _StoreReader(self)

    def settle(self) -> None:
        """Waits until the mirror has the newest."""
        if self._id in self.hosts.stores:
            near, far = self.near.reader(), self.far.reader()
            self.hosts.until(lambda: (near.version(), near.iteration()) == (far.version(), far.iteration()))

    def close(self) -> None:
        if self.hosts.stores.pop(self._id, None) is not None:
            self.hosts.join()
        self.near.close()
        self.far.close()


class _StoreReader(parameter_store.SharedReader):
    def __init__(self, made: Store) -> None:
        super().__init__(made.far.buffer, made.far.words, made.far.schema)
        self._made = made

    def version(self) -> int:
        self._made.settle()
        return super().version()

    def iteration(self) -> int:
        self._made.settle()
        return super().iteration()

    def read(self) -> parameter_store.Parameters:
        self._made.settle()
        return super().read()
