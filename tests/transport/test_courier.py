"""Couriers: nothing lost, doubled or out of order whatever the network does, and nothing taken from who is unknown."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tcp_hosts import until
from tcp_proxy import Proxy
from threads import threaded
from transport_peers import LIMIT_S, PLAIN, Peer, check, consume, fill, produce, publish, send, watch, whole

from runnel.transport import compression, curve, in_process, link, parameter_store, remote_streams, shared_memory, wire
from runnel.transport import courier as courier_module
from runnel.transport.courier import Courier, Mirrors, Publishes, Sends, Takes
from runnel.transport.courier import Peer as Host
from runnel.transport.curve import Call, Keys, new_keys
from runnel.transport.ring import RingReader, RingWriter
from runnel.transport.stream import Field, Schema

LARGE: Schema = (Field((1 << 18,), "<f4"), Field((), "<i8"))
FRAMES: Schema = (Field((84, 84, 4), "|u1"), Field((), "<i8"))


class Two:
    """Two hosts here, with proxies between them if asked for, and streams from the first to the second."""

    def __init__(self, streams: int = 1, schema: Schema = PLAIN, slots: int = 3, proxies: bool = False) -> None:
        self.keys = new_keys(), new_keys()
        self.couriers = Courier("a", self.keys[0]), Courier("b", self.keys[1])
        self.proxies = [Proxy(courier.address) for courier in self.couriers] if proxies else []
        self.near = [shared_memory.create(schema, slots) for _ in range(streams)]
        self.far = [shared_memory.create(schema, slots) for _ in range(streams)]
        self.bells = [(shared_memory.SharedBell.create(), shared_memory.SharedBell.create()) for _ in range(streams)]
        self.stores: list[parameter_store.SharedStore] = []
        self.epoch = 0

    def hosts(self) -> tuple[Host, Host]:
        places = self.proxies or self.couriers
        first, second = (Host(place.address, keys.public) for place, keys in zip(places, self.keys, strict=True))
        return first, second

    def join(self, bounds: tuple[int, ...] = (), start: bool = True, **more: Sequence[Any]) -> None:
        """`more`: stores that the first mirrors of the second."""
        a, b = self.couriers
        at_a, at_b = self.hosts()
        self.epoch += 1
        b.join(
            {"a": at_a},
            takes=[
                Takes(i, "test", ring, "a", self.bells[i][1], bounds)
                for i, ring in enumerate(self.far)
            ],
            publishes=more.get("publishes", ()),
            epoch=self.epoch,
        )  # fmt: skip
        a.join(
            {"b": at_b},
            sends=[Sends(i, "test", ring, "b", self.bells[i][0]) for i, ring in enumerate(self.near)],
            mirrors=more.get("mirrors", ()),
            epoch=self.epoch,
        )
        if start:
            a.start()
            b.start()

    def writer(self, i: int = 0) -> RingWriter:
        return self.near[i].writer(self.bells[i][0], self.couriers[0].bell)

    def reader(self, i: int = 0) -> RingReader:
        return self.far[i].reader(self.bells[i][1], self.couriers[1].bell)

    def until(self, true: Any) -> None:
        until(true, *self.couriers)

    def close(self) -> None:
        for each in self.couriers:
            each.close()
            assert each.failed is None
        for each in (*self.proxies, *self.near, *self.far, *self.stores, *itertools.chain(*self.bells)):
            each.close()


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_peer_outlives_its_test() -> Iterator[None]:
    yield
    Peer.kill_all()


# Between processes


@pytest.mark.parametrize("there", ["produce", "consume"])
def test_thousands_of_messages_between_hosts(there: str) -> None:
    keys, own_bell, ring = new_keys(), shared_memory.SharedBell.create(), shared_memory.create(PLAIN, 3)
    mine = Courier("here", keys)
    job = {"role": "host", "does": there, "peer": [mine.address, keys.public], "schema": PLAIN, "slots": 3}
    other = Peer(job | {"count": 2000, "hold": 2}, ())
    peers = {"there": Host(*other.line())}
    if there == "produce":
        mine.join(peers, takes=[Takes(1, "test", ring, "there", own_bell)], epoch=1)
        mine.start()
        consume(ring.reader(own_bell, mine.bell), 2000, 2)
    else:
        mine.join(peers, sends=[Sends(1, "test", ring, "there", own_bell)], epoch=1)
        mine.start()
        produce(ring.writer(own_bell, mine.bell), 2000)
    assert other.line() == "done"
    other.kill()
    # Nobody is there any more, which is for others to say.
    until(lambda: not mine.tally()["peers"]["there"]["connected"], mine)
    assert mine.tally()["peers"]["there"]["silent_s"] >= 0
    mine.close()
    assert mine.failed is None
    own_bell.close()
    ring.close()


def test_a_lost_host_keeps_nobody_from_the_others() -> None:
    keys, bells = new_keys(), [shared_memory.SharedBell.create() for _ in range(2)]
    rings = [shared_memory.create(PLAIN, 3) for _ in range(2)]
    mine = Courier("here", keys)
    job = {"role": "host", "peer": [mine.address, keys.public], "schema": PLAIN, "slots": 3, "count": 300, "hold": 1}
    others = [Peer(job | {"does": does}, ()) for does in ("nothing", "consume")]
    hosts = {name: Host(*other.line()) for name, other in zip("pq", others, strict=True)}
    # Ids are the peers' own here, as each has a stream 1: the lost one's is another's.
    sends = [Sends(2, "test", rings[0], "p", bells[0]), Sends(1, "test", rings[1], "q", bells[1])]
    mine.join(hosts, sends=sends, epoch=1)
    mine.start()
    assert send(rings[0].writer(bells[0], mine.bell), 0)
    others[0].kill()
    produce(rings[1].writer(bells[1], mine.bell), 300)
    while others[1].line() != "done":
        pass
    mine.close()
    assert mine.failed is None
    for each in (*bells, *rings):
        each.close()


# A network that fails


def test_nothing_is_lost_or_doubled_while_connections_break() -> None:
    two = Two(streams=3, proxies=True)
    two.join()
    joins = [threaded(partial(produce, two.writer(i), 150)) for i in range(3)]
    joins += [threaded(partial(consume, two.reader(i), 150, 1 + i)) for i in range(3)]
    over = threading.Event()

    def cut() -> None:
        for proxy in itertools.cycle(two.proxies):
            if over.wait(0.1):
                return
            proxy.cut()

    stop = threaded(cut)
    for join in joins:
        join()
    over.set()
    stop()
    assert min(proxy.connections for proxy in two.proxies) > 2
    assert not set(two.couriers[1].tally()["dropped"]) - {"again", "out of order", "no handshake"}
    two.close()


def test_what_was_under_way_when_the_network_died_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "_HEARTBEAT_MS", 50)
    monkeypatch.setattr(curve, "_SILENCE_MS", 300)
    two = Two(proxies=True)
    two.join()
    writer, reader = two.writer(), two.reader()
    send(writer, 0)
    check(reader.receive(LIMIT_S), 0)
    for proxy in two.proxies:
        proxy.dead = True
    send(writer, 1)
    two.until(lambda: not any(t.tally()["peers"][p]["connected"] for t, p in zip(two.couriers, "ba", strict=True)))
    send(writer, 2)
    assert writer.claim(0, 0) is None
    for proxy in two.proxies:
        proxy.dead = False
    for n in (1, 2):
        reader.release(check(reader.receive(LIMIT_S), n))
    assert send(writer, 3)
    reader.release(check(reader.receive(LIMIT_S), 3))
    two.close()


def test_what_was_sent_in_vain_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that got lost although no connection broke, which should not happen."""
    monkeypatch.setattr(link, "AGAIN_S", 0.05)
    two = Two()
    two.join()
    writer, reader = two.writer(), two.reader()
    send(writer, 0)
    reader.release(check(reader.receive(LIMIT_S), 0))
    with two.couriers[1].paused():
        send(writer, 1)
        two.until(lambda: (came := two.couriers[1]._door.receive()) and len(came[1][0]) > 500)
    reader.release(check(reader.receive(LIMIT_S), 1))
    send(writer, 2)
    reader.release(check(reader.receive(LIMIT_S), 2))
    two.close()


