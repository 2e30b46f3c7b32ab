"""Parameters between hosts, and compression on slow networks."""

import sys

import numpy as np
import pytest
from courier_pair import FRAMES, LARGE, CourierPair
from tcp_hosts import until
from threads import threaded
from transport_peers import LIMIT_S, PLAIN, publish, watch, whole

from runnel.transport import compression, link, parameter_store, shared_memory
from runnel.transport.courier import Courier, Mirrors, Publishes
from runnel.transport.courier import Peer as Host
from runnel.transport.curve import new_keys

# Parameters


def test_of_parameters_the_newest_arrives_whole() -> None:
    two = CourierPair(streams=0)
    two.stores = [parameter_store.SharedStore.create(LARGE), parameter_store.SharedStore.create(LARGE)]
    own_bell = shared_memory.SharedBell.create()
    two.join(
        mirrors=[Mirrors(5, two.stores[0], "b", [own_bell])], publishes=[Publishes(5, two.stores[1], ("a",))]
    )  # fmt: skip
    join = threaded(lambda: publish(two.stores[1].writer([two.couriers[1].bell]), LARGE, 0, 60))
    seen = watch(two.stores[0].reader(), 59, own_bell)
    join()
    two.until(lambda: two.couriers[1].delivered(5))  # and it is known that it arrived
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
        until(lambda: couriers["x"].delivered(1), *couriers.values())
    # What was sent before a host had said anything is sent to it again.
    assert 10 <= couriers["x"].tally()["carried"]["parameters"]["sent_messages"] <= 12
    for courier in couriers.values():
        courier.close()
        assert courier.failed is None
    for each in (*stores.values(), *bells):
        each.close()


def test_parameters_arrive_while_connections_break() -> None:
    two = CourierPair(streams=0, proxies=True)
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
        two = CourierPair(schema=FRAMES)
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
            two.until(lambda here=two.couriers[0]: here.tally()["peers"]["b"]["unpacks"])
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
    monkeypatch.setitem(sys.modules, "lz4.block", None)  # as if it were not installed
    assert compression.Compressor(10_000).pack(bytes(10_000), 1.0) is None
    assert not compression.unpacks()
    assert compression.unpack([memoryview(b"x")], 100) == []
