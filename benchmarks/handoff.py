"""Claim: a hand-off through shared memory takes 20 microseconds to a receiver that looks, 60 to one that sleeps.

Latency is from just before sending to when the receiver has read the message, by the one clock of the machine: back to
back, where a receiver of Runnel's is inside its spin, and after 2 ms of silence, where it sleeps. What the system takes
to wake a process, by an eventfd and with nothing else to do, is told beside it. Bandwidth is of a sender that has
the payload in an array and a receiver that looks at its ends, beside a plain copy into as many places in turn; the
budget is 80% of that for large payloads. Shared memory and threads of one process are Runnel's; multiprocessing's
Queue, ZeroMQ over ipc and Ray (`put`, and a call of an actor) are measured beside them, in turns, each in processes of
its own.

    python benchmarks/handoff.py            # peers that are not installed are left out, and said so
    python benchmarks/handoff.py --runs 5 --only shared queue
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import mmap
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks import _machine as machine
from runnel.transport import in_process, shared_memory
from runnel.transport.stream import Field

SIZES = (64, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
SLOTS = 4
"""Messages on their way at most, of every transport."""

WARM = 2 * SLOTS
"""Messages that are not counted: they meet memory that was never touched."""

SILENCE_S = 0.002
WAIT_S = 60.0
NEEDS = {"zeromq": "zmq", "ray": "ray"}
BUDGETS_US = {"back_to_back": 20.0, "sleeping": 60.0}
LARGE, SHARE = 1 << 20, 0.8
"""From what size on, and which share of a plain copy, is asked for."""


class Channel(Protocol):
    """One direction: `send` gives an array away, `take` gives the first and the last number of what came."""

    reads_later: bool
    """What is sent must stay as it is, for it is read after `send` came back."""

    def send(self, array: np.ndarray) -> None: ...

    def take(self) -> tuple[int, int]: ...

    def give_back(self) -> None:
        """What was taken is no longer needed."""

    def close(self) -> None: ...


# Runnel's


class Stream(Channel):
    """A stream of Runnel's, in shared memory or between threads."""

    reads_later = False

    def __init__(self, transport: Any, make_bell: Callable[[], Any], size: int):
        self._ring = transport.create((Field((size // 8,), "<i8"),), SLOTS)
        self._bells = make_bell(), make_bell()
        self._writer: Any = None
        self._reader: Any = None
        self._message: Any = None

    def send(self, array: np.ndarray) -> None:
        if self._writer is None:
            self._writer = self._ring.writer(*self._bells)
        slot = self._writer.claim(0, WAIT_S)
        self._writer.slots[slot][0][...] = array
        self._writer.commit()

    def take(self) -> tuple[int, int]:
        if self._reader is None:
            self._reader = self._ring.reader(*reversed(self._bells))
        self._message = self._reader.receive(WAIT_S)
        array = self._message.arrays[0]
        return int(array[0]), int(array[-1])

    def give_back(self) -> None:
        self._reader.release(self._message)

    def close(self) -> None:
        pass


# Peers


class Woken(Channel):
    """The system alone: a number in shared memory, and an eventfd on which the receiver always sleeps."""

    reads_later = False

    def __init__(self) -> None:
        self._event = os.eventfd(0)
        self._words = memoryview(mmap.mmap(-1, 64)).cast("B").cast("q")

    def send(self, array: np.ndarray) -> None:
        self._words[0] = int(array[0])
        os.eventfd_write(self._event, 1)

    def take(self) -> tuple[int, int]:
        os.eventfd_read(self._event)
        return self._words[0], 0

    def close(self) -> None:
        pass


class Queue(Channel):
    """`multiprocessing.Queue`."""

    reads_later = True

    def __init__(self) -> None:
        self._queue = multiprocessing.get_context("fork").Queue(SLOTS)

    def send(self, array: np.ndarray) -> None:
        self._queue.put(array)

    def take(self) -> tuple[int, int]:
        array = self._queue.get(timeout=WAIT_S)
        return int(array[0]), int(array[-1])

    def close(self) -> None:
        self._queue.close()


class ZeroMQ(Channel):
    """A pair of ZeroMQ sockets over ipc; each end makes its own, in its own process."""

    reads_later = True

    def __init__(self, address: str):
        self._address = address
        self._socket: Any = None

    def _open(self, push: bool) -> Any:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH if push else zmq.PULL)
        self._socket.setsockopt(zmq.SNDHWM, SLOTS)
        self._socket.setsockopt(zmq.RCVHWM, SLOTS)
        self._socket.setsockopt(zmq.RCVTIMEO, int(WAIT_S * 1000))
        (self._socket.bind if push else self._socket.connect)(self._address)
        return self._socket

    def send(self, array: np.ndarray) -> None:
        (self._socket or self._open(push=True)).send(array, copy=False)

    def take(self) -> tuple[int, int]:
        frame = (self._socket or self._open(push=False)).recv(copy=False)
        array = np.frombuffer(frame.buffer, np.int64)
        return int(array[0]), int(array[-1])

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=int(WAIT_S * 1000))
            self._context.term()


# Measuring


def answer(forth: Channel, back: Channel, messages: int, size: int) -> None:
    """The other side, for latency: says how long each message was on its way, by sending that back."""
    reply = np.zeros(size // 8, np.int64)
    for _ in range(messages):
        sent, _ = forth.take()
        reply[0] = time.perf_counter_ns() - sent
        forth.give_back()
        back.send(reply)


def latency(forth: Channel, back: Channel, messages: int, size: int, silence_s: float) -> list[float]:
    """Microseconds of each message."""
    found, array = [], np.zeros(size // 8, np.int64)
    for _ in range(messages):
        if silence_s:
            time.sleep(silence_s)
        array[0] = time.perf_counter_ns()
        forth.send(array)
        found.append(back.take()[0] / 1000)
        back.give_back()
    return found


def swallow(forth: Channel, back: Channel, messages: int, size: int) -> None:
    """The other side, for bandwidth: takes everything, then says so."""
    for n in range(WARM + messages):
        ends = forth.take()
        assert ends == (n, n), f"message {n} has {ends} at its ends"
        forth.give_back()
    back.send(np.zeros(size // 8, np.int64))


def bandwidth(forth: Channel, back: Channel, messages: int, size: int) -> float:
    """Bytes per second."""
    array = np.zeros(size // 8, np.int64)
    started = 0.0
    for n in range(WARM + messages):
        if n == WARM:
            started = time.perf_counter()
        if forth.reads_later:
            array = array.copy()
        array[0] = array[-1] = n
        forth.send(array)
    back.take()
    back.give_back()
    return messages * size / (time.perf_counter() - started)


def copy_bandwidth(size: int) -> float:
    """Bytes per second of a plain copy into as many places in turn as a stream has slots."""
    array = np.zeros(size // 8, np.int64)
    places = [np.ones_like(array) for _ in range(SLOTS)]
    messages = count_for(size)
    started = time.perf_counter()
    for n in range(messages):
        places[n % SLOTS][...] = array
    return messages * size / (time.perf_counter() - started)


def count_for(size: int) -> int:
    """About a third of a second of a good transport."""
    return int(np.clip((1 << 31) // size, 60, 20_000))


@contextlib.contextmanager
def beside(name: str, target: Callable[..., None], forth: Channel, back: Channel, *numbers: int) -> Iterator[None]:
    """Runs the other side in a thread, or in a process."""

    def side() -> None:
        target(forth, back, *numbers)
        forth.close()
        back.close()

    make: Any = threading.Thread if name == "threads" else multiprocessing.get_context("fork").Process
    other = make(target=side, daemon=True)
    other.start()
    yield
    other.join(WAIT_S)
    forth.close()
    back.close()


def channels(name: str, size: int, directory: str) -> tuple[Any, Any]:
    """There and back."""
    if name == "shared":
        return tuple(Stream(shared_memory, shared_memory.SharedBell.create, size) for _ in range(2))  # type: ignore[return-value]
    if name == "threads":
        return tuple(Stream(in_process, in_process.InProcessBell, size) for _ in range(2))  # type: ignore[return-value]
    if name == "queue":
        return Queue(), Queue()
    if name == "eventfd":
        return Woken(), Woken()
    number = len(os.listdir(directory))
    return tuple(ZeroMQ(f"ipc://{directory}/{number}-{way}") for way in ("forth", "back"))  # type: ignore[return-value]


def measure(name: str, messages: int) -> dict[str, Any]:
    """One transport, in this process and another."""
    if name == "ray":
        return measure_ray(messages)
    result: dict[str, Any] = {"bandwidth": {}, "copy": {}}
    with tempfile.TemporaryDirectory() as directory:
        for what, silence_s in (("back_to_back", 0.0), ("sleeping", SILENCE_S)):
            count = messages if not silence_s else messages // 8
            forth, back = channels(name, 64, directory)
            with beside(name, answer, forth, back, count, 64):
                result[what] = latency(forth, back, count, 64, silence_s)
        for size in SIZES if name != "eventfd" else ():
            forth, back = channels(name, size, directory)
            count = count_for(size)
            with beside(name, swallow, forth, back, count, size):
                result["bandwidth"][size] = bandwidth(forth, back, count, size)
            result["copy"][size] = copy_bandwidth(size)
    return result


def measure_ray(messages: int) -> dict[str, Any]:
    """Ray: an array is put into its store, and an actor called with it."""
    import ray

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # else it warns
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

    class Taker:
        def take(self, array: np.ndarray) -> tuple[int, int]:
            return time.perf_counter_ns(), int(array[0])

    taker = ray.remote(num_cpus=0)(Taker).remote()

    def timed(silence_s: float) -> float:
        time.sleep(silence_s)
        array = np.zeros(8, np.int64)
        array[0] = time.perf_counter_ns()
        now, sent = ray.get(taker.take.remote(ray.put(array)))
        return (now - sent) / 1000

    def carried(size: int) -> float:
        array, waiting = np.zeros(size // 8, np.int64), []
        count = min(count_for(size), 1000)
        started = time.perf_counter()
        for n in range(count):
            array[0] = n
            waiting.append((n, taker.take.remote(ray.put(array))))
            if len(waiting) == SLOTS or n + 1 == count:
                for number, answered in waiting:
                    assert ray.get(answered)[1] == number
                waiting.clear()
        return count * size / (time.perf_counter() - started)

    timed(0.0)
    try:
        return {
            "back_to_back": [timed(0.0) for _ in range(messages // 4)],
            "sleeping": [timed(SILENCE_S) for _ in range(messages // 8)],
            "bandwidth": {size: carried(size) for size in SIZES},
            "copy": {size: copy_bandwidth(size) for size in SIZES},
        }
    finally:
        ray.shutdown()


# Telling


def summarised(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over runs; percentiles over all messages."""
    result: dict[str, Any] = {}
    for what in ("back_to_back", "sleeping"):
        p50, p99 = np.percentile([us for run in runs for us in run[what]], [50, 99])
        result[what] = {"p50_us": round(float(p50), 2), "p99_us": round(float(p99), 2)}
    result["bandwidth"] = {}
    for size in runs[0]["bandwidth"]:
        rate = statistics.median(run["bandwidth"][size] for run in runs)
        share = statistics.median(run["bandwidth"][size] / run["copy"][size] for run in runs)
        result["bandwidth"][size] = {"bytes_per_second": round(rate), "of_copy": round(share, 4)}
    return result


def table(results: dict[str, Any]) -> str:
    head = ["", "p50 us", "p99 us", "asleep p50", "asleep p99", *(_size(size) for size in SIZES)]
    lines = ["  ".join(f"{word:>11}" for word in head)]
    for name, result in results.items():
        cells = [f"{result[what][p]:.1f}" for what in ("back_to_back", "sleeping") for p in ("p50_us", "p99_us")]
        for of in result["bandwidth"].values():
            cells.append(f"{of['bytes_per_second'] / 1e6:,.0f} {of['of_copy']:.0%}")
        lines.append("  ".join(f"{word:>11}" for word in [name, *cells]))
    return "\n".join([*lines, "from the fifth column on: MB/s, and the share of a plain copy"])


def _size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} B"


def kept(result: dict[str, Any]) -> dict[str, bool]:
    """Which budgets shared memory keeps."""
    budgets = {f"{what} under {limit:.0f} us": result[what]["p50_us"] < limit for what, limit in BUDGETS_US.items()}
    large = [of["of_copy"] for size, of in result["bandwidth"].items() if int(size) >= LARGE]
    return budgets | {f"{SHARE:.0%} of a copy from 1 MiB on": min(large) >= SHARE}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["shared", "threads", "eventfd", "queue", "zeromq", "ray"]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=4000)
    parser.add_argument("--out", help="directory for the raw results")
    parser.add_argument("--one", choices=names, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.messages)))
        return
    missing = [name for name in args.only if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None]
    if missing:
        print(f"left out, for they are not installed: {', '.join(missing)}", flush=True)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only if name not in missing}
    for _ in range(args.runs):
        for name, own in runs.items():  # in turns, each in a new process
            command = [sys.executable, "-W", "ignore", __file__, "--one", name, "--messages", str(args.messages)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
            own.append(json.loads(done.stdout.splitlines()[-1]))
    results = {name: summarised(own) for name, own in runs.items()}
    print(table(results))
    if "shared" in results:
        print("; ".join(f"{what}: {'kept' if so else 'NOT kept'}" for what, so in kept(results["shared"]).items()))
    about = machine.describe("pyzmq", "ray", "numpy")
    settings = {"runs": args.runs, "messages": args.messages, "slots": SLOTS, "silence_s": SILENCE_S}
    print(machine.save("handoff", {"machine": about, "settings": settings, "transports": results}, args.out))


if __name__ == "__main__":
    main()