def test_a_slow_network_is_waited_for() -> None:
    two = Two(schema=LARGE, slots=2)
    two.proxies = [Proxy(courier.address, bytes_per_s=4e6) for courier in two.couriers]
    two.join()
    writer, reader = two.writer(), two.reader()
    rng = np.random.default_rng(0)
    sent = []

    def is_measured() -> bool:  # an answer that comes together with others says nothing
        return two.couriers[0].tally()["peers"]["b"]["bytes_per_s"] < 125e6

    for n in range(20):
        slot = writer.claim(n, LIMIT_S)
        assert slot is not None
        writer.slots[slot][0].view(np.uint8)[:] = rng.integers(0, 256, 1 << 20, np.uint8)
        sent.append(writer.slots[slot][0].copy())
        writer.commit()
        message = reader.receive(LIMIT_S)
        assert message is not None
        assert message.arrays[0].tobytes() == sent[n].tobytes()
        reader.release(message)
        if n > 2 and is_measured():
            break
    assert is_measured()
    assert not two.couriers[1].tally()["dropped"]
    two.close()


# Room


def test_there_is_as_much_room_as_in_one_ring(two: Two) -> None:
    two.join()
    writer, reader = two.writer(), two.reader()
    for n in range(3):
        assert send(writer, n)
    two.until(lambda: two.far[0].committed() == 3)
    assert not writer.free()
    messages = [check(reader.receive(0), n) for n in range(3)]
    assert writer.claim(0, 0.05) is None
    reader.release(messages[1])
    assert send(writer, 3)
    assert writer.claim(0, 0.05) is None
    check(reader.receive(LIMIT_S), 3)


