"""Claim: a stream between hosts costs little beside the encryption that it needs, and carries more than Ray's store.

Two processes of one machine, over its loopback interface: what is measured is the software, not a network. Throughput
is of a sender that has the payload in an array and a receiver that looks at its ends; latency, of 64 bytes, from just
before sending to just after receiving, by the one clock of the machine. Payloads are noise, which nothing compresses;
`packed` is the same stream with frames that can be. Beside it: raw sockets and ZeroMQ, both in the open; ZeroMQ with
CURVE, which is what encryption leaves of it; and Ray, between actors on two nodes of a cluster on this machine, where
an object is put into the store of one and got on the other. Medians of several rounds, in turns.

    python benchmarks/tcp_streams.py            # peers that are not installed are left out, and said so
    python benchmarks/tcp_streams.py --runs 1 --only courier sockets
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks import _machine as machine

SIZES = (64, 4 << 10, 256 << 10, 4 << 20)
SLOTS = 4
"""Messages on their way at most, of every kind that has a say in it."""

WARM = 2 * SLOTS
WAIT_S = 60.0
NEEDS = {"ray": "ray"}
NAMES = ("courier", "packed", "zeromq curve", "zeromq", "sockets", "ray")


class Channel(Protocol):
    """One process's side of a channel both ways."""

    def send(self, array: np.ndarray) -> None: ...

    def take(self) -> np.ndarray: ...

    def close(self) -> None: ...


class Courier:
    """A host of its own: two streams, there and back, through its courier."""

    def __init__(self, side: int, pipe: Any, size: int) -> None:
        from runnel.transport import courier, curve, shared_memory
        from runnel.transport.stream import Field

        schema, keys = (Field((size,), "|u1"),), curve.new_keys()
        self._courier = courier.Courier(str(side), keys)
        pipe.send((self._courier.address, keys.public))
        self._bell, rings = shared_memory.SharedBell.create(), [shared_memory.create(schema, SLOTS) for _ in range(2)]
        other = str(1 - side)
        self._courier.join(
            {other: courier.Peer(*pipe.recv())},
            sends=[courier.Sends(side, "benchmark", rings[0], other, self._bell)],
            takes=[courier.Takes(1 - side, "benchmark", rings[1], other, self._bell)],
            epoch=1,
        )
        self._courier.start()
        self._writer = rings[0].writer(self._bell, self._courier.bell)
        self._reader = rings[1].reader(self._bell, self._courier.bell)
        self._message: Any = None

    def send(self, array: np.ndarray) -> None:
        slot = self._writer.claim(0, WAIT_S)
        self._writer.slots[slot][0][...] = array
        self._writer.commit()

    def take(self) -> np.ndarray:
        if self._message is not None:
            self._reader.release(self._message)
        self._message = self._reader.receive(WAIT_S)
        return self._message.arrays[0]

    def close(self) -> None:
        self._courier.close()


class ZeroMQ:
    """A pair of ZeroMQ sockets over TCP."""

    def __init__(self, side: int, pipe: Any, curve: bool) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.sndhwm = self._socket.rcvhwm = SLOTS
        self._socket.rcvtimeo = self._socket.sndtimeo = int(WAIT_S * 1000)
        public, secret = zmq.curve_keypair()
        if curve:
            self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        if side == 0:
            self._socket.curve_server = curve
            self._socket.bind("tcp://127.0.0.1:*")
            pipe.send((self._socket.last_endpoint, public))
        else:
            address, server = pipe.recv()
            if curve:
                self._socket.curve_serverkey = server
            self._socket.connect(address)

    def send(self, array: np.ndarray) -> None:
        self._socket.send(array)

    def take(self) -> np.ndarray:
        return np.frombuffer(self._socket.recv(copy=False).buffer, np.uint8)

    def close(self) -> None:
        self._socket.close(linger=int(WAIT_S * 1000))
        self._context.term()


