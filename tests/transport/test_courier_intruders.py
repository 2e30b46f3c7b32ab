"""Couriers drop and count what no courier sends, and take nothing from a peer that is not admitted."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from courier_pair import CourierPair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tcp_hosts import until
from transport_peers import LIMIT_S, PLAIN, check, fill, send

from runnel.transport import parameter_store, remote_streams, shared_memory, wire
from runnel.transport.courier import Mirrors, Publishes, Takes
from runnel.transport.courier import Peer as Host
from runnel.transport.curve import Call, Keys, new_keys
from runnel.transport.stream import Field


class Attacked:
    """A host that receives a stream from a courier, and an intruder with a key that sends anything."""

    def __init__(self) -> None:
        self.two = CourierPair(streams=1)
        self.evil = new_keys()
        self.host = self.two.couriers[1]
        self.ring, self.bell = shared_memory.create(PLAIN, 2), shared_memory.SharedBell.create()
        self.two.join(start=False)
        at_a, _ = self.two.hosts()
        self.host.join(
            {"a": at_a, "evil": Host("tcp://127.0.0.1:9", self.evil.public)},
            takes=[*self.two.takes(), Takes(7, "test", self.ring, "evil", self.bell)],
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
        """The next messages of a real courier."""
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
def test_a_batch_with_a_byte_changed_does_no_harm(attacked: Attacked, data: st.DataObject) -> None:
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
    two = CourierPair(schema=schema, proxies=True)
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
