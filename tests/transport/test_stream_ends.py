"""Ends of streams that close, die and are replaced."""

import signal
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import threaded
from transport_cases import CASES, STEPS, OpenStream, goes_on, peer, words_of
from transport_peers import (
    LIMIT_S,
    DyingWords,
    check,
    send,
)

from runnel.transport import bell
from runnel.transport.stream import Closed, Message

# Closing


def test_the_reader_gets_what_was_committed_and_then_the_end(stream: OpenStream) -> None:
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


def test_the_writer_learns_when_the_reader_closes(stream: OpenStream) -> None:
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
    stream: OpenStream, monkeypatch: pytest.MonkeyPatch, end: Any, how: str
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


def test_a_writer_that_closed_and_then_died_is_not_lost(stream: OpenStream) -> None:
    stream.writer.close()
    stream.ring.lost("writer")
    with pytest.raises(Closed) as closed:
        stream.reader.receive(0)
    assert not closed.value.lost


# Dying


@pytest.mark.parametrize("at", ["before claim", "after claim", "half-written", "before commit", "after commit"])
def test_a_writer_is_killed_and_replaced(between: OpenStream, at: str) -> None:
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
def test_a_reader_is_killed_and_replaced(between: OpenStream, at: str) -> None:
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


def test_what_a_lost_reader_held_comes_again_in_the_order_it_was_sent(stream: OpenStream) -> None:
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


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 4),
    steps=STEPS,
    who=st.sampled_from(["writer", "reader"]),
    stores=st.integers(0, 60),
    data=st.data(),
)
def test_an_end_that_dies_between_any_two_stores_is_replaced(
    transport_name: str, slots: int, steps: list[str], who: str, stores: int, data: st.DataObject
) -> None:
    stream = OpenStream(CASES[transport_name], slots=slots)
    end = stream.writer if who == "writer" else stream.reader
    end.words = DyingWords(words_of(end), stores)  # pyright: ignore
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
        assert stream.writer.last_header() == (((sent - 1) % 7, (sent - 1) % 3) if sent else None)
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


def test_a_cleared_ring_is_like_a_new_one(stream: OpenStream) -> None:
    for n in range(3):
        send(stream.writer, n)
    check(stream.reader.receive(0), 0)
    stream.writer.claim(7, 0)
    stream.reader.close()
    stream.ring.clear()
    stream.writer, stream.reader = stream.new_writer(), stream.new_reader()
    assert stream.writer.last_header() is None
    assert (stream.ring.committed(), stream.ring.pending(), stream.reader.begun()) == (0, 0, None)
    goes_on(stream, 0, [], 0)
