"""Claim: a learner is not held up for more than 5 ms by a snapshot of its parameters.

PPO with the Nature CNN on pictures of Atari's size. What a learner spends at the boundary at which a snapshot is due (a
copy on the device), and at the later one at which it is sent (the copy to the host has been made meanwhile), medians and
largest of so many snapshots. Between two boundaries the device has other work, as it has in training.

    python benchmarks/snapshots.py
    python benchmarks/snapshots.py --snapshots 200
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine


def measure(snapshots: int) -> dict[str, Any]:
    """Milliseconds of the two boundaries."""
    import jax
    import numpy as np

    from runnel.algorithms.ppo import PPO
    from runnel.config.jax_config import configure_jax
    from runnel.launch.control import Control
    from runnel.recording.parameters import parameter_leaves
    from runnel.runtime.programs.snapshots import SnapshotSchedule
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
    copies, sends = [], []
    for step in range(1, snapshots + 2):
        began = time.perf_counter()
        sender.boundary(carry, step)
        copies.append(1000 * (time.perf_counter() - began))
        jax.block_until_ready(work(busy))
        began = time.perf_counter()
        sender.flush()
        sends.append(1000 * (time.perf_counter() - began))
        while there.receive() is not None:
            pass
    size = sum(np.prod(leaf.shape) * leaf.dtype.itemsize for leaf in parameter_leaves(state).values())

    def told(milliseconds: list[float]) -> dict[str, float]:
        own = milliseconds[1:]  # the first compiles
        return {"median_ms": statistics.median(own), "largest_ms": max(own)}

    return {"bytes": int(size), "copy": told(copies), "send": told(sends)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=100)
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    found = measure(args.snapshots)
    print(f"{found['bytes'] / 1e6:.1f} MB: due {found['copy']}, sent {found['send']}")
    machine.save("snapshots", {"machine": machine.describe("jax"), "snapshots": args.snapshots, **found}, args.out)


if __name__ == "__main__":
    main()
