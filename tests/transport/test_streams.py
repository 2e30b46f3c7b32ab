"""Streams under every transport: messages, order and back-pressure; nothing lost, doubled or torn."""

import json
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import threaded
from transport_cases import CASES, STEPS, OpenStream, TransportCase, peer
from transport_peers import (
    LIMIT_S,
    PLAIN,
    check,
    consume,
    fill,
    holds,
    produce,
    send,
)

from runnel.transport.stream import Closed, Field, Message, Schema, schema_of

# One message


def test_a_message_arrives_as_it_was_written(stream: OpenStream) -> None:
    assert stream.reader.receive(0) is None
    assert not stream.reader.peek()
    assert send(stream.writer, 0)
    assert stream.reader.peek()
    message = check(stream.reader.receive(0), 0)
    assert [a.shape for a in message.arrays] == [(3, 50), (), (0, 2)]
    assert stream.reader.receive(0) is None


def test_arrays_begin_at_multiples_of_64_bytes(stream: OpenStream) -> None:
    send(stream.writer, 0)
    for array in check(stream.reader.receive(0), 0).arrays:
        assert array.ctypes.data % 64 == 0


def test_what_is_read_is_the_slot_that_was_written_except_between_hosts(stream: OpenStream) -> None:
    slot = stream.writer.claim(0, 0)
    assert slot is not None
    stream.writer.commit()
    message = stream.reader.receive(0)
    assert message is not None
    shared = stream.transport.shares_memory  # hosts have no memory in common: a message is copied, once on each side
    assert message.slot == slot or not shared
    stream.writer.slots[slot][0][:] = 7
    assert (message.arrays[0] == 7).all() == shared


def test_a_claim_announces_its_iteration_until_the_commit(stream: OpenStream) -> None:
    assert stream.reader.begun() is None
    stream.writer.claim(-5, 0)
    assert stream.reader.begun() == -5
    assert stream.reader.pending() == 0
    stream.writer.commit()
    assert stream.reader.begun() is None
    assert stream.reader.pending() == stream.ring.pending() == stream.ring.committed() == 1


def test_claiming_again_gives_the_same_slot_with_the_new_iteration(stream: OpenStream) -> None:
    slot = stream.writer.claim(1, 0)
    assert stream.writer.claim(2, 0) == slot
    assert stream.reader.begun() == 2
    stream.writer.commit()
    message = stream.reader.receive(0)
    assert message is not None
    assert message.iteration == 2


def test_misuse_is_reported(stream: OpenStream) -> None:
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


def test_a_schema_can_be_written_as_json_and_knows_the_dtypes_of_jax(transport: TransportCase) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = [np.zeros((2, 3), ml_dtypes.bfloat16), np.zeros((), bool), np.zeros(4, np.float64)]
    schema = json.loads(json.dumps(schema_of(arrays)))
    made = OpenStream(transport, schema)
    assert schema_of(made.writer.slots[0]) == schema_of(arrays)
    made.close()


# Order and back-pressure


def test_a_full_stream_makes_its_writer_wait_and_overwrites_nothing(stream: OpenStream) -> None:
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


def test_slots_come_free_in_whatever_order_they_are_released(stream: OpenStream) -> None:
    for n in range(3):
        send(stream.writer, n)
    zero, one, two = (check(stream.reader.receive(0), n) for n in range(3))
    for n, last in ((3, two), (4, one)):
        stream.reader.release(last)
        assert stream.writer.claim(1000 + n, 0) == last.slot
        fill(stream.writer.slots[last.slot], n)
        stream.writer.commit((n % 7, n % 3))
        check(stream.reader.receive(0), n)
        check(zero, 0)
    assert not stream.writer.free()


DTYPES = st.sampled_from(["|u1", "|b1", "<i2", "<f4", "<f8", "<c16", "<i8", "<U3", "|S5", "<M8[s]", "|V7"])
SCHEMAS = st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=3).map(tuple), DTYPES), max_size=4).map(
    lambda fields: tuple(Field(*f) for f in fields)
)


@settings(max_examples=40, deadline=None)
@given(schema=SCHEMAS, slots=st.integers(1, 5), steps=STEPS, data=st.data())
def test_nothing_is_lost_doubled_or_changed_whatever_the_order(
    transport_name: str, schema: Schema, slots: int, steps: list[str], data: st.DataObject
) -> None:
    stream = OpenStream(CASES[transport_name], schema, slots)
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
def test_a_thousand_messages_between_threads(transport: TransportCase, slots: int, hold: int) -> None:
    stream = OpenStream(transport, slots=slots)
    join = threaded(partial(produce, stream.writer, 1000))
    consume(stream.reader, 1000, hold)
    join()
    stream.close()


@pytest.mark.parametrize("there", ["produce", "consume"])
def test_thousands_of_messages_between_processes(between: OpenStream, there: str) -> None:
    other = peer(between, there, count=5000, hold=2)
    if there == "produce":
        consume(between.reader, 5000, 2)
    else:
        produce(between.writer, 5000)
    other.end()


def test_one_reader_of_many_writers(between_name: str) -> None:
    streams = [OpenStream(CASES[between_name]) for _ in range(4)]
    own_bell = streams[0].reader_bell
    for one in streams[1:]:
        one.reader_bell.close()
        one.reader_bell = own_bell
    # Ends as workers have them: all at once, nobody waits until everything is carried.
    plain = {"plain": True} if between_name == "tcp" else {}
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
