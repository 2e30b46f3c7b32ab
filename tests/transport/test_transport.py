"""Every transport under one contract: order, back-pressure, nothing lost, doubled or torn, ends that close or die."""

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tcp_hosts import Ring as TcpRing
from tcp_hosts import close_hosts
from threads import threaded
from transport_peers import (
    LIMIT_S,
    PLAIN,
    DyingWords,
    HookedWords,
    Peer,
    check,
    consume,
    echo,
    end_of,
    fill,
    holds,
    produce,
    send,
)

from runnel.errors import UserError
from runnel.transport import bell, in_process, memory, ring, shared_memory
from runnel.transport.stream import Closed, Field, Message, Schema, schema_of


@dataclass(frozen=True)
class Transport:
    """How the tests make a stream and bells of one kind."""

    create: Callable[[Schema, int], Any]  # a ring, or what is used like one
    bell: Callable[..., Any]


TRANSPORTS = {
    "in process": Transport(in_process.create, in_process.InProcessBell),
    "shared memory": Transport(shared_memory.create, shared_memory.SharedBell.create),
    "tcp": Transport(TcpRing, shared_memory.SharedBell.create),
}
BETWEEN = ("shared memory", "tcp")
"""Those whose ends can be in different processes."""


class Stream:
    """A stream with both ends here."""

    def __init__(self, transport: Transport, schema: Schema = PLAIN, slots: int = 3) -> None:
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


@pytest.fixture(autouse=True)
def _no_peer_outlives_its_test() -> Iterator[None]:
    yield
    Peer.kill_all()


@pytest.fixture(autouse=True, scope="module")
def _no_courier_outlives_the_module() -> Iterator[None]:
    yield
    close_hosts()


@pytest.fixture(params=list(TRANSPORTS))
def transport(request: pytest.FixtureRequest) -> Transport:
    return TRANSPORTS[request.param]


@pytest.fixture
def stream(transport: Transport) -> Iterator[Stream]:
    made = Stream(transport)
    yield made
    made.close()


@pytest.fixture(params=BETWEEN)
def between(request: pytest.FixtureRequest) -> Iterator[Stream]:
    """A stream one end of which another process may take."""
    made = Stream(TRANSPORTS[request.param])
    yield made
    made.close()


def peer(between: Stream, role: str, **job: Any) -> Peer:
    """Another process at one end of `between`."""
    reads, made = role in ("consume", "read_and_die"), between.ring
    own, other = between.writer_bell.fds, between.reader_bell.fds
    if reads:
        own, other = other, own
    if isinstance(made, TcpRing):  # it meets the courier of its host
        other = (made.hosts.second if reads else made.hosts.first).bell.fds
        made = made.far if reads else made.near
    fd = made.fileno()
    job |= {"role": role, "rings": [fd], "bells": [own, other], "schema": PLAIN, "slots": made.capacity}
    return Peer(job, (fd, *own, *other))


# One message


def test_a_message_arrives_as_it_was_written(stream: Stream) -> None:
    assert stream.reader.receive(0) is None
    assert not stream.reader.peek()
    assert send(stream.writer, 0)
    assert stream.reader.peek()
    message = check(stream.reader.receive(0), 0)
    assert [a.shape for a in message.arrays] == [(3, 50), (), (0, 2)]
    assert stream.reader.receive(0) is None


def test_arrays_begin_at_multiples_of_64_bytes(stream: Stream) -> None:
    send(stream.writer, 0)
    for array in check(stream.reader.receive(0), 0).arrays:
        assert array.ctypes.data % 64 == 0


@pytest.mark.parametrize("name", [name for name in TRANSPORTS if name != "tcp"])
def test_within_a_host_what_is_read_is_the_slot_that_was_written(name: str) -> None:
    # Hosts have no memory in common: over TCP a message is copied, once on each side.
    stream = Stream(TRANSPORTS[name])
    slot = stream.writer.claim(0, 0)
    assert slot is not None
    stream.writer.commit()
    message = stream.reader.receive(0)
    assert message is not None
    assert message.slot == slot
    stream.writer.slots[slot][0][:] = 7
    assert (message.arrays[0] == 7).all()
    stream.close()


