"""The parameter store: the newest wins, whole, and a writer that dies takes nothing with it."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_cases import TransportCase
from transport_peers import LIMIT_S, PLAIN, DyingWords, Peer, fill, publish, watch, whole

from runnel.transport import parameter_store, shared_memory
from runnel.transport.stream import Field

LARGE = (Field((1 << 16,), "<f4"), Field((), "<i8"))


@pytest.fixture
def make(transport: TransportCase) -> Callable[[Any], Any]:
    return transport.store


def test_before_the_first(make: Callable[[Any], Any]) -> None:
    made = make(PLAIN)
    reader = made.reader()
    assert (reader.version(), reader.iteration()) == (-1, -1)
    with pytest.raises(ValueError, match="nothing was published"):
        reader.read()
    made.close()


def test_the_newest_wins(make: Callable[[Any], Any]) -> None:
    made = make(PLAIN)
    writer, early = made.writer(), made.reader()
    for n in range(8):
        publish(writer, PLAIN, n, 1)
        for reader in (early, made.reader()):
            assert (reader.version(), reader.iteration()) == (n, 2 * n)
            found = reader.read()
            version, iteration, _ = found
            assert (version, iteration) == (n, 2 * n)
            assert whole(found)
    made.close()


def test_what_was_read_stays_and_is_not_for_changing(make: Callable[[Any], Any]) -> None:
    made = make(PLAIN)
    writer, reader = made.writer(), made.reader()
    publish(writer, PLAIN, 3, 1)
    found = reader.read()
    publish(writer, PLAIN, 4, 5)
    assert whole(found)
    with pytest.raises(ValueError, match="read-only"):
        found.arrays[0][:] = 0
    made.close()
    assert whole(found)
    assert whole(reader.read())


def test_what_was_published_is_the_writers_again(make: Callable[[Any], Any]) -> None:
    made = make(PLAIN)
    arrays = [np.zeros(shape, dtype) for shape, dtype in PLAIN]
    fill(arrays, 1)
    made.writer().publish(arrays, 1, 2)
    fill(arrays, 9)
    assert whole(made.reader().read())
    made.close()


def test_other_arrays_than_agreed_are_refused_and_change_nothing(make: Callable[[Any], Any]) -> None:
    made = make((Field((2, 3), "<f4"),))
    writer, reader = made.writer(), made.reader()
    writer.publish([np.ones((2, 3), np.float32)], 1, 1)
    for wrong in ([np.ones((2, 3))], [np.ones((1, 3), np.float32)], [], [np.ones((2, 3), np.float32)] * 2):
        with pytest.raises(ValueError, match="the store takes"):
            writer.publish(wrong, 2, 2)
    assert reader.version() == 1
    assert (reader.read().arrays[0] == 1).all()
    made.close()


def test_publishing_rings_the_readers(transport: TransportCase) -> None:
    made, bells = transport.store(PLAIN), [transport.bell(), transport.bell()]
    rung: list[int] = []
    for i, one in enumerate(bells):
        one.ring = partial(rung.append, i)
    writer, reader = made.writer(bells), made.reader()
    for n in range(2):
        publish(writer, PLAIN, n, 1)
        assert reader.version() == n
    assert rung == [0, 1, 0, 1]
    made.close()


@settings(max_examples=60, deadline=None)
@given(before=st.integers(0, 7), stores=st.integers(0, 3), after=st.integers(0, 4))
def test_a_writer_that_dies_between_any_two_stores_leaves_the_newest(before: int, stores: int, after: int) -> None:
    made = parameter_store.SharedStore.create(PLAIN)
    reader = made.reader()
    first = made.writer()
    publish(first, PLAIN, 0, before)
    first.words = DyingWords(first.words, stores)  # pyright: ignore
    with pytest.raises(DyingWords.Died):
        publish(first, PLAIN, before, 1)
    assert reader.version() == before - 1
    if before:
        assert whole(reader.read())
    for n in range(after):
        publish(made.writer(), PLAIN, before + n, 1)
        assert reader.version() == before + n
        assert whole(reader.read())
    made.close()


def test_a_read_overtaken_while_it_copies_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = parameter_store.SharedStore.create(PLAIN)
    writer, reader = made.writer(), made.reader()
    publish(writer, PLAIN, 0, 1)
    plain_copy, to_come = parameter_store.kept, [5, 6, 7]

    def slow_copy(array: np.ndarray) -> np.ndarray:
        if to_come:
            publish(writer, PLAIN, to_come.pop(0), 1)
        return plain_copy(array)

    monkeypatch.setattr(parameter_store, "kept", slow_copy)
    found = reader.read()
    assert found.version == 7
    assert whole(found)
    made.close()


def test_a_read_that_is_always_overtaken_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = parameter_store.SharedStore.create(PLAIN)
    writer, reader = made.writer(), made.reader()
    publish(writer, PLAIN, 0, 1)
    plain_copy = parameter_store.kept

    def endless(array: np.ndarray) -> np.ndarray:
        publish(writer, PLAIN, 0, 3)
        return plain_copy(array)

    monkeypatch.setattr(parameter_store, "kept", endless)
    monkeypatch.setattr(parameter_store, "READ_LIMIT_S", 0.01)
    with pytest.raises(TimeoutError, match="changed under every read"):
        reader.read()
    made.close()


def peer(made: parameter_store.SharedStore, role: str, bells: list[shared_memory.SharedBell], **job: Any) -> Peer:
    fds = [made.fileno(), *(fd for one in bells for fd in one.fds)]
    job |= {"role": role, "store": made.fileno(), "schema": made.schema, "bells": [one.fds for one in bells]}
    return Peer(job, tuple(fds))


def test_no_reader_sees_a_mixture() -> None:
    made = parameter_store.SharedStore.create(LARGE)
    bells = [shared_memory.SharedBell.create() for _ in range(3)]
    others = [peer(made, "watch", [one], last=1999) for one in bells[1:]]
    assert [other.line() for other in others] == ["ready"] * 2
    writer = peer(made, "publish", bells, first=0, count=2000)
    assert watch(made.reader(), 1999, bells[0]) > 0
    for other in others:
        assert other.line() > 0
        other.end()
    writer.end()
    for one in (made, *bells):
        one.close()


def test_a_writer_killed_while_it_publishes_leaves_a_whole_version_and_can_be_replaced() -> None:
    made = parameter_store.SharedStore.create(LARGE)
    own_bell = shared_memory.SharedBell.create()
    reader = made.reader()
    first = 0
    for _ in range(4):
        other = peer(made, "publish", [own_bell], first=first, count=10**9)
        assert own_bell.wait(lambda: reader.version() >= first + 3 or None, LIMIT_S)  # noqa: B023
        other.kill()  # nearly all its time goes into copying, so that is where it dies
        found = reader.read()
        assert whole(found)
        assert found.version == reader.version()
        first = found.version + 1
    publish(made.writer(), LARGE, first, 1)
    assert whole(reader.read())
    assert reader.version() == first
    made.close()
    own_bell.close()


def test_closing_and_refusing_leave_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = parameter_store.SharedStore.create(PLAIN)
    again = parameter_store.SharedStore.attach(os.dup(made.fileno()), PLAIN)
    with pytest.raises(ValueError, match="both sides need the same"):
        parameter_store.SharedStore.attach(os.dup(made.fileno()), LARGE)
    with pytest.raises(ValueError, match="not a store of this schema"):
        parameter_store.SharedStore.attach(os.dup(made.fileno()), (*PLAIN[:2], Field((0, 3), "<f4")))
    assert os.fstat(made.fileno()).st_size == parameter_store.size(PLAIN)
    for one in (made, again):
        one.close()
        one.close()
    assert len(os.listdir("/proc/self/fd")) == before
