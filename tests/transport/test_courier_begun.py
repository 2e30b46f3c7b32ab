"""A reader's knowledge of the work that a writer on another host has begun."""

import time

from courier_pair import CourierPair
from hypothesis import given, settings
from hypothesis import strategies as st
from tcp_hosts import until
from transport_peers import PLAIN, publish

from runnel.transport import courier as courier_module
from runnel.transport import in_process, link, parameter_store, remote_streams, wire
from runnel.transport.courier import Courier, Mirrors, Publishes, Takes


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
    two = CourierPair(slots=slots)
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
            courier.serve()
            if time.monotonic() > end:
                return
            time.sleep(5e-4)

    until(
        lambda: (
            [c.serve() for c in two.couriers]
            and all(c.tally()["peers"][p]["connected"] for c, p in ((a, "b"), (b, "a")))
        )
    )
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