def test_a_claim_announces_its_version_until_the_commit(stream: Stream) -> None:
    assert stream.reader.begun() is None
    stream.writer.claim(-5, 0)
    assert stream.reader.begun() == -5
    assert stream.reader.pending() == 0
    stream.writer.commit()
    assert stream.reader.begun() is None
    assert stream.reader.pending() == stream.ring.pending() == stream.ring.committed() == 1


def test_claiming_again_gives_the_same_slot_with_the_new_version(stream: Stream) -> None:
    slot = stream.writer.claim(1, 0)
    assert stream.writer.claim(2, 0) == slot
    assert stream.reader.begun() == 2
    stream.writer.commit()
    message = stream.reader.receive(0)
    assert message is not None
    assert message.version == 2


def test_misuse_is_told(stream: Stream) -> None:
    with pytest.raises(ValueError, match="claim one first"):
        stream.writer.commit()
    send(stream.writer, 0)
    message = check(stream.reader.receive(0), 0)
    stream.reader.release(message)
    with pytest.raises(ValueError, match="not held"):
        stream.reader.release(message)
    with pytest.raises(ValueError, match="at least 1"):
        stream.transport.create(PLAIN, 0)
    with pytest.raises(ValueError, match="Python objects"):
        stream.transport.create((Field((), "O"),), 1)


def test_a_schema_can_be_told_in_json_and_knows_the_dtypes_of_jax(transport: Transport) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = [np.zeros((2, 3), ml_dtypes.bfloat16), np.zeros((), bool), np.zeros(4, np.float64)]
    schema = json.loads(json.dumps(schema_of(arrays)))
    made = Stream(transport, schema)
    assert schema_of(made.writer.slots[0]) == schema_of(arrays)
    made.close()


# Order and back-pressure


def test_a_full_stream_makes_its_writer_wait_and_overwrites_nothing(stream: Stream) -> None:
    for n in range(3):
        assert stream.writer.free()
        assert send(stream.writer, n)
    assert not stream.writer.free()
    assert stream.writer.claim(0, 0) is None
    assert stream.writer.claim(0, 0.03) is None
    assert stream.reader.begun() is None
    assert stream.ring.pending() == stream.ring.capacity == 3
    first = check(stream.reader.receive(0), 0)
    assert stream.writer.claim(0, 0) is None, "received is not released"
    stream.reader.release(first)
    assert stream.writer.free()
    assert send(stream.writer, 3, 0)
    for n in (1, 2, 3):
        stream.reader.release(check(stream.reader.receive(0), n))


def test_slots_come_free_in_whatever_order_they_are_released(stream: Stream) -> None:
    for n in range(3):
        send(stream.writer, n)
    zero, one, two = (check(stream.reader.receive(0), n) for n in range(3))
    for n, last in ((3, two), (4, one)):
        stream.reader.release(last)
        assert stream.writer.claim(1000 + n, 0) == last.slot
        fill(stream.writer.slots[last.slot], n)
        stream.writer.commit(rows=n % 7, tag=n % 3)
        check(stream.reader.receive(0), n)
        check(zero, 0)
    assert not stream.writer.free()


DTYPES = st.sampled_from(["|u1", "|b1", "<i2", "<f4", "<f8", "<c16", "<i8", "<U3", "|S5", "<M8[s]", "|V7"])
SCHEMAS = st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=3).map(tuple), DTYPES), max_size=4).map(
    lambda fields: tuple(Field(*f) for f in fields)
)
STEPS = st.lists(st.sampled_from(["send", "send", "receive", "release"]), max_size=60)


@pytest.mark.parametrize("name", TRANSPORTS)
@settings(max_examples=40, deadline=None)
@given(schema=SCHEMAS, slots=st.integers(1, 5), steps=STEPS, data=st.data())
def test_nothing_is_lost_doubled_or_changed_whatever_the_order(
    name: str, schema: Schema, slots: int, steps: list[str], data: st.DataObject
) -> None:
    stream = Stream(TRANSPORTS[name], schema, slots)
    sent = received = 0
    held: list[Message] = []
    for step in steps:
        if step == "send":
            room = sent - received + len(held) < slots
            assert stream.writer.free() == room
            assert send(stream.writer, sent, 0) == room
            sent += room
        elif step == "receive":
            assert stream.reader.pending() == stream.ring.pending() == sent - received
            assert stream.reader.peek() == (sent > received)
            message = stream.reader.receive(0)
            if sent == received:
                assert message is None
            else:
                held.append(check(message, received))
                received += 1
        elif held:
            stream.reader.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
        for message in held:
            assert holds(message.arrays, message.sequence)
    stream.close()


