"""What the other end of a stream or store does in the transport tests, in a thread or as a process of its own.

Run as a program it takes one JSON job, whose descriptors it has inherited, and prints one JSON answer.
"""

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import runnel
from runnel.errors import UserError
from runnel.transport import bell, in_process, interface, parameter_store, shared_memory
from runnel.transport.stream import Closed, Field, Message, Schema, Stream

LIMIT_S = 60.0
"""More than anything here takes on a busy machine; only a failure waits so long."""

PLAIN: Schema = (Field((3, 50), "<u4"), Field((), "<i8"), Field((0, 2), "<f4"))


def fill(arrays: list[np.ndarray], n: int) -> None:
    """Puts bytes into every array that differ from place to place, and from those of the numbers around n."""
    for i, array in enumerate(arrays):
        flat = array.reshape(-1).view(np.uint8)
        np.add(_places(flat.size), (n + i) % 251, out=flat, dtype=np.uint8, casting="unsafe")


@cache
def _places(size: int) -> np.ndarray:
    return np.arange(size).astype(np.uint8)


def holds(arrays: list[np.ndarray], n: int) -> bool:
    """Whether the arrays are as `fill` made them."""
    wanted = [np.empty_like(a) for a in arrays]
    fill(wanted, n)
    return all(a.tobytes() == b.tobytes() for a, b in zip(arrays, wanted, strict=True))


def send(writer: Any, n: int, timeout_s: float = LIMIT_S) -> bool:
    """Sends message n, if a slot comes free in time."""
    slot = writer.claim(1000 + n, timeout_s)
    if slot is None:
        return False
    fill(writer.slots[slot], n)
    writer.commit((n % 7, n % 3))
    return True


def check(message: Message | None, n: int) -> Message:
    """The message, which must be number n and whole."""
    assert message is not None, f"message {n} did not come"
    assert (message.sequence, message.iteration, message.header) == (n, 1000 + n, (n % 7, n % 3))
    assert holds(message.arrays, n)
    return message


def produce(writer: Any, count: int) -> None:
    for n in range(count):
        assert send(writer, n)
    writer.close()


def consume(reader: Any, count: int, hold: int = 1) -> None:
    """Takes `count` messages and then the end, keeping `hold` at a time and releasing the newest of them first."""
    held: list[Message] = []
    for n in range(count):
        held.append(check(reader.receive(LIMIT_S), n))
        if len(held) >= hold:
            for m in reversed(held):
                check(m, m.sequence)  # nobody touched it while it was held
                reader.release(m)
            held.clear()
    assert not end_of(reader).lost


def end_of(reader: Any) -> Closed:
    """How the stream ended, which it must have."""
    try:
        message = reader.receive(LIMIT_S)
    except Closed as closed:
        return closed
    raise AssertionError(f"found {message} where the stream should have ended")


def echo(reader: Any, writer: Any, count: int) -> None:
    """Sends back a message for every one received."""
    for n in range(count):
        reader.release(check(reader.receive(LIMIT_S), n))
        assert send(writer, n)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_and_die(writer: Any, count: int, at: str) -> None:
    """Sends `count` messages, and dies somewhere in the next."""
    for n in range(count):
        assert send(writer, n)
    if at == "before claim":
        die()
    slot = writer.claim(1000 + count, LIMIT_S)
    if at == "after claim":
        die()
    first, *others = writer.slots[slot]
    fill([first[:1]], 99)
    if at == "half-written":
        die()
    fill([first, *others], count)
    if at == "before commit":
        die()
    writer.commit((count % 7, count % 3))
    die()


def read_and_die(reader: Any, count: int, at: str) -> None:
    """Takes `count` messages, and dies while it has the last, and one before it that it did not give back."""
    messages = [check(reader.receive(LIMIT_S), n) for n in range(count)]
    if at == "after receive":
        die()
    for message in messages[:-2]:
        reader.release(message)
    if at == "before release":
        die()
    reader.release(messages[-1])
    die()


def publish(writer: Any, schema: Schema, first: int, count: int) -> None:
    """Publishes `count` versions."""
    arrays = [np.zeros(tuple(shape), dtype) for shape, dtype in schema]
    for n in range(first, first + count):
        fill(arrays, n)
        writer.publish(arrays, version=n, iteration=2 * n)


def whole(found: parameter_store.Parameters) -> bool:
    """Whether nothing of it is of another publication."""
    return found.iteration == 2 * found.version and holds(found.arrays, found.version)


def watch(reader: Any, last: int, own_bell: bell.Bell) -> int:
    """Reads until version `last` has come; how many different versions were seen, each whole and none twice."""
    seen, newest = 0, -1
    while newest < last:
        assert own_bell.wait(lambda known=newest: reader.version() > known or None, LIMIT_S), f"nothing after {newest}"
        found = reader.read()
        assert found.version > newest
        assert whole(found), f"version {found.version} is torn"
        newest, seen = found.version, seen + 1
    return seen


class HookedWords:
    """Words that call something after so many loads and stores: what another process might do at that very moment."""

    def __init__(self, words: Any, accesses: int, hook: Callable[[], None]) -> None:
        self.words = words
        self.left = accesses
        self.hook = hook

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.hook()

    def __getitem__(self, where: Any) -> Any:
        found = self.words[where]
        self._count()
        return found

    def __setitem__(self, where: int, value: int) -> None:
        self.words[where] = value
        self._count()