def test_what_is_ready_for_a_host_goes_together() -> None:
    two = Two(streams=64)
    two.join()
    writers = [two.writer(i) for i in range(64)]
    readers = [two.reader(i) for i in range(64)]
    for n in range(2):
        before = two.couriers[0].tally()["wire"].get("sent_batches", 0)
        with two.couriers[0].paused():
            for writer in writers:
                send(writer, n)
        for reader in readers:
            reader.release(check(reader.receive(LIMIT_S), n))
        sent = two.couriers[0].tally()["wire"]["sent_batches"] - before
    assert sent < 8
    assert two.couriers[1].tally()["carried"]["test"]["received_messages"] == 128
    two.close()


def test_longer_than_any_frame() -> None:
    schema = (Field((3, 700_001), "|u1"), Field((), "<i8"), Field((0,), "<f4"), Field((350_003,), "<u2"))
    two = Two(schema=schema, slots=2)
    two.join()
    writer, reader = two.writer(), two.reader()
    for n in range(4):
        send(writer, n)
        reader.release(check(reader.receive(LIMIT_S), n))
    two.close()


# Epochs


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nothing_comes_out_of_a_cleared_stream(two: Two, order: tuple[int, int]) -> None:
    two.join()
    writer, reader = two.writer(), two.reader()
    for n in range(3):
        send(writer, n)
    check(reader.receive(LIMIT_S), 0)
    for round_ in range(3):
        two.epoch += 1
        for i in order:
            with two.couriers[i].paused():
                (two.near, two.far)[i][0].clear()
                two.couriers[i].clear(two.epoch)
            time.sleep(0.005 * round_)
        writer, reader = two.writer(), two.reader()
        assert writer.told() is None
        for n in range(7):
            send(writer, n)
            reader.release(check(reader.receive(LIMIT_S), n))
        for n in (7, 8):
            send(writer, n)


def test_what_arrives_of_an_older_epoch_is_dropped(two: Two) -> None:
    two.join()
    writer, reader = two.writer(), two.reader()
    send(writer, 0)
    check(reader.receive(LIMIT_S), 0)
    with two.couriers[1].paused():
        send(writer, 1)
        two.until(lambda: two.couriers[0].tally()["carried"]["test"]["sent_messages"] == 2)
        two.far[0].clear()
        two.couriers[1].clear(2)
    two.until(lambda: two.couriers[1].tally()["dropped"].get("old epoch"))
    assert two.far[0].committed() == 0
    with two.couriers[0].paused():
        two.near[0].clear()
        two.couriers[0].clear(2)
    send(two.writer(), 0)
    check(two.reader().receive(LIMIT_S), 0)


