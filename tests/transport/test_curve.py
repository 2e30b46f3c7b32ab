"""Doors and calls: encrypted, for known keys only, and there again whatever happened to the connection."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tcp_proxy import Proxy
from transport_peers import LIMIT_S

from runnel.errors import UserError
from runnel.transport import curve
from runnel.transport.curve import Call, Door, Keys, new_keys


class Open:
    """A door, and what was opened with it."""

    def __init__(self, **options: Any) -> None:
        self.keys = new_keys()
        self.door = Door(self.keys, **options)
        self._calls: list[Call] = []

    def call(self, keys: Keys, address: str = "", server: str = "") -> Call:
        self._calls.append(Call(keys, address or self.door.address, server or self.keys.public))
        return self._calls[-1]

    def until(self, get: Callable[[], Any]) -> Any:
        """The first result of `get` that is not None."""
        end = time.monotonic() + LIMIT_S
        while not (found := get()):
            assert time.monotonic() < end, self.door.counts
            time.sleep(1e-3)
        return found

    def sent(self, call: Call, *frames: bytes) -> tuple[str, list[bytes]]:
        """Sends, and returns what the door receives."""
        came: list[tuple[str, list[memoryview]]] = []

        def send() -> bool:
            found = self.door.receive()
            if found is not None:
                came.append(found)
            return call.send(frames)

        self.until(send)
        name, found = came.pop() if came else self.until(self.door.receive)
        return name, [bytes(frame) for frame in found]

    def close(self) -> None:
        for call in self._calls:
            call.close()
        self.door.close()


@pytest.fixture
def opened() -> Iterator[Open]:
    made = Open()
    yield made
    made.close()


def test_who_is_known_is_heard_and_answered(opened: Open) -> None:
    names = {name: new_keys() for name in ("ann", "bob")}
    for name, keys in names.items():
        opened.door.admit(name, keys.public)
    calls = {name: opened.call(keys) for name, keys in names.items()}
    assert not opened.door.send("ann", [b"too early"])
    for name, call in calls.items():
        assert opened.sent(call, b"", b"from", name.encode()) == (name, [b"", b"from", name.encode()])
    for name, call in calls.items():
        assert opened.door.send(name, [b"to", name.encode()])
        assert [bytes(frame) for frame in opened.until(call.receive)] == [b"to", name.encode()]
    assert opened.door.receive() is None
    assert all(call.receive() is None for call in calls.values())
    assert not opened.door.send("carl", [b"who?"])
    assert not opened.door.counts


def test_other_keys_are_not_heard(opened: Open) -> None:
    known = new_keys()
    opened.door.admit("ann", known.public)
    stranger, mistaken = opened.call(new_keys()), opened.call(known, server=new_keys().public)
    plain = zmq.Context()
    sender = plain.socket(zmq.DEALER)
    sender.linger = 0
    sender.connect(opened.door.address)
    sender.send(b"hello")
    port = int(opened.door.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        opened.until(
            lambda: (
                [opened.door.receive(), stranger.send([b"x"]), mistaken.send([b"x"])] == [None, False, False]
                and opened.door.rejected.reasons["unknown key"] > 1
                and opened.door.rejected.reasons["no handshake"] > 3
            )
        )
    plain.destroy(linger=0)
    assert opened.sent(opened.call(known), b"still here") == ("ann", [b"still here"])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), greets=st.booleans())
def test_any_other_data_does_no_harm(opened: Open, data: bytes, greets: bool) -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    port = int(opened.door.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as raw, contextlib.suppress(OSError):
        raw.sendall((greeting if greets else b"") + data)
        opened.door.receive()
    keys = new_keys()
    opened.door.admit("ann", keys.public)
    call = opened.call(keys)
    assert opened.sent(call, b"still here") == ("ann", [b"still here"])


def test_a_name_goes_by_the_key_and_not_by_what_a_peer_says(opened: Open) -> None:
    ann, bob = new_keys(), new_keys()
    opened.door.admit("ann", ann.public)
    opened.door.admit("bob", bob.public)
    assert opened.sent(opened.call(ann), b"I am ann") == ("ann", [b"I am ann"])
    context = zmq.Context()
    liar = context.socket(zmq.DEALER)
    liar.linger = 0
    liar.routing_id = b"ann"
    liar.curve_publickey, liar.curve_secretkey = bob.public.encode(), bob.secret.encode()
    liar.curve_serverkey = opened.keys.public.encode()
    liar.connect(opened.door.address)
    liar.send(b"I am ann")
    name, frames = opened.until(opened.door.receive)
    assert (name, bytes(frames[0])) == ("bob", b"I am ann")
    context.destroy(linger=0)


def test_who_is_expelled_is_no_longer_heard(opened: Open) -> None:
    keys, later = new_keys(), new_keys()
    opened.door.admit("ann", keys.public)
    call = opened.call(keys)
    opened.sent(call, b"hello")
    opened.door.expel("ann")
    assert not opened.door.send("ann", [b"still there?"])
    assert call.send([b"still here"])
    opened.until(lambda: opened.door.receive() is not None or opened.door.counts["expelled"])
    # Another has the name now: the old connection is not its.
    opened.door.admit("ann", later.public)
    assert call.send([b"still here"])
    assert opened.sent(opened.call(later), b"the new one") == ("ann", [b"the new one"])
    opened.until(lambda: opened.door.receive() is not None or opened.door.counts["expelled"] == 2)


def test_who_calls_before_it_is_known_is_heard_when_it_is(opened: Open) -> None:
    keys = new_keys()
    call = opened.call(keys)
    opened.until(lambda: call.send([b"x"]) or opened.door.receive() or opened.door.rejected.reasons["unknown key"])
    opened.door.admit("ann", keys.public)
    assert opened.sent(call, b"hello") == ("ann", [b"hello"])


def test_a_call_that_was_cut_is_made_again_and_answered_where_it_is(opened: Open) -> None:
    keys = new_keys()
    opened.door.admit("ann", keys.public)
    with Proxy(opened.door.address) as proxy:
        call = opened.call(keys, proxy.address)
        for n in range(4):
            assert opened.sent(call, b"%d" % n) == ("ann", [b"%d" % n])
            assert opened.until(call.connected)
            assert call.connections == n + 1
            assert opened.door.send("ann", [b"%d" % n])
            assert [bytes(frame) for frame in opened.until(call.receive)] == [b"%d" % n]
            proxy.cut()
            opened.until(lambda: not call.connected())


def test_a_network_that_says_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(curve, "SILENCE_MS", 300)
    opened = Open()
    keys = new_keys()
    opened.door.admit("ann", keys.public)
    with Proxy(opened.door.address) as proxy:
        call = opened.call(keys, proxy.address)
        opened.sent(call, b"before")
        proxy.dead = True
        opened.until(lambda: not call.connected())
        proxy.dead = False
        assert opened.sent(call, b"after") == ("ann", [b"after"])
    opened.close()


def test_frames_that_are_too_long_are_not_taken() -> None:
    opened = Open(most_bytes=10_000)
    keys, other = new_keys(), new_keys()
    opened.door.admit("ann", keys.public)
    opened.door.admit("bob", other.public)
    call = opened.call(keys)
    assert opened.sent(call, bytes(9_000))[1] == [bytes(9_000)]
    assert call.send([bytes(20_000)])
    opened.until(lambda: opened.door.receive() is not None or not call.connected())
    assert opened.sent(opened.call(other), b"hello") == ("bob", [b"hello"])
    assert opened.sent(call, b"again") == ("ann", [b"again"])
    opened.close()


def test_doors_keep_separate_lists() -> None:
    first, second = Open(), Open()
    keys = new_keys()
    first.door.admit("ann", keys.public)
    assert first.sent(first.call(keys), b"hello") == ("ann", [b"hello"])
    refused = second.call(keys)
    reasons = second.door.rejected.reasons
    second.until(lambda: refused.send([b"hello"]) or second.door.receive() or reasons["unknown key"])
    first.close()
    second.close()


@pytest.mark.parametrize(
    "interface", ["*", "0.0.0.0", "::", "0", "", "::ffff:0.0.0.0", "localhost", "eth0", "224.0.0.1", "1.2.3.4; *"]
)
def test_nothing_listens_on_all_addresses(interface: str) -> None:
    with pytest.raises(UserError, match="give one address of this machine"):
        Door(new_keys(), interface)


def test_an_address_of_another_machine_is_reported() -> None:
    with pytest.raises(UserError, match=r"cannot listen at 192\.0\.2\.1"):
        Door(new_keys(), "192.0.2.1")


def test_addresses_of_the_sixth_version() -> None:
    try:
        opened = Open(interface="::1")
    except UserError:
        pytest.skip("this machine has no IPv6")
    keys = new_keys()
    opened.door.admit("ann", keys.public)
    assert opened.sent(opened.call(keys), b"hello") == ("ann", [b"hello"])
    opened.close()


@pytest.mark.parametrize("public", ["", "short", "x" * 39 + "\N{SNOWMAN}", "0" * 45])
def test_what_is_no_key_is_refused(opened: Open, public: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        opened.door.admit("ann", public)