class Sockets:
    """A TCP connection, with the length before each message."""

    def __init__(self, side: int, pipe: Any, size: int) -> None:
        if side == 0:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                pipe.send(listener.getsockname())
                self._socket, _ = listener.accept()
        else:
            self._socket = socket.create_connection(pipe.recv())
        self._socket.settimeout(WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._array = np.empty(size, np.uint8)

    def send(self, array: np.ndarray) -> None:
        sent = self._socket.sendmsg([struct.pack("<Q", array.nbytes), array.data])
        self._socket.sendall(array.data[sent - 8 :])

    def take(self) -> np.ndarray:
        head = bytearray(8)
        self._fill(memoryview(head))
        self._fill(self._array.data[: struct.unpack("<Q", head)[0]])
        return self._array

    def _fill(self, view: memoryview) -> None:
        while len(view):
            view = view[self._socket.recv_into(view) :]

    def close(self) -> None:
        self._socket.close()


def opened(name: str, side: int, pipe: Any, size: int) -> Channel:
    if name in ("courier", "packed"):
        return Courier(side, pipe, size)
    if name == "sockets":
        return Sockets(side, pipe, size)
    return ZeroMQ(side, pipe, name == "zeromq curve")


def payload(name: str, size: int) -> np.ndarray:
    """Bytes to carry; the first and the last eight say which message it is, or when it was sent."""
    noise = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    return np.zeros(size, np.uint8) + noise[:1] if name == "packed" else noise


def near(name: str, pipe: Any, size: int, messages: int, result: Any) -> None:
    """Bytes a second, of messages that are not answered but for the last."""
    channel, array = opened(name, 0, pipe, size), payload(name, size)
    first, last = array[:8].view(np.int64), array[-8:].view(np.int64)
    channel.send(array)  # connected
    channel.take()
    for n in range(WARM):
        first[0] = last[0] = n
        channel.send(array)
    started = time.perf_counter()
    for n in range(WARM, WARM + messages):
        first[0] = last[0] = n
        channel.send(array)
    channel.take()
    result.send(messages * size / (time.perf_counter() - started))
    pipe.recv()
    channel.close()


def far(name: str, pipe: Any, size: int, messages: int, _: Any) -> None:
    """The other side, which looks at the ends of each."""
    channel, array = opened(name, 1, pipe, size), payload(name, size)
    channel.take()
    channel.send(array)
    for n in range(WARM + messages):
        came = channel.take()
        ends = int(came[:8].view(np.int64)[0]), int(came[-8:].view(np.int64)[0])
        assert ends == (n, n), f"message {n} has {ends} at its ends"
    channel.send(array)
    time.sleep(0.2)
    pipe.send("done")
    channel.close()


def asks(name: str, pipe: Any, size: int, messages: int, result: Any) -> None:
    """Microseconds one way, of messages that are answered one by one."""
    channel, array, found = opened(name, 0, pipe, size), payload(name, size), []
    stamp = array[:8].view(np.int64)
    for n in range(WARM + messages):
        stamp[0] = time.perf_counter_ns()
        channel.send(array)
        came = int(channel.take()[:8].view(np.int64)[0])
        if n >= WARM:
            found.append(came / 1000)
    result.send(found)
    pipe.recv()
    channel.close()


def answers(name: str, pipe: Any, size: int, messages: int, _: Any) -> None:
    """The other side, which says how long each was on its way."""
    channel, array = opened(name, 1, pipe, size), payload(name, size)
    stamp = array[:8].view(np.int64)
    for _n in range(WARM + messages):
        sent = int(channel.take()[:8].view(np.int64)[0])
        stamp[0] = time.perf_counter_ns() - sent
        channel.send(array)
    time.sleep(0.2)
    pipe.send("done")
    channel.close()


def both(name: str, sides: tuple[Callable[..., None], Callable[..., None]], size: int, messages: int) -> Any:
    """Runs two processes, and gives what the first has found."""
    fork = multiprocessing.get_context("fork")
    pipes, (result, told) = fork.Pipe(), fork.Pipe(duplex=False)
    processes = [
        fork.Process(target=side, args=(name, pipe, size, messages, told), daemon=True)
        for side, pipe in zip(sides, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    if not result.poll(WAIT_S):
        raise SystemExit(f"{name} has not carried {messages} messages of {size} bytes within {WAIT_S:.0f} s")
    found = result.recv()
    for process in processes:
        process.join(WAIT_S)
    return found


def count_for(size: int, seconds: float) -> int:
    """About so many seconds of a good transport."""
    return int(np.clip(seconds * 5e8 // size, 20, max(20, seconds * 10_000)))


def measure(name: str, seconds: float) -> dict[str, Any]:
    if name == "ray":
        return measure_ray(seconds)
    return {
        "one_way_us": both(name, (asks, answers), 64, int(2000 * seconds)) if name != "packed" else None,
        "bytes_per_s": {size: both(name, (near, far), size, count_for(size, seconds)) for size in SIZES},
    }


def measure_ray(seconds: float) -> dict[str, Any]:
    """Ray: an array is put into the store of one node, and got by an actor on another."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # else it warns
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    for node in ("near", "far"):
        cluster.add_node(num_cpus=1, resources={node: 1}, object_store_memory=512 << 20, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

    class Side:
        def take(self, array: np.ndarray) -> tuple[int, int]:
            return time.perf_counter_ns(), int(array[:8].view(np.int64)[0])

        def feed(self, other: Any, array: np.ndarray, messages: int) -> float:
            """Bytes a second, with as many on their way as others have slots."""
            waiting, array = [], array.copy()
            started = 0.0
            for n in range(WARM + messages):
                if n == WARM:
                    started = time.perf_counter()
                array[:8].view(np.int64)[0] = n
                waiting.append((n, other.take.remote(ray.put(array))))
                if len(waiting) == SLOTS or n + 1 == WARM + messages:
                    for number, answered in waiting:
                        assert ray.get(answered)[1] == number
                    waiting.clear()
            return messages * array.nbytes / (time.perf_counter() - started)

        def ask(self, other: Any, messages: int) -> list[float]:
            found, array = [], np.zeros(64, np.uint8)
            for _ in range(messages):
                array[:8].view(np.int64)[0] = time.perf_counter_ns()
                now, sent = ray.get(other.take.remote(ray.put(array)))
                found.append((now - sent) / 1000)
            return found

    try:
        sides = [ray.remote(num_cpus=0, resources={node: 1})(Side).remote() for node in ("near", "far")]
        ray.get(sides[0].ask.remote(sides[1], WARM))
        return {
            "one_way_us": ray.get(sides[0].ask.remote(sides[1], int(200 * seconds))),
            "bytes_per_s": {
                size: ray.get(sides[0].feed.remote(sides[1], payload("ray", size), count_for(size, seconds / 20)))
                for size in SIZES
            },
        }
    finally:
        ray.shutdown()
        cluster.shutdown()


def summarised(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds; percentiles over all messages."""
    result: dict[str, Any] = {
        "bytes_per_s": {str(size): round(statistics.median(run["bytes_per_s"][size] for run in runs)) for size in SIZES}
    }
    stamps = [us for run in runs for us in run["one_way_us"] or ()]
    if stamps:
        p50, p99 = np.percentile(stamps, [50, 99])
        result["one_way"] = {"p50_us": round(float(p50), 1), "p99_us": round(float(p99), 1)}
    return result


def table(results: dict[str, Any]) -> str:
    sizes = [f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} B"
             for size in SIZES]  # fmt: skip
    lines = ["  ".join(f"{word:>12}" for word in ["", "p50 us", "p99 us", *sizes])]
    for name, result in results.items():
        told = result.get("one_way", {})
        cells = [f"{told[p]:,.0f}" if told else "" for p in ("p50_us", "p99_us")]
        cells += [f"{rate / 1e6:,.1f}" for rate in result["bytes_per_s"].values()]
        lines.append("  ".join(f"{word:>12}" for word in [name, *cells]))
    return "\n".join([*lines, "from the third column on: MB/s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long each size is carried")
    parser.add_argument("--out", help="directory for the raw results")
    args = parser.parse_args()
    missing = [name for name in args.only if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None]
    if missing:
        print(f"left out, for they are not installed: {', '.join(missing)}", flush=True)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only if name not in missing}
    for _ in range(args.runs):
        for name, own in runs.items():
            own.append(measure(name, args.seconds))
    results = {name: summarised(own) for name, own in runs.items()}
    print(table(results))
    about = machine.describe("pyzmq", "ray", "numpy", "lz4")
    settings = {"runs": args.runs, "seconds": args.seconds, "slots": SLOTS}
    print(machine.save("tcp_streams", {"machine": about, "settings": settings, "transports": results}, args.out))


if __name__ == "__main__":
    main()