def test_a_stream_goes_on_where_it_was_when_couriers_join_anew(two: Two) -> None:
    two.join()
    writer, reader = two.writer(), two.reader()
    send(writer, 0)
    send(writer, 1)
    held = check(reader.receive(LIMIT_S), 0)
    two.until(lambda: reader.pending() == 1)
    two.join()
    send(writer, 2)
    check(reader.receive(LIMIT_S), 1)
    reader.release(held)  # of before
    check(reader.receive(LIMIT_S), 2)
    two.until(writer.free)
    two.couriers[0].stop()
    assert send(writer, 3)
    two.join()
    check(reader.receive(LIMIT_S), 3)


def test_a_stopped_courier_holds_no_memory(two: Two) -> None:
    two.join()
    send(two.writer(), 0)
    check(two.reader().receive(LIMIT_S), 0)
    for courier in two.couriers:
        courier.stop()
        courier.stop()
        assert courier.tally()["packed"] == {}


# What may have begun


class Linked:
    """In place of a link: always there, and says nothing."""

    is_up, name = True, "a"

    def put(self, make: link.Make) -> None:
        pass


VERSIONS = st.integers(0, 9)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("begun"), st.none() | VERSIONS),
            st.tuples(st.just("data"), VERSIONS),
            st.tuples(st.just("release"), st.none()),
            st.tuples(st.sampled_from(["has 7", "has 8", "has 9"]), VERSIONS),
        ),
        max_size=40,
    ),
    bounds=st.sampled_from([(), (7,), (7, 8)]),
    slots=st.integers(1, 3),
)
def test_what_may_have_begun_by_the_rule(
    steps: list[tuple[str, int | None]], bounds: tuple[int, ...], slots: int
) -> None:
    ring = in_process.create(PLAIN, slots)
    bells = in_process.InProcessBell(), in_process.InProcessBell()
    takes = Takes(0, "test", ring, "a", bells[1], bounds)
    into = remote_streams.Incoming(takes, Linked(), bells[0], courier_module.Counter())  # pyright: ignore
    reader = ring.reader(bells[1], bells[0])
    told: int | None = None
    floors: dict[int, int] = {}
    sequence, held = 0, []
    payload = [memoryview(bytes(remote_streams.bytes_of(PLAIN)))]
    for what, value in steps:
        if what == "begun":
            told = value
            into.hear(wire.Begun(0, 0, told))
        elif what == "data" and len(held) < slots:
            assert value is not None
            into.take(wire.Data(0, 0, False, sequence, value, 0, 0, 0), payload)
            message = reader.receive(0)
            assert message is not None
            held.append(message)
            sequence, told = sequence + 1, None
        elif what == "release" and held:
            reader.release(held.pop(0))
            into.look()
        elif what.startswith("has"):
            assert value is not None
            number = int(what.split()[1])
            into.has(wire.Has(number, 1, value))
            floors[number] = value
        if told is not None:
            wanted = told
        elif not bounds or len(held) == slots:
            wanted = None
        else:
            wanted = min(floors.get(bound, 0) for bound in bounds)
        assert reader.begun() == wanted


@settings(max_examples=12, deadline=None)
@given(
    steps=st.lists(
        st.sampled_from(["publish", "claim", "commit", "commit", "a", "a", "b", "b", "receive", "release"]),
        min_size=20,
        max_size=60,
    ),
    slots=st.integers(1, 2),
)
def test_what_is_on_its_way_is_never_said_to_be_newer_than_it_is(steps: list[str], slots: int) -> None:
    two = Two(slots=slots)
    two.stores = [parameter_store.SharedStore.create(PLAIN), parameter_store.SharedStore.create(PLAIN)]
    a, b = two.couriers
    two.join(
        bounds=(5,), start=False, mirrors=[Mirrors(5, two.stores[0], "b", ())],
        publishes=[Publishes(5, two.stores[1], ("a",))],
    )  # fmt: skip
    writer, reader, has = two.writer(), two.reader(), two.stores[0].reader()
    publishes = two.stores[1].writer()
    iteration, claimed, sent, held = 0, None, [], []

    def turn(courier: Courier, seconds: float) -> None:
        end = time.monotonic() + seconds
        while True:
            courier._round()
            if time.monotonic() > end:
                return
            time.sleep(5e-4)

    until(lambda: [c._round() for c in two.couriers] and all(c._links[p].is_up for c, p in ((a, "b"), (b, "a"))))
    for step in steps:
        if step == "publish":
            publish(publishes, PLAIN, iteration, 1)
            iteration += 1
        elif step == "claim" and claimed is None and writer.free():
            claimed = max(0, has.iteration())
            writer.claim(claimed, 0)
        elif step == "commit" and claimed is not None:
            writer.commit()
            sent.append(claimed)
            claimed = None
        elif step in "ab":
            turn(a if step == "a" else b, 0.003)
        elif step == "receive" and reader.pending():
            held.append(reader.receive(0))
        elif step == "release" and held:
            reader.release(held.pop())
        begun = reader.begun()
        on_its_way = sent[two.far[0].committed() :] + ([] if claimed is None else [claimed])
        assert all(begun is not None and begun <= iteration for iteration in on_its_way), (begun, on_its_way)
    two.close()