@pytest.mark.parametrize(("slots", "hold"), [(1, 1), (2, 2), (5, 3)])
def test_a_thousand_messages_between_threads(transport: Transport, slots: int, hold: int) -> None:
    stream = Stream(transport, slots=slots)
    join = threaded(partial(produce, stream.writer, 1000))
    consume(stream.reader, 1000, hold)
    join()
    stream.close()


@pytest.mark.parametrize("there", ["produce", "consume"])
def test_thousands_of_messages_between_processes(between: Stream, there: str) -> None:
    other = peer(between, there, count=5000, hold=2)
    if there == "produce":
        consume(between.reader, 5000, 2)
    else:
        produce(between.writer, 5000)
    other.end()


@pytest.mark.parametrize("name", BETWEEN)
def test_one_reader_of_many_writers(name: str) -> None:
    streams = [Stream(TRANSPORTS[name]) for _ in range(4)]
    own_bell = streams[0].reader_bell
    for one in streams[1:]:
        one.reader_bell.close()
        one.reader_bell = own_bell
    # Ends as workers have them: all at once, nobody waits until everything is carried.
    plain = {"plain": True} if name == "tcp" else {}
    readers = [one.ring.reader(own_bell, one.writer_bell, **plain) for one in streams]
    others = [peer(one, "produce", count=500) for one in streams[:2]]
    joins = [threaded(partial(produce, one.new_writer(), 500)) for one in streams[2:]]
    got = [0] * 4
    open_ones = set(range(4))

    def some() -> int | None:
        return next((i for i in open_ones if readers[i].peek()), None)

    while open_ones:
        i = own_bell.wait(some, LIMIT_S)
        assert i is not None
        try:
            readers[i].release(check(readers[i].receive(0), got[i]))
            got[i] += 1
        except Closed:
            open_ones.remove(i)
    assert got == [500] * 4
    for other in others:
        other.end()
    for join in joins:
        join()
    for one in streams:
        one.close()


# At the same moment


@pytest.mark.parametrize("accesses", range(1, 16))
def test_a_commit_and_an_end_while_the_reader_looks(stream: Stream, accesses: int) -> None:
    def act() -> None:
        send(stream.writer, 0, 0)
        stream.writer.close()

    hooked = HookedWords(stream.reader._words, accesses, act)
    stream.reader._words = hooked  # pyright: ignore
    while not stream.reader.peek() or hooked.left > 0:
        pass
    stream.reader.release(check(stream.reader.receive(0), 0))
    assert not end_of(stream.reader).lost


@pytest.mark.parametrize("accesses", range(1, 8))
def test_a_commit_and_an_end_while_the_reader_receives(stream: Stream, accesses: int) -> None:
    def act() -> None:
        send(stream.writer, 0, 0)
        stream.writer.close()

    hooked = HookedWords(stream.reader._words, accesses, act)
    stream.reader._words = hooked  # pyright: ignore
    message = None
    while message is None:
        message = stream.reader.receive(0)
    stream.reader.release(check(message, 0))
    assert not end_of(stream.reader).lost


@pytest.mark.parametrize("accesses", range(1, 16))
def test_what_is_on_its_way_is_begun_or_pending_at_every_moment(stream: Stream, accesses: int) -> None:
    looked: list[tuple[int | None, int]] = []

    def look() -> None:
        looked.append((stream.reader.begun(), stream.reader.pending()))

    slot = stream.writer.claim(7, 0)
    stream.writer._words = HookedWords(stream.writer._words, accesses, look)  # pyright: ignore
    stream.writer.commit()
    assert slot is not None
    look()
    assert all(begun == 7 or pending == 1 for begun, pending in looked)
    assert looked[-1] == (None, 1)


@pytest.mark.parametrize("accesses", range(1, 10))
def test_a_release_while_the_writer_looks(stream: Stream, accesses: int) -> None:
    for n in range(3):
        send(stream.writer, n)
    held = [check(stream.reader.receive(0), n) for n in range(3)]
    hooked = HookedWords(stream.writer._words, accesses, lambda: stream.reader.release(held[1]))
    stream.writer._words = hooked  # pyright: ignore
    while hooked.left > 0:
        stream.writer.free()
    assert send(stream.writer, 3, 0)
    assert check(stream.reader.receive(0), 3).slot == held[1].slot
    check(held[0], 0)
    check(held[2], 2)


