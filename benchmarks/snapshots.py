"""Claim: training is not held up for more than 5 ms by a snapshot of its parameters.

PPO with the Nature CNN on pictures of Atari's size. Measured is what a learner in a process of its own spends at the
boundary at which a snapshot is due, and what the program of `inline` and `fused` spends where one is due; a thread
fetches it (and sends that of a learner) while training goes on, here with matrix products.

    python benchmarks/snapshots.py
    python benchmarks/snapshots.py --snapshots 200
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine


def measure(snapshots: int) -> dict[str, Any]:
    """Milliseconds for which training is held up: in a process of its own, and in one process."""
    import jax
    import numpy as np

    from runnel.algorithms.ppo import PPO
    from runnel.config.jax_config import configure_jax
    from runnel.launch.control import Control
    from runnel.recording.parameters import parameter_leaves
    from runnel.runtime.programs.snapshots import SnapshotSchedule, SnapshotTaker
    from runnel.runtime.workers.snapshot_sender import SnapshotSender
    from runnel.types import AgentSpec, Box, Discrete

    configure_jax()
    spec = AgentSpec(Box((84, 84, 4), np.dtype(np.uint8), 0, 255), Discrete(6))
    state = jax.jit(lambda key: PPO().init(key, spec))(jax.random.key(0))
    here, there = Control.pair()
    node = SimpleNamespace(group="agent", traits=SimpleNamespace(learns=True))
    assignment: Any = SimpleNamespace(spmd=None, training_nodes=[node], context=SimpleNamespace(line=here))
    sender = SnapshotSender(assignment, SnapshotSchedule((1,)), 0)
    carry: Any = SimpleNamespace(states={"agent": state}, updates={"agent": 0})
    work = jax.jit(lambda x: (x @ x) / 1024)
    busy = jax.numpy.ones((1024, 1024))
    taker = SnapshotTaker(SnapshotSchedule((1,)))

    def received() -> None:
        while there.receive() is not None:
            pass

    ways: dict[str, tuple[Callable[[int], Any], Callable[[], Any]]] = {
        "learner": (lambda step: sender.boundary(carry, step), received),
        "one_process": (lambda step: taker.reached(step, carry.states, carry.updates), lambda: taker.fetch(False)),
    }
    held: dict[str, list[float]] = {way: [] for way in ways}
    for way, (take, receive) in ways.items():
        for step in range(1, snapshots + 2):
            began = time.perf_counter()
            take(step)
            held[way].append(1000 * (time.perf_counter() - began))
            for _ in range(4):
                jax.block_until_ready(work(busy))
            receive()
    size = sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in parameter_leaves(state).values())

    # Of each, the first compiles.
    found = {way: {"median_ms": statistics.median(ms[1:]), "largest_ms": max(ms[1:])} for way, ms in held.items()}
    return {"bytes": int(size), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=100)
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    found = measure(args.snapshots)
    for way in ("learner", "one_process"):
        ms = found[way]
        print(f"{way}, {found['bytes'] / 1e6:.1f} MB: {ms['median_ms']:.2f} ms, at most {ms['largest_ms']:.2f} ms")
    machine.save("snapshots", {"machine": machine.describe("jax"), "snapshots": args.snapshots, **found}, args.out)


if __name__ == "__main__":
    main()