class DyingWords:
    """Words that, after so many stores, are taken away from under who writes them: as if it had been killed there."""

    class Died(BaseException):
        pass

    def __init__(self, words: Any, stores: int) -> None:
        self.words = words
        self.stores = stores

    def __getitem__(self, where: Any) -> Any:
        return self.words[where]

    def __setitem__(self, where: int, value: int) -> None:
        if self.stores == 0:
            raise self.Died
        self.stores -= 1
        self.words[where] = value


# As a process


class Peer:
    """A process that does one job with the descriptors it is given."""

    started: ClassVar[list["Peer"]] = []

    def __init__(self, job: dict[str, Any], fds: tuple[int, ...], new_group: bool = False) -> None:
        path = [str(Path(runnel.__file__).parent.parent), *sys.path]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
        command = [sys.executable, "-W", "error", __file__, json.dumps(job)]
        self.process = subprocess.Popen(
            command, pass_fds=fds, stdout=subprocess.PIPE, env=environ, text=True, start_new_session=new_group
        )
        self.started.append(self)

    def line(self) -> Any:
        """The next line it prints."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or "null")

    def end(self, status: int = 0) -> None:
        """Waits until it has ended, which must be with `status`."""
        try:
            assert self.process.wait(LIMIT_S) == status
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    @classmethod
    def kill_all(cls) -> None:
        """Leaves none behind, whatever became of the test that started them."""
        while cls.started:
            cls.started.pop().kill()


def bells_of(job: dict[str, Any], **options: Any) -> list[shared_memory.SharedBell]:
    return [shared_memory.SharedBell.attach(tuple(fds), **options) for fds in job["bells"]]


def ring_of(job: dict[str, Any], which: int = 0) -> Stream:
    attach = interface.load(job.get("transport", interface.SHARED_MEMORY)).attach_stream
    return attach(job["rings"][which], job["schema"], job["slots"])


def exhaust() -> list[str]:
    """What the user is told when descriptors run out."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    told = []
    for make in (
        lambda: shared_memory.create(PLAIN, 2),
        shared_memory.SharedBell.create,
        lambda: parameter_store.SharedStore.create(PLAIN),
    ):
        made = []
        try:
            while True:
                made.append(make())
        except UserError as error:
            told.append(str(error))
        for one in made:
            one.close()
        del made
    return told


def family() -> None:
    """A group of processes with streams between them, which then does nothing."""
    rings = [shared_memory.create(PLAIN, 4) for _ in range(3)]
    bells = [shared_memory.SharedBell.create() for _ in range(4)]
    children = []
    for ring, own in zip(rings, bells[1:], strict=True):
        child = os.fork()
        if child == 0:
            writer = ring.writer(own, bells[0])
            while True:
                assert writer.claim(0, LIMIT_S) is not None, "the test took too long"
                writer.commit()
        children.append(child)
    for ring, peer in zip(rings, bells[1:], strict=True):
        ring.reader(bells[0], peer).receive(LIMIT_S)
    print(json.dumps(children), flush=True)
    signal.pause()


def host(job: dict[str, Any]) -> None:
    """Another host, with one worker at the far end of a stream: says where its courier is, and when it is done."""
    from runnel.transport import courier, curve

    own_bell, ring, it = (
        shared_memory.SharedBell.create(),
        shared_memory.create(job["schema"], job["slots"]),
        job["count"],
    )
    mine = courier.Courier("there", curve.new_keys())
    sends = [courier.Sends(1, "test", ring, "here", own_bell)] if job["does"] == "produce" else []
    takes = [courier.Takes(1, "test", ring, "here", own_bell)] if job["does"] != "produce" else []
    mine.join({"here": courier.Peer(*job["peer"])}, sends=sends, takes=takes, epoch=1)
    mine.start()
    print(json.dumps([mine.address, mine.public]), flush=True)
    if job["does"] == "produce":
        produce(ring.writer(own_bell, mine.bell), it)
    elif job["does"] == "consume":
        consume(ring.reader(own_bell, mine.bell), it, job["hold"])
    print(json.dumps("done"), flush=True)
    signal.pause()  # what was sent last may still be under way


def main(job: dict[str, Any]) -> None:
    bell.NAP_S = job.get("nap_s", bell.NAP_S)
    role = job["role"]
    if role in ("produce", "write_and_die"):
        own, peer = bells_of(job)
        writer = ring_of(job).writer(own, peer)
        produce(writer, job["count"]) if role == "produce" else write_and_die(writer, job["count"], job["at"])
    elif role in ("consume", "read_and_die"):
        own, peer = bells_of(job)
        reader = ring_of(job).reader(own, peer)
        consume(reader, job["count"], job["hold"]) if role == "consume" else read_and_die(
            reader, job["count"], job["at"]
        )
    elif role == "echo":
        own, peer = bells_of(job, spin_s=job["spin_s"])
        echo(ring_of(job, 0).reader(own, peer), ring_of(job, 1).writer(own, peer), job["count"])
    elif role == "publish":
        writer = parameter_store.SharedStore.attach(job["store"], job["schema"]).writer(bells_of(job))
        publish(writer, job["schema"], job["first"], job["count"])
    elif role == "watch":
        (own,) = bells_of(job)
        reader = parameter_store.SharedStore.attach(job["store"], job["schema"]).reader()
        print(json.dumps("ready"), flush=True)
        print(json.dumps(watch(reader, job["last"], own)))
    elif role == "host":
        host(job)
    elif role == "exhaust":
        print(json.dumps(exhaust()))
    elif role == "modules":
        assert in_process.create(PLAIN, 1)
        print(json.dumps(sorted(sys.modules)))
    else:
        family()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