# Closing


def test_the_reader_gets_what_was_committed_and_then_the_end(stream: Stream) -> None:
    send(stream.writer, 0)
    send(stream.writer, 1)
    stream.writer.claim(5, 0)
    stream.writer.close()
    stream.writer.close()
    assert stream.reader.begun() is None
    check(stream.reader.receive(0), 0)
    check(stream.reader.receive(0), 1)
    for _ in range(2):
        assert stream.reader.peek()
        with pytest.raises(Closed, match="writer closed") as closed:
            stream.reader.receive(LIMIT_S)
        assert not closed.value.lost
    with pytest.raises(Closed, match="this end"):
        stream.writer.claim(0, 0)
    with pytest.raises(ValueError, match="claim one first"):
        stream.writer.commit()


def test_the_writer_is_told_when_the_reader_closes(stream: Stream) -> None:
    stream.writer.claim(0, 0)
    stream.reader.close()
    stream.reader.close()
    stream.writer.commit()  # what was under way does no harm
    assert stream.writer.free()
    with pytest.raises(Closed, match="reader closed") as closed:
        stream.writer.claim(1, LIMIT_S)
    assert not closed.value.lost
    assert stream.reader.peek()
    with pytest.raises(Closed, match="this end"):
        stream.reader.receive(0)


@pytest.mark.parametrize("end", ["writer", "reader"])
@pytest.mark.parametrize("how", ["closed", "lost"])
def test_a_wait_under_way_ends_when_the_other_end_does(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, end: Any, how: str
) -> None:
    monkeypatch.setattr(bell, "NAP_S", LIMIT_S)  # nothing but the bell ends it
    for n in range(3):
        send(stream.writer, n)
    if end == "writer":
        for n in range(3):
            check(stream.reader.receive(0), n)
    waiting = threading.Event()
    caught: list[Closed] = []

    def wait() -> None:
        waiting.set()
        try:
            stream.reader.receive(LIMIT_S) if end == "writer" else stream.writer.claim(0, LIMIT_S)
        except Closed as closed:
            caught.append(closed)

    join = threaded(wait)
    waiting.wait(LIMIT_S)
    time.sleep(0.01)  # likely asleep by now; if not, the end is seen before
    if how == "closed":
        (stream.writer if end == "writer" else stream.reader).close()
    else:
        stream.ring.lost(end)
        (stream.reader_bell if end == "writer" else stream.writer_bell).ring()
    join()
    assert [c.lost for c in caught] == [how == "lost"]


def test_a_writer_that_closed_and_then_died_is_not_lost(stream: Stream) -> None:
    stream.writer.close()
    stream.ring.lost("writer")
    with pytest.raises(Closed) as closed:
        stream.reader.receive(0)
    assert not closed.value.lost


# Dying


def goes_on(stream: Stream, received: int, held: list[Message], sent: int) -> None:
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


@pytest.mark.parametrize("at", ["before claim", "after claim", "half-written", "before commit", "after commit"])
def test_a_writer_is_killed_and_replaced(between: Stream, at: str) -> None:
    other = peer(between, "write_and_die", count=2, at=at)
    other.end(-signal.SIGKILL)
    sent = 3 if at == "after commit" else 2
    assert between.reader.begun() == (None if at in ("before claim", "after commit") else 1002)
    assert between.reader.pending() == sent
    first = check(between.reader.receive(0), 0)
    between.ring.lost("writer")
    assert between.reader.begun() is None
    for n in range(1, sent):
        between.reader.release(check(between.reader.receive(0), n))
    with pytest.raises(Closed) as closed:
        between.reader.receive(LIMIT_S)
    assert closed.value.lost

    between.ring.reset_end("writer")
    assert not between.reader.peek()
    between.writer = between.new_writer()
    goes_on(between, sent, [first], sent)


