"""Bells: a sleeping worker wakes for every ring."""

import threading
import time
from functools import partial

import pytest
from threads import threaded
from transport_cases import TransportCase
from transport_peers import (
    LIMIT_S,
    PLAIN,
    Peer,
    check,
    echo,
    send,
)

from runnel.transport import bell, ring, shared_memory


def test_beats_are_counted(transport: TransportCase) -> None:
    one = transport.bell()
    assert one.beats() == 0
    one.beat()
    one.beat()
    assert (one.beats(), one.steps()) == (2, 0)
    one.beat_at(7)
    assert (one.beats(), one.steps()) == (3, 7)


def test_who_waits_sleeps_until_what_it_waits_for_is_there(transport: TransportCase) -> None:
    one = transport.bell()
    there, seen = threading.Event(), []
    waiting = threading.Thread(target=one.wait, args=(lambda: there.is_set() or None, 60.0))
    assert not one.sleeps()
    waiting.start()
    try:
        deadline = time.monotonic() + 30
        while not seen and time.monotonic() < deadline:
            if one.sleeps():
                seen.append(True)
    finally:
        there.set()
        one.ring()
        waiting.join(30)
    assert seen
    assert not one.sleeps()


def test_a_wait_ends_at_its_time_and_no_sooner(transport: TransportCase) -> None:
    one = transport.bell()
    calls = []
    start = time.monotonic()
    assert one.wait(lambda: calls.append(1), 0.05) is None
    assert time.monotonic() - start >= 0.05
    assert one.wait(lambda: None, 0) is None
    assert one.wait(lambda: 0, 0) == 0
    one.ring()
    assert one.wait(lambda: None, 0.01) is None


def test_a_wait_that_raises_leaves_the_bell_usable(transport: TransportCase) -> None:
    one = transport.bell(spin_s=0)
    answers = iter([None, None])
    with pytest.raises(StopIteration):
        one.wait(lambda: next(answers), LIMIT_S)
    one.ring()
    assert one.wait(lambda: None, 0.001) is None


@pytest.mark.parametrize("call", range(2, 6))
def test_a_ring_right_after_the_last_look_keeps_the_owner_awake(transport: TransportCase, call: int) -> None:
    one = transport.bell(spin_s=0)
    calls, made, naps, really_nap = 0, 0, 0, one.nap

    def ready() -> int | None:
        nonlocal calls, made
        calls += 1
        found = made or None
        if calls == call:
            made = calls
            one.ring()
        return found

    def nap(timeout_s: float) -> bool:
        nonlocal naps
        naps += 1
        rung = really_nap(0.0)
        assert rung == bool(made), "it would have slept through the ring"
        return rung

    one.nap = nap
    assert one.wait(ready, LIMIT_S) == call
    assert naps == call // 2  # it looks before each nap and after it


def test_what_was_made_without_a_ring_is_still_found(transport: TransportCase) -> None:
    one = transport.bell(spin_s=0)
    box: list[int] = []
    join = threaded(lambda: (time.sleep(0.03), box.append(3))[1])
    assert one.wait(lambda: box[0] if box else None, LIMIT_S) == 3
    join()


@pytest.mark.parametrize("spin_s", [0.0, 1e-5])
def test_no_ring_is_missed_between_threads(
    transport: TransportCase, monkeypatch: pytest.MonkeyPatch, spin_s: float
) -> None:
    monkeypatch.setattr(bell, "NAP_S", LIMIT_S)  # a missed ring would now be a minute's silence
    rings = [transport.create(PLAIN, 1) for _ in range(2)]
    here, there = transport.bell(spin_s=spin_s), transport.bell(spin_s=spin_s)
    join = threaded(partial(echo, rings[0].reader(there, here), rings[1].writer(there, here), 1000))
    back_and_forth(rings[0].writer(here, there), rings[1].reader(here, there), 1000)
    join()


@pytest.mark.parametrize("spin_s", [0.0, 1e-5])
def test_no_ring_is_missed_between_processes(monkeypatch: pytest.MonkeyPatch, spin_s: float) -> None:
    monkeypatch.setattr(bell, "NAP_S", LIMIT_S)
    rings = [shared_memory.create(PLAIN, 1) for _ in range(2)]
    here, there = shared_memory.SharedBell.create(spin_s), shared_memory.SharedBell.create(spin_s)
    fds = [one.fileno() for one in rings]
    job = {"role": "echo", "rings": fds, "bells": [there.fds, here.fds], "schema": PLAIN, "slots": 1}
    other = Peer(job | {"count": 3000, "spin_s": spin_s, "nap_s": LIMIT_S}, (*fds, *here.fds, *there.fds))
    back_and_forth(rings[0].writer(here, there), rings[1].reader(here, there), 3000)
    other.end()
    for one in (*rings, here, there):
        one.close()


def back_and_forth(writer: ring.RingWriter, reader: ring.RingReader, count: int) -> None:
    for n in range(count):
        assert send(writer, n)
        reader.release(check(reader.receive(LIMIT_S), n))


def test_many_ring_one_bell_at_once(transport: TransportCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "NAP_S", LIMIT_S)
    one = transport.bell(spin_s=0)
    counts = [0] * 4

    def work(i: int) -> None:
        for _ in range(500):
            counts[i] += 1
            one.ring()

    joins = [threaded(partial(work, i)) for i in range(4)]
    seen = 0
    while seen < 2000:
        total = one.wait(lambda: sum(counts) if sum(counts) > seen else None, LIMIT_S)  # noqa: B023
        assert total is not None
        seen = total
    for join in joins:
        join()