# Parameters


def test_of_parameters_the_newest_arrives_whole() -> None:
    two = Two(streams=0)
    two.stores = [parameter_store.SharedStore.create(LARGE), parameter_store.SharedStore.create(LARGE)]
    own_bell = shared_memory.SharedBell.create()
    two.join(
        mirrors=[Mirrors(5, two.stores[0], "b", [own_bell])], publishes=[Publishes(5, two.stores[1], ("a",))]
    )  # fmt: skip
    join = threaded(lambda: publish(two.stores[1].writer([two.couriers[1].bell]), LARGE, 0, 60))
    seen = watch(two.stores[0].reader(), 59, own_bell)
    join()
    two.until(lambda: not two.couriers[1]._publishing[5]._under_way)  # and it is known that it arrived
    sent = two.couriers[1].tally()["carried"]["parameters"]["sent_messages"]
    assert seen <= sent <= 60
    # What was sent before the other had said anything is sent once more, and passed over there.
    assert sent - 1 <= two.couriers[0].tally()["carried"]["parameters"]["received_messages"] <= sent
    two.close()
    own_bell.close()


def test_parameters_cross_once_to_each_host() -> None:
    names = ("x", "y", "z")
    keys = {name: new_keys() for name in names}
    couriers = {name: Courier(name, keys[name]) for name in names}
    stores = {name: parameter_store.SharedStore.create(PLAIN) for name in names}
    hosts = {name: Host(couriers[name].address, keys[name].public) for name in names}
    bells = [shared_memory.SharedBell.create() for _ in range(3)]
    couriers["x"].join(
        {n: hosts[n] for n in "yz"}, publishes=[Publishes(1, stores["x"], ("y", "z"))], epoch=1
    )  # fmt: skip
    for name in "yz":
        couriers[name].join({"x": hosts["x"]}, mirrors=[Mirrors(1, stores[name], "x", bells)], epoch=1)
    for courier in couriers.values():
        courier.start()
    writer = stores["x"].writer([couriers["x"].bell])
    for n in range(5):
        publish(writer, PLAIN, n, 1)
        for name in "yz":
            until(lambda n=n, name=name: stores[name].reader().version() == n, *couriers.values())
            assert whole(stores[name].reader().read())
        until(lambda: not couriers["x"]._publishing[1]._under_way, *couriers.values())
    # What was sent before a host had said anything is sent to it again.
    assert 10 <= couriers["x"].tally()["carried"]["parameters"]["sent_messages"] <= 12
    for courier in couriers.values():
        courier.close()
        assert courier.failed is None
    for each in (*stores.values(), *bells):
        each.close()


def test_parameters_arrive_while_connections_break() -> None:
    two = Two(streams=0, proxies=True)
    two.stores = [parameter_store.SharedStore.create(LARGE), parameter_store.SharedStore.create(LARGE)]
    two.join(mirrors=[Mirrors(5, two.stores[0], "b", ())], publishes=[Publishes(5, two.stores[1], ("a",))])
    writer, reader = two.stores[1].writer([two.couriers[1].bell]), two.stores[0].reader()
    for n in range(12):
        publish(writer, LARGE, n, 1)
        two.proxies[n % 2].cut()
        if n % 3 == 2:
            two.until(lambda n=n: reader.version() == n)
            assert whole(reader.read())
    two.close()


# Compression