@pytest.mark.parametrize("at", ["after receive", "before release", "after release"])
def test_a_reader_is_killed_and_replaced(between: Stream, at: str) -> None:
    for n in range(3):
        send(between.writer, n)
    peer(between, "read_and_die", count=3, at=at).end(-signal.SIGKILL)
    between.ring.lost("reader")
    assert between.writer.free()
    with pytest.raises(Closed) as closed:
        between.writer.claim(0, LIMIT_S)
    assert closed.value.lost

    between.ring.reset_end("reader")
    unreleased = {"after receive": [0, 1, 2], "before release": [1, 2], "after release": [1]}[at]
    assert between.writer.free() == (at != "after receive")
    sent = 3
    while between.writer.free():
        send(between.writer, sent, 0)
        sent += 1
    between.reader = between.new_reader()
    assert between.reader.pending() == len(unreleased) + sent - 3
    assert between.reader.peek()
    held = [check(between.reader.receive(0), n) for n in unreleased]
    goes_on(between, 3, held, sent)


def test_what_a_lost_reader_held_comes_again_in_the_order_it_was_sent(stream: Stream) -> None:
    for n in range(3):
        send(stream.writer, n)
    zero, _, two = (check(stream.reader.receive(0), n) for n in range(3))
    stream.reader.release(two)
    stream.reader.release(zero)
    send(stream.writer, 3)
    check(stream.reader.receive(0), 3)
    stream.ring.lost("reader")
    stream.ring.reset_end("reader")
    stream.reader = stream.new_reader()
    send(stream.writer, 4)
    for n in (1, 3, 4):
        stream.reader.release(check(stream.reader.receive(0), n))


@pytest.mark.parametrize("name", TRANSPORTS)
@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 4),
    steps=STEPS,
    who=st.sampled_from(["writer", "reader"]),
    stores=st.integers(0, 60),
    data=st.data(),
)
def test_an_end_that_dies_between_any_two_stores_is_replaced(
    name: str, slots: int, steps: list[str], who: str, stores: int, data: st.DataObject
) -> None:
    stream = Stream(TRANSPORTS[name], slots=slots)
    end = stream.writer if who == "writer" else stream.reader
    end._words = DyingWords(end._words, stores)  # pyright: ignore
    sent = received = 0
    held: list[Message] = []
    try:
        for step in steps:
            if step == "send":
                sent += send(stream.writer, sent, 0)
            elif step == "receive" and sent > received:
                held.append(check(stream.reader.receive(0), received))
                received += 1
            elif step == "release" and held:
                given_back = held[data.draw(st.integers(0, len(held) - 1))]
                stream.reader.release(given_back)
                held.remove(given_back)
    except DyingWords.Died:
        assert sent <= stream.ring.committed() <= sent + 1
        sent = stream.ring.committed()  # a message counts from its commit on
    if who == "writer":
        stream.ring.lost("writer")
        stream.ring.reset_end("writer")
        stream.writer = stream.new_writer()
        assert stream.writer.told() == ((sent - 1) % 3 if sent else None)  # what was said last
    else:
        stream.ring.lost("reader")
        stream.ring.reset_end("reader")
        stream.reader = stream.new_reader()
        # All it had not given back comes again, in order; the store that was to say "received" may not have happened.
        again = sorted(m.sequence for m in held)
        held = [check(stream.reader.receive(0), n) for n in again]
    assert stream.reader.begun() is None
    goes_on(stream, received, held, sent)
    stream.close()


def test_a_cleared_ring_is_like_a_new_one(stream: Stream) -> None:
    for n in range(3):
        send(stream.writer, n)
    check(stream.reader.receive(0), 0)
    stream.writer.claim(7, 0)
    stream.reader.close()
    stream.ring.clear()
    stream.writer, stream.reader = stream.new_writer(), stream.new_reader()
    assert stream.writer.told() is None
    assert (stream.ring.committed(), stream.ring.pending(), stream.reader.begun()) == (0, 0, None)
    goes_on(stream, 0, [], 0)


# Bells


def test_beats_are_counted(transport: Transport) -> None:
    one = transport.bell()
    assert one.beats() == 0
    one.beat()
    one.beat()
    assert (one.beats(), one.steps()) == (2, 0)
    one.beat_at(7)
    assert (one.beats(), one.steps()) == (3, 7)


def test_who_waits_sleeps_until_what_it_waits_for_is_there(transport: Transport) -> None:
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


def test_a_wait_ends_at_its_time_and_no_sooner(transport: Transport) -> None:
    one = transport.bell()
    calls = []
    start = time.monotonic()
    assert one.wait(lambda: calls.append(1), 0.05) is None
    assert time.monotonic() - start >= 0.05
    assert one.wait(lambda: None, 0) is None
    assert one.wait(lambda: 0, 0) == 0
    one.ring()
    assert one.wait(lambda: None, 0.01) is None


