"""Operations of one end at the very moment of the other's checks."""

import pytest
from transport_cases import OpenStream, words_of
from transport_peers import (
    HookedWords,
    check,
    end_of,
    send,
)


@pytest.mark.parametrize("accesses", range(1, 16))
def test_a_commit_and_an_end_while_the_reader_looks(stream: OpenStream, accesses: int) -> None:
    def act() -> None:
        send(stream.writer, 0, 0)
        stream.writer.close()

    hooked = HookedWords(words_of(stream.reader), accesses, act)
    stream.reader.words = hooked  # pyright: ignore
    while not stream.reader.peek() or hooked.left > 0:
        pass
    stream.reader.release(check(stream.reader.receive(0), 0))
    assert not end_of(stream.reader).lost


@pytest.mark.parametrize("accesses", range(1, 8))
def test_a_commit_and_an_end_while_the_reader_receives(stream: OpenStream, accesses: int) -> None:
    def act() -> None:
        send(stream.writer, 0, 0)
        stream.writer.close()

    hooked = HookedWords(words_of(stream.reader), accesses, act)
    stream.reader.words = hooked  # pyright: ignore
    message = None
    while message is None:
        message = stream.reader.receive(0)
    stream.reader.release(check(message, 0))
    assert not end_of(stream.reader).lost


@pytest.mark.parametrize("accesses", range(1, 16))
def test_what_is_on_its_way_is_begun_or_pending_at_every_moment(stream: OpenStream, accesses: int) -> None:
    looked: list[tuple[int | None, int]] = []

    def look() -> None:
        looked.append((stream.reader.begun(), stream.reader.pending()))

    slot = stream.writer.claim(7, 0)
    stream.writer.words = HookedWords(words_of(stream.writer), accesses, look)  # pyright: ignore
    stream.writer.commit()
    assert slot is not None
    look()
    assert all(begun == 7 or pending == 1 for begun, pending in looked)
    assert looked[-1] == (None, 1)


@pytest.mark.parametrize("accesses", range(1, 10))
def test_a_release_while_the_writer_looks(stream: OpenStream, accesses: int) -> None:
    for n in range(3):
        send(stream.writer, n)
    held = [check(stream.reader.receive(0), n) for n in range(3)]
    hooked = HookedWords(words_of(stream.writer), accesses, lambda: stream.reader.release(held[1]))
    stream.writer.words = hooked  # pyright: ignore
    while hooked.left > 0:
        stream.writer.free()
    assert send(stream.writer, 3, 0)
    assert check(stream.reader.receive(0), 3).slot == held[1].slot
    check(held[0], 0)
    check(held[2], 2)