def test_what_pays_on_a_slow_wire_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "START_BYTES_PER_S", 1e6)
    monkeypatch.setattr(link, "RATE_BYTES", 2**40)  # the rate stays what it is said to be
    for noise, pays in ((False, True), (True, False)):
        two = Two(schema=FRAMES)
        two.join()
        writer, reader = two.writer(), two.reader()
        rng = np.random.default_rng(0)
        # The first may go before it is known that the other side can read it.
        for n in range(6):
            slot = writer.claim(n, LIMIT_S)
            assert slot is not None
            frame = rng.integers(0, 256, (84, 84, 4)) if noise else np.arange(84)[:, None] // 8 + n
            writer.slots[slot][0][:] = frame.astype(np.uint8) if noise else frame[:, :, None].astype(np.uint8)
            writer.commit()
            message = reader.receive(LIMIT_S)
            assert message is not None
            assert (message.arrays[0] == (frame if noise else frame[:, :, None])).all()
            reader.release(message)
            two.until(lambda far=two.couriers[0]._links["b"]: far.unpacks)
        told = two.couriers[0].tally()
        assert told["packed"][0]["packed"] == pays
        assert (told["packed"][0]["ratio"] > 5) == pays
        sizes = told["carried"]["test"]["sent_bytes"], told["wire"]["sent_bytes"]
        assert (sizes[0] > 1.5 * sizes[1]) == pays
        two.close()


def test_whether_compression_pays_follows_from_the_wire() -> None:
    zeros, noise = bytes(100_000), np.random.default_rng(0).bytes(100_000)
    for payload, rate, pays in ((zeros, 1e6, True), (zeros, 1e15, False), (noise, 1e6, False)):
        one = compression.Compressor(len(payload))
        packed = one.pack(payload, rate)
        assert (packed is not None, one.pays) == (pays, pays)
        if packed is not None:
            assert compression.unpack([memoryview(packed)], len(payload)) == [payload]
            assert compression.unpack([memoryview(packed)], len(payload) + 1) == []
            assert compression.unpack([memoryview(packed[:-1])], len(payload)) == []
    small = compression.Compressor(100)
    assert small.pack(bytes(100), 1.0) is None


def test_a_stream_that_changes_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "TRIAL_EVERY", 10)
    one, zeros, noise = compression.Compressor(10_000), bytes(10_000), np.random.default_rng(0).bytes(10_000)
    assert [one.pack(noise, 1e5) is not None for _ in range(5)] == [False] * 5
    assert [one.pack(zeros, 1e5) is not None for _ in range(7)] == [False] * 5 + [True] * 2
    assert one.pack(noise, 1e5) is None  # what became no smaller is sent as it is
    assert one.pays


def test_without_lz4_nothing_is_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_lz4", lambda: None)
    assert compression.Compressor(10_000).pack(bytes(10_000), 1.0) is None
    assert not compression.unpacks()
    assert compression.unpack([memoryview(b"x")], 100) == []


# Intruders


class Attacked:
    """A host that takes a stream from a courier, and one from somebody who has a key and says what it likes."""

    def __init__(self) -> None:
        self.two = Two(streams=1)
        self.evil = new_keys()
        self.host = self.two.couriers[1]
        self.ring, self.bell = shared_memory.create(PLAIN, 2), shared_memory.SharedBell.create()
        self.two.join(start=False)
        at_a, _ = self.two.hosts()
        joined = self.host._joined
        self.host.join(
            {"a": at_a, "evil": Host("tcp://127.0.0.1:9", self.evil.public)},
            takes=[*joined.takes, Takes(7, "test", self.ring, "evil", self.bell)],
            epoch=self.two.epoch,
        )
        for courier in self.two.couriers:
            courier.start()
        self.call = Call(self.evil, self.host.address, self.two.keys[1].public)
        self.writer, self.reader = self.two.writer(), self.two.reader()
        self.own_reader = self.ring.reader(self.bell, self.host.bell)
        self.n, self.own, self.number = 0, 0, 0

    def say(self, frames: Sequence[Any]) -> None:
        until(lambda: self.call.send(frames))

    def batch(self, parcels: Sequence[wire.Parcel], **head: Any) -> list[Any]:
        """What a courier would send next."""
        wanted = {"epoch": self.two.epoch, "number": self.number + 1, "heard": 0, "fresh": True, "asks": False}
        return wire.encode(wire.BatchHead(**{**wanted, "unpacks": False, **head}), parcels)

    def data(self, sequence: int | None = None, **changed: Any) -> wire.Parcel:
        """The next message."""
        arrays = [np.zeros(shape, dtype) for shape, dtype in PLAIN]
        n = self.own if sequence is None else sequence
        fill(arrays, n)
        body = b"".join(remote_streams.pieces(arrays))
        mark = remote_streams.fingerprint(PLAIN)
        return wire.Data(7, mark, False, n, 1000 + n, n % 7, n % 3, len(body))._replace(**changed), body

    def dropped(self) -> dict[str, int]:
        tally = self.host.tally()
        return tally["dropped"] | tally["rejected"]["reasons"]

    def goes_on(self) -> None:
        """The stream from the courier, and the one from here as soon as what is said is right."""
        send(self.writer, self.n)
        self.reader.release(check(self.reader.receive(LIMIT_S), self.n))
        self.n += 1
        self.say(self.batch([self.data()]))
        self.own_reader.release(check(self.own_reader.receive(LIMIT_S), self.own))
        self.own, self.number = self.own + 1, self.number + 1

    def close(self) -> None:
        self.call.close()
        self.two.close()
        self.ring.close()
        self.bell.close()


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    made = Attacked()
    yield made
    made.close()