def test_a_wait_that_raises_leaves_the_bell_usable(transport: Transport) -> None:
    one = transport.bell(spin_s=0)
    answers = iter([None, None])
    with pytest.raises(StopIteration):
        one.wait(lambda: next(answers), LIMIT_S)
    one.ring()
    assert one.wait(lambda: None, 0.001) is None


@pytest.mark.parametrize("call", range(2, 6))
def test_a_ring_right_after_the_last_look_keeps_the_owner_awake(transport: Transport, call: int) -> None:
    one = transport.bell(spin_s=0)
    calls = made = naps = 0

    def ready() -> int | None:
        nonlocal calls, made
        calls += 1
        found = made or None
        if calls == call:
            made = calls
            one.ring()
        return found

    def nap(timeout_s: float) -> None:
        nonlocal naps
        naps += 1
        rung = one._events.poll(0) if isinstance(one, shared_memory.SharedBell) else one._lock.acquire(blocking=False)
        assert bool(rung) == bool(made), "it would have slept through the ring"

    one._nap = nap
    assert one.wait(ready, LIMIT_S) == call
    assert naps == call // 2  # it looks before each nap and after it


def test_what_was_made_without_a_ring_is_still_found(transport: Transport) -> None:
    one = transport.bell(spin_s=0)
    box: list[int] = []
    join = threaded(lambda: (time.sleep(0.03), box.append(3))[1])
    assert one.wait(lambda: box[0] if box else None, LIMIT_S) == 3
    join()


