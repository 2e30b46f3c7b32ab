"""Shared memory: what is taken, what is left, and what is refused."""

import gc
import os
import signal
import time
from pathlib import Path

import pytest
from transport_cases import CASES, OpenStream, words_of
from transport_peers import (
    LIMIT_S,
    PLAIN,
    Peer,
    check,
    send,
)

from runnel.errors import UserError
from runnel.transport import ring, shared_memory
from runnel.transport.stream import Field


def held() -> tuple[int, int]:
    """Descriptors and pieces of shared memory."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd:runnel")


def test_closing_a_stream_between_hosts_leaves_nothing_but_the_couriers() -> None:
    def use() -> None:
        stream = OpenStream(CASES["tcp"])
        send(stream.writer, 0)
        check(stream.reader.receive(0), 0)
        stream.close()

    use()  # couriers connect when they first have something to carry
    before = held()
    for _ in range(5):
        use()
    assert held() == before


def test_closing_leaves_no_descriptor_and_no_memory() -> None:
    before = held()
    for _ in range(5):
        stream = OpenStream(CASES["shared memory"])
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


def test_views_outlive_what_was_closed(stream: OpenStream) -> None:
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


def test_the_memory_of_a_stream_cannot_be_shrunk() -> None:
    made = shared_memory.create(PLAIN, 2)
    with pytest.raises(PermissionError):
        os.ftruncate(made.fileno(), 0)
    made.close()


def test_a_damaged_stream_is_refused(stream: OpenStream) -> None:
    send(stream.writer, 0)
    words_of(stream.ring)[ring.ORDER] = 77
    with pytest.raises(RuntimeError, match="damaged"):
        stream.reader.receive(0)
    words_of(stream.ring)[ring.ORDER] = 1
    with pytest.raises(RuntimeError, match="damaged"):
        stream.reader.receive(0)


def test_too_few_descriptors_are_reported() -> None:
    other = Peer({"role": "exhaust"}, ())
    told = other.line()
    other.end()
    assert len(told) == 3
    for text in told:
        assert "file descriptor" in text
        assert "ulimit -n" in text


def test_more_memory_than_any_machine_has_is_reported() -> None:
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


def test_size_is_what_a_ring_takes() -> None:
    made = shared_memory.create(PLAIN, 2)
    assert os.fstat(made.fileno()).st_size == shared_memory.size(PLAIN, 2)
    made.close()