def wrong_ones(it: Attacked) -> dict[str, list[tuple[str, list[Any]]]]:
    """By kind: frames that must be dropped, and what they are counted as."""
    good = it.batch([it.data()])
    whole_, body = bytes(good[0]), it.data()[1]
    assert body is not None
    far = 2**62
    return {
        "cut short": [("truncated", [whole_[:cut]]) for cut in range(0, len(whole_), 37)],
        "too long": [("too long", [whole_ + b"x"]), ("too long", [*good, b"frame"])],
        "no courier's": [
            ("no courier's", [b"x" * 40]),
            ("no courier's", it.batch([it.data()], heard=far)),
            ("no courier's", it.batch([it.data()], heard=-1)),
            ("no courier's", it.batch([it.data()], number=0)),
            ("no courier's", it.batch([(wire.Begun(7, 9, 3), None)])),
        ],
        "no entry": [("truncated", [whole_[:33] + b"\x77" + whole_[34:]])],
        "epoch": [
            ("old epoch", it.batch([it.data()], epoch=it.two.epoch - 1)),
            ("old epoch", it.batch([it.data()], epoch=-far)),
            ("early epoch", it.batch([it.data()], epoch=far)),
        ],
        "again": [("again", it.batch([it.data()], number=it.number))] if it.number else [],
        "gap": [("out of order", it.batch([it.data()], number=it.number + 5, fresh=False))],
        "not its own": [
            ("id", it.batch([it.data(id=0)])),
            ("id", it.batch([it.data(id=12345)])),
            ("id", it.batch([(wire.Begun(0, 0, 5), None)])),
            ("id", it.batch([(wire.Released(0, 0), None)])),
            ("id", it.batch([(wire.Released(7, 0), None)])),
            ("id", it.batch([(wire.Reading(7, 1), None)])),
            ("id", it.batch([(wire.PublishedEntry(7, 1, 1, 1, 1, 1), b"x")])),
        ],
        "schema": [("schema", it.batch([it.data(fingerprint=1)]))],
        "sequence": [("sequence", it.batch([it.data(sequence=n)])) for n in (it.own + 1, far, -1)],
        "length": [
            ("length", it.batch([(it.data(length=5)[0], b"12345")])),
            ("length", it.batch([(it.data(length=20_000)[0], bytes(20_000))])),
            ("length", it.batch([(it.data(length=0)[0], b"")])),
            ("length", it.batch([(it.data(packed=True)[0], body)])),
            ("length", it.batch([(it.data(packed=True, length=4)[0], b"\xff" * 4)])),
            ("truncated", it.batch([(it.data(length=2**40)[0], body)])),
            ("truncated", it.batch([(it.data(length=300_000)[0], bytes(200_000))])),
        ],
        "more than there is room for": [("no room", it.batch([it.data(it.own + k) for k in range(3)]))],
        "half right": [("id", it.batch([it.data(), (wire.Released(0, 0), None)]))],
    }  # fmt: skip


