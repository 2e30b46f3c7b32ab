"""Claim: a hundred workers read the same policy at once, and each has it soon.

A policy of 50 MB is stored anew in each round, and all readers, which are processes, begin to read the newest at the
same moment. `directory`: from the run directory, as matchmakers, warm starts and `runnel.load` do, checked against its
digest. `memory`: from the parameter store of a machine, as actors do. Reported are the seconds until a reader has it.

    python benchmarks/policy_readers.py
    python benchmarks/policy_readers.py --readers 1 4 --megabytes 5 --rounds 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine
from runnel.config.policy_config import PolicyConfig
from runnel.recording.policy_store import LATEST, PolicyStore
from runnel.transport.parameter_store import SharedStore
from runnel.transport.stream import Field
from runnel.types import AgentSpec, Box, Discrete

LIMIT_S = 120.0
LAYERS = 8
"""Arrays of a policy."""


class Way(NamedTuple):
    """How a policy gets from who writes it to who reads it."""

    write: Callable[[int, dict[str, np.ndarray]], None]
    read: Callable[[], tuple[int, Sequence[np.ndarray]]]  # version and arrays of the newest


@contextmanager
def directory(arrays: dict[str, np.ndarray]) -> Iterator[Way]:
    spec = AgentSpec(Box((4,)), Discrete(2))
    with tempfile.TemporaryDirectory() as place:
        store = PolicyStore(place)

        def write(version: int, arrays: dict[str, np.ndarray]) -> None:
            store.add(PolicyConfig({}, "agent", spec, version=version, env_steps=version), arrays)

        def read() -> tuple[int, Sequence[np.ndarray]]:
            newest = PolicyStore(place).find(LATEST)["agent"]
            return newest.version, list(newest.arrays().values())

        yield Way(write, read)


@contextmanager
def memory(arrays: dict[str, np.ndarray]) -> Iterator[Way]:
    store = SharedStore.create(tuple(Field(array.shape, array.dtype.str) for array in arrays.values()))
    try:
        writer = store.writer()

        def read() -> tuple[int, Sequence[np.ndarray]]:
            found = store.reader().read()
            return found.version, found.arrays

        yield Way(lambda version, arrays: writer.publish(list(arrays.values()), version, version), read)
    finally:
        store.close()


WAYS = {"directory": directory, "memory": memory}


def _reader(way: Way, rounds: int, barrier: Any, results: Any) -> None:
    for _ in range(rounds):
        barrier.wait(LIMIT_S)
        began = time.monotonic()
        version, arrays = way.read()
        ended = time.monotonic()
        results.put((began, ended, version, float(arrays[-1].ravel()[-1]), sum(array.nbytes for array in arrays)))


def measure(name: str, readers: int, size: int, rounds: int) -> dict[str, Any]:
    """Seconds of every reader in every round, and of each round as a whole."""
    arrays = {f"params/{k}": np.zeros(size // 4 // LAYERS, np.float32) for k in range(LAYERS)}
    processes = multiprocessing.get_context("fork")  # readers have the store's memory, and start at once
    barrier, results = processes.Barrier(readers + 1), processes.Queue()
    seconds, whole = [], []
    with WAYS[name](arrays) as way:
        started = [processes.Process(target=_reader, args=(way, rounds, barrier, results)) for _ in range(readers)]
        for process in started:
            process.start()
        try:
            for version in range(1, rounds + 1):
                for array in arrays.values():
                    array[...] = version
                way.write(version, arrays)
                barrier.wait(LIMIT_S)
                found = [results.get(timeout=LIMIT_S) for _ in started]
                assert all((v, last, n) == (version, version, 4 * LAYERS * (size // 4 // LAYERS))
                           for _, _, v, last, n in found)  # fmt: skip
                seconds += [ended - began for began, ended, *_ in found]
                whole.append(max(ended for _, ended, *_ in found) - min(began for began, *_ in found))
            for process in started:
                process.join(LIMIT_S)
        finally:
            for process in started:
                process.kill()
                process.join()
    return {"seconds": seconds, "whole": whole}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--megabytes", type=float, default=50.0, help="of the policy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args(arguments)
    size, found = int(args.megabytes * 1e6), {}
    for name in args.ways:
        for readers in args.readers:
            result = found[f"{name}/{readers}"] = measure(name, readers, size, args.rounds)
            middle, worst = statistics.median(result["seconds"]), max(result["seconds"])
            total = readers * size / statistics.median(result["whole"]) / 1e9
            print(
                f"{name:<9} {readers:>3} readers: {1000 * middle:.0f} ms, at most {1000 * worst:.0f} ms; "
                f"together {total:.2f} GB/s",
                flush=True,
            )
    about = machine.describe_elsewhere("jax", "numpy")
    machine.save("policy_readers", {"machine": about, "bytes": size, "rounds": args.rounds, "found": found}, args.out)


if __name__ == "__main__":
    main()
