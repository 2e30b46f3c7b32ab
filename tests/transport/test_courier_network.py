"""Couriers over a network that breaks, stalls or is slow."""

import itertools
import threading
from functools import partial

import numpy as np
import pytest
from courier_pair import LARGE, CourierPair
from tcp_proxy import Proxy
from threads import threaded
from transport_peers import LIMIT_S, check, consume, produce, send

from runnel.transport import curve, link


def test_nothing_is_lost_or_doubled_while_connections_break() -> None:
    two = CourierPair(streams=3, proxies=True)
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
    monkeypatch.setattr(curve, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(curve, "SILENCE_MS", 300)
    two = CourierPair(proxies=True)
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
    two = CourierPair()
    two.join()
    writer, reader = two.writer(), two.reader()
    send(writer, 0)
    reader.release(check(reader.receive(LIMIT_S), 0))
    with two.couriers[1].paused():
        send(writer, 1)
        two.until(lambda: (came := two.couriers[1].door.receive()) and len(came[1][0]) > 500)
    reader.release(check(reader.receive(LIMIT_S), 1))
    send(writer, 2)
    reader.release(check(reader.receive(LIMIT_S), 2))
    two.close()


def test_a_slow_network_is_waited_for() -> None:
    two = CourierPair(schema=LARGE, slots=2)
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
