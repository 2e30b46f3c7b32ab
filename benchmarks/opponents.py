"""Claim: eight past policies act in one batch at nearly the speed of one.

PPO with two towers of 64 x 64 units on pgx's Connect Four, compiled into one program; one seat learns, and a pool of K
policies plays the other. Programs with K = 1 and K = 8 alternate; compilation is left out.

    python benchmarks/opponents.py
    python benchmarks/opponents.py --envs 2048 --places 1 8 32
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine

GAME = "pgx:connect_four"


class Timed:
    """A program with so many places, all of different policies."""

    def __init__(self, places: int, envs: int, unroll: int):
        import jax
        import jax.numpy as jnp

        from runnel.execution.building import build
        from runnel.matchmaking import Latest
        from runnel.runtime.programs.loop import Loop
        from runnel.runtime.single_process.compiled import CompiledProgram

        built = build("ppo", GAME, "fused", envs, {"unroll": unroll}, opponents=Latest(places=places))
        self._program = CompiledProgram(Loop(built.graph, built.environment), jax.devices()[:1], seed=0)  # type: ignore[arg-type]
        pool, spec = built.algorithm.for_group("opponent"), built.graph.spec.groups["opponent"]
        keys = jax.random.split(jax.random.key(1), places)
        policies = [pool.policy.init(key, spec).params for key in keys]  # type: ignore[attr-defined]
        state = pool.filled(policies, [1.0] * places, list(range(places)))  # type: ignore[attr-defined]
        self._program.begin_from({"opponent": jax.tree.map(jnp.asarray, state)})
        self._steps = built.graph.steps_per_iteration
        self.run(0.0)

    def run(self, seconds: float) -> float:
        """Steps a second over at least so many seconds."""
        began, done = time.perf_counter(), 0
        while True:
            done += self._program.run(1 << 20, seconds, float("inf"), lambda: False).iterations
            spent = time.perf_counter() - began
            if spent >= seconds:
                return done * self._steps / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--envs", type=int, default=512)
    parser.add_argument("--unroll", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    ways = {places: Timed(places, args.envs, args.unroll) for places in args.places}
    found: dict[int, list[float]] = {places: [] for places in ways}
    for _ in range(args.rounds):
        for places, way in ways.items():
            found[places].append(way.run(args.seconds))
    medians = {places: statistics.median(speeds) for places, speeds in found.items()}
    for places, speed in medians.items():
        ratio = speed / medians[args.places[0]]
        print(f"{places} places: {speed:,.0f} steps/s, {ratio:.2f} of {args.places[0]}", flush=True)
    result = {"game": GAME, "envs": args.envs, "unroll": args.unroll, "steps_per_second": medians, "all": found}
    machine.save("opponents", {"machine": machine.describe("jax", "pgx"), **result}, args.out)


if __name__ == "__main__":
    main()
