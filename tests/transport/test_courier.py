"""Couriers carry streams between hosts: nothing lost, doubled or out of order; as much room as within a host."""

import time

import pytest
from courier_pair import CourierPair
from tcp_hosts import until
from transport_peers import LIMIT_S, PLAIN, Peer, check, consume, produce, send

from runnel.transport import shared_memory
from runnel.transport.courier import Courier, Sends, Takes
from runnel.transport.courier import Peer as Host
from runnel.transport.curve import new_keys
from runnel.transport.stream import Field

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


def test_a_lost_host_does_not_block_the_others() -> None:
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


# Room


def test_there_is_as_much_room_as_in_one_ring(two: CourierPair) -> None:
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
    two = CourierPair(streams=64)
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
    two = CourierPair(schema=schema, slots=2)
    two.join()
    writer, reader = two.writer(), two.reader()
    for n in range(4):
        send(writer, n)
        reader.release(check(reader.receive(LIMIT_S), n))
    two.close()


# Epochs


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_nothing_comes_out_of_a_cleared_stream(two: CourierPair, order: tuple[int, int]) -> None:
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
        assert writer.last_header() is None
        for n in range(7):
            send(writer, n)
            reader.release(check(reader.receive(LIMIT_S), n))
        for n in (7, 8):
            send(writer, n)


def test_what_arrives_of_an_older_epoch_is_dropped(two: CourierPair) -> None:
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


def test_a_stream_continues_where_it_was_when_couriers_join_again(two: CourierPair) -> None:
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


def test_a_stopped_courier_holds_no_memory(two: CourierPair) -> None:
    two.join()
    send(two.writer(), 0)
    check(two.reader().receive(LIMIT_S), 0)
    for courier in two.couriers:
        courier.stop()
        courier.stop()
        assert courier.tally()["packed"] == {}