@pytest.mark.parametrize("spin_s", [0.0, 1e-5])
def test_no_ring_is_missed_between_threads(
    transport: Transport, monkeypatch: pytest.MonkeyPatch, spin_s: float
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


def test_many_ring_one_bell_at_once(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
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


# Memory and descriptors


def held() -> tuple[int, int]:
    """Descriptors and pieces of shared memory."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd:runnel")


def test_closing_a_stream_between_hosts_leaves_nothing_but_the_couriers() -> None:
    Stream(TRANSPORTS["tcp"]).close()
    before = held()
    for _ in range(5):
        stream = Stream(TRANSPORTS["tcp"])
        send(stream.writer, 0)
        check(stream.reader.receive(0), 0)
        stream.close()
        del stream
    assert held() == before


def test_closing_leaves_no_descriptor_and_no_memory() -> None:
    before = held()
    for _ in range(5):
        stream = Stream(TRANSPORTS["shared memory"])
        assert isinstance(stream.ring, shared_memory.SharedRing)
        again = shared_memory.SharedRing.attach(os.dup(stream.ring.fileno()), PLAIN, 3)
        event, page = stream.reader_bell.fds
        ringer = shared_memory.SharedBell.attach((os.dup(event), os.dup(page)))
        reader = again.reader(stream.reader_bell, ringer)
        send(stream.writer, 0)
        check(reader.receive(0), 0)
        for one in (again, ringer, stream):
            one.close()
            one.close()
        ringer.ring()
        del stream, again, ringer, reader, one
    assert held() == before


def test_views_outlive_what_was_closed(stream: Stream) -> None:
    send(stream.writer, 0)
    message = check(stream.reader.receive(0), 0)
    stream.close()
    check(message, 0)
    assert stream.ring.committed() == 1


def test_a_refused_attachment_says_why_and_leaves_nothing() -> None:
    made = shared_memory.create(PLAIN, 2)
    before = held()
    with pytest.raises(ValueError, match="both sides need the same"):
        shared_memory.SharedRing.attach(os.dup(made.fileno()), PLAIN, 3)
    with pytest.raises(ValueError, match="not a ring of this schema"):
        shared_memory.SharedRing.attach(os.dup(made.fileno()), (*PLAIN[:2], Field((0, 3), "<f4")), 2)
    with pytest.raises(ValueError, match="bytes"):
        shared_memory.SharedBell.attach((os.dup(0), os.dup(made.fileno())))
    assert held() == before
    made.close()


def test_nobody_can_take_memory_from_under_a_stream() -> None:
    made = shared_memory.create(PLAIN, 2)
    with pytest.raises(PermissionError):
        os.ftruncate(made.fileno(), 0)
    made.close()


def test_a_damaged_stream_is_refused(stream: Stream) -> None:
    send(stream.writer, 0)
    stream.ring._words[ring._ORDER] = 77
    with pytest.raises(RuntimeError, match="damaged"):
        stream.reader.receive(0)
    stream.ring._words[ring._ORDER] = 1
    with pytest.raises(RuntimeError, match="damaged"):
        stream.reader.receive(0)


def test_too_few_descriptors_are_told_in_words() -> None:
    other = Peer({"role": "exhaust"}, ())
    told = other.line()
    other.end()
    assert len(told) == 3
    for text in told:
        assert "file descriptor" in text
        assert "ulimit -n" in text


def test_more_memory_than_any_machine_has_is_told_in_words() -> None:
    before = held()
    with pytest.raises(UserError, match="the system refused"):
        shared_memory.create((Field((2**60,), "|u1"),), 2)
    assert held() == before


def test_killing_a_whole_family_leaves_nothing() -> None:
    names = set(os.listdir("/dev/shm"))
    other = Peer({"role": "family"}, (), new_group=True)
    children = other.line()
    assert len(children) == 3
    os.killpg(other.process.pid, signal.SIGKILL)
    other.end(-signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while any(_alive(child) for child in children):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert not {n for n in set(os.listdir("/dev/shm")) - names if "runnel" in n}


def _alive(pid: int) -> bool:
    """Whether the process still has its memory."""
    try:
        return bool(Path(f"/proc/{pid}/maps").read_text())
    except OSError:
        return False


def test_transports_never_import_jax() -> None:
    other = Peer({"role": "modules"}, ())
    modules = other.line()
    other.end()
    assert "numpy" in modules
    assert not {"jax", "jaxlib", "multiprocessing", "pickle5"} & set(modules)


# Room


def machine(at: Path, meminfo: str, groups: str, files: dict[str, str]) -> dict[str, Path]:
    proc, cgroups = at / "proc", at / "cgroup"
    for path, text in ((proc / "meminfo", meminfo), (proc / "self/cgroup", groups)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, text in files.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"proc": proc, "cgroups": cgroups}


def test_room_is_what_the_machine_has_left(tmp_path: Path) -> None:
    here = machine(tmp_path, "MemTotal: 9999 kB\nMemAvailable:    2048 kB\n", "0::/\n", {})
    shared_memory.check_room(2 * 2**20, **here)
    with pytest.raises(UserError, match=r"need 3\.0 MiB .* machine has 2\.0 MiB; use fewer --envs"):
        shared_memory.check_room(3 * 2**20, **here)


def test_room_is_what_the_narrowest_group_leaves(tmp_path: Path) -> None:
    files = {
        "job/memory.max": "4194304\n",
        "job/memory.current": "3145728\n",
        "job/memory.stat": "anon 5\ninactive_file 1048576\n",
        "job/step/memory.max": "max\n",
        "job/step/memory.current": "1\n",
    }
    here = machine(tmp_path, "MemAvailable: 9999999 kB\n", "0::/job/step\n", files)
    shared_memory.check_room(2 * 2**20, **here)
    with pytest.raises(UserError, match=r"memory limit leaves 2\.0 MiB"):
        shared_memory.check_room(2 * 2**20 + 1, **here)


def test_room_in_groups_of_the_first_version(tmp_path: Path) -> None:
    files = {"memory/a/memory.limit_in_bytes": "1000\n", "memory/a/memory.usage_in_bytes": "400\n"}
    here = machine(tmp_path, "MemAvailable: 9999999 kB\n", "5:cpu:/a\n4:memory:/a\n", files)
    with pytest.raises(UserError, match="leaves 600 B"):
        shared_memory.check_room(601, **here)


def test_where_nothing_is_known_nothing_is_refused(tmp_path: Path) -> None:
    shared_memory.check_room(2**60, proc=tmp_path, cgroups=tmp_path)
    shared_memory.check_room(1)


def test_size_is_what_a_ring_takes() -> None:
    made = shared_memory.create(PLAIN, 2)
    assert os.fstat(made.fileno()).st_size == shared_memory.size(PLAIN, 2)
    made.close()


def test_the_fence_can_be_called_from_anywhere() -> None:
    def work() -> None:
        for _ in range(1000):
            memory.fence()

    joins = [threaded(work) for _ in range(4)]
    for join in joins:
        join()