KINDS = (
    "cut short", "too long", "no courier's", "no entry", "epoch", "again", "gap", "not its own", "schema", "sequence",
    "length", "more than there is room for", "half right",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_courier_says_is_dropped_and_counted(attacked: Attacked, kind: str) -> None:
    attacked.goes_on()
    wrong = wrong_ones(attacked)
    assert set(wrong) == set(KINDS)
    for cause, frames in wrong[kind]:
        before = attacked.dropped().get(cause, 0)
        attacked.say(frames)
        until(lambda: attacked.dropped().get(cause, 0) > before, attacked.host)  # noqa: B023
        assert attacked.ring.committed() == attacked.own
    attacked.goes_on()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_random_frames_are_dropped(attacked: Attacked, frames: list[bytes]) -> None:
    before = sum(attacked.dropped().values())
    attacked.say(frames)
    until(lambda: sum(attacked.dropped().values()) > before, attacked.host)
    attacked.goes_on()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_batch_with_a_byte_changed_harms_nobody(attacked: Attacked, data: st.DataObject) -> None:
    changed = bytearray(attacked.batch([attacked.data(), (wire.Begun(7, 0, 3), None)])[0])
    # Magic, epoch, and the kind, id, schema and form of an entry; the rest is a peer's own to say.
    at = data.draw(st.sampled_from([*range(4), *range(9, 17), *range(33, 43)]))
    changed[at] ^= data.draw(st.integers(1, 255))
    before = sum(attacked.dropped().values())
    attacked.say([bytes(changed)])
    until(lambda: sum(attacked.dropped().values()) > before, attacked.host)
    attacked.goes_on()


def test_frames_beyond_all_bounds_are_not_taken(attacked: Attacked) -> None:
    attacked.goes_on()
    attacked.say([bytes(3 * wire.FRAME_BYTES)])
    until(lambda: not attacked.call.connected())
    attacked.goes_on()


def test_who_has_no_admitted_key_gets_nothing_in(attacked: Attacked) -> None:
    attacked.goes_on()
    for keys, server in ((new_keys(), attacked.two.keys[1].public), (attacked.evil, new_keys().public)):
        call = Call(keys, attacked.host.address, server)
        before = sum(attacked.dropped().values())
        until(lambda call=call, before=before: call.send([b"x"]) or sum(attacked.dropped().values()) > before + 1)
        assert not call.connections
        call.close()
    attacked.goes_on()


def test_who_knows_only_public_keys_cannot_speak_for_a_peer(attacked: Attacked) -> None:
    """All that travels in the open is public keys and addresses."""
    forged = Keys(attacked.two.keys[0].public, new_keys().secret)
    call = Call(forged, attacked.host.address, attacked.two.keys[1].public)
    before = sum(attacked.dropped().values())
    until(lambda: call.send([b"x"]) or sum(attacked.dropped().values()) > before)
    assert not call.connections
    call.close()
    attacked.goes_on()


def test_who_listens_learns_nothing() -> None:
    secret = np.random.default_rng(1).bytes(64)
    schema = (Field((100_000,), "|u1"), Field((64,), "|u1"))
    two = Two(schema=schema, proxies=True)
    two.stores = [parameter_store.SharedStore.create(schema), parameter_store.SharedStore.create(schema)]
    two.join(mirrors=[Mirrors(5, two.stores[0], "b", ())], publishes=[Publishes(5, two.stores[1], ("a",))])
    writer, reader = two.writer(), two.reader()
    arrays = [np.frombuffer((secret * 2000)[: shape[0]], np.uint8) for shape, _ in schema]
    for _ in range(5):
        slot = writer.claim(0, LIMIT_S)
        assert slot is not None
        for target, array in zip(writer.slots[slot], arrays, strict=True):
            target[:] = array
        writer.commit()
        message = reader.receive(LIMIT_S)
        assert message is not None
        assert bytes(message.arrays[1]) == secret
        reader.release(message)
    two.stores[1].writer([two.couriers[1].bell]).publish(arrays, 1, 1)
    two.until(lambda: two.stores[0].reader().version() == 1)
    for proxy in two.proxies:
        assert len(proxy.seen) > 1000
        assert b"CURVE" in proxy.seen  # it is the real thing
        for size in (8, 16, 64):
            assert secret[:size] not in proxy.seen
        assert b"rnl1" not in proxy.seen
    two.close()
