"""Claim: fused PPO is faster than PureJaxRL's method at equal settings, on a GPU at every size.

Both sides train from scratch, in turns, in this process: the reference written from PureJaxRL's description
(`reference/purejaxrl_ppo.py`) and PPO under `fused`. Same network, same settings, same number of updates; a run
includes initialisation and first resets, and excludes compilation, which is reported. Each run has another seed, the
same for both sides, after a warm-up run that is not counted.

A run's mean return is, on both sides, that of the newest 100 episodes that ended, in order of step and environment,
with the actions that training sampled. It is read after the clock has stopped.

    python benchmarks/fused_ppo.py                                   # sizes for the device that is there
    python benchmarks/fused_ppo.py CartPole-v1:2048:100 --runs 5     # environment : environments : updates
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp

from benchmarks import _machine as machine
from benchmarks.reference import purejaxrl_ppo
from runnel.algorithms.ppo import PPO
from runnel.envs.gymnax import GymnaxEnvironment
from runnel.graph.flow import trace
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process import compiled
from runnel.runtime.single_process.compiled import CompiledProgram

UNROLL = 128
CPU_CASES = ("CartPole-v1:64:60", "CartPole-v1:512:10", "Breakout-MinAtar:64:15")
GPU_CASES = (
    "CartPole-v1:2048:500", "CartPole-v1:16384:60", "CartPole-v1:65536:30", "Breakout-MinAtar:2048:500",
    "Breakout-MinAtar:16384:30",
)  # fmt: skip


class Reference:
    """PureJaxRL's method."""

    def __init__(self, environment: str, envs: int, updates: int, learning_rate: float):
        train = purejaxrl_ppo.make_train(environment, envs, UNROLL, updates, learning_rate=learning_rate)
        started = time.perf_counter()
        self.compiled = jax.jit(train).lower(jax.random.key(0)).compile()
        self.compile_s = time.perf_counter() - started
        self.info: dict[str, Any] | None = None

    def run(self, seed: int) -> None:
        self.info = None  # the record of a long run is large: hold one at a time
        out = jax.block_until_ready(self.compiled(jax.random.key(seed)))
        self.info = out["info"]

    def mean_return(self) -> float | None:
        assert self.info is not None
        return purejaxrl_ppo.mean_return(self.info)


class Ours:
    """PPO under `fused`, at the settings of the reference."""

    def __init__(self, environment: str, envs: int, updates: int, learning_rate: float):
        algorithm = PPO(
            learning_rate=learning_rate, anneal_steps=updates * UNROLL * envs, discount=0.99, gae_lambda=0.95,
            unroll=UNROLL, epochs=4, minibatches=4, clip=0.2, value_clip=0.2, value_cost=0.5, entropy_cost=0.01,
            max_grad_norm=0.5, hidden=(64, 64), activation="tanh",
        )  # fmt: skip
        world = GymnaxEnvironment(environment)
        self.updates = updates
        started = time.perf_counter()
        loop = Loop(trace(algorithm, world.spec, envs), world)
        self.program = CompiledProgram(loop, jax.devices()[:1], seed=0)
        self.program.run(1, 0.0, float("inf"), lambda: False)
        self.compile_s = time.perf_counter() - started
        self.program.iterations_per_call = updates

    def run(self, seed: int) -> None:
        self.program.seed = jnp.uint32(seed)  # an argument of the compiled program
        self.program.carry = self.program.fresh()
        self.progress = self.program.run(self.updates, 0.0, float("inf"), lambda: False)
        assert self.progress.iterations == self.updates

    def mean_return(self) -> float | None:
        return self.progress.mean_return


def measure(case: str, runs: int, learning_rate: float) -> dict[str, Any]:
    environment, envs, updates = case.split(":")
    steps = int(envs) * int(updates) * UNROLL
    sides = {"reference": Reference, "ours": Ours}
    made = {name: side(environment, int(envs), int(updates), learning_rate) for name, side in sides.items()}
    rates: dict[str, list[float]] = {name: [] for name in made}
    returns: dict[str, list[float | None]] = {name: [] for name in made}
    for seed in range(runs + 1):  # the first warms up
        for name, side in made.items():
            started = time.perf_counter()
            side.run(seed)
            seconds = time.perf_counter() - started
            if seed > 0:
                rates[name].append(steps / seconds)
                returns[name].append(side.mean_return())
    result: dict[str, Any] = {"environment": environment, "envs": int(envs), "updates": int(updates)}
    for name, side in made.items():
        result[name] = {
            "steps_per_second": rates[name],
            "compile_s": round(side.compile_s, 2),
            "mean_returns": returns[name],  # of seed 1 and on
            "median_return": median_return(returns[name]),
        }
    result["ratio_of_medians"] = statistics.median(rates["ours"]) / statistics.median(rates["reference"])
    return result


def median_return(returns: list[float | None]) -> float | None:
    """None where a run ended before its first episode did."""
    known = [each for each in returns if each is not None]
    return statistics.median(known) if len(known) == len(returns) else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--chunk", type=int, default=compiled.CHUNK, help="steps compiled side by side on a GPU")
    parser.add_argument("--out", help="directory for the raw results")
    args = parser.parse_args()
    compiled.CHUNK = args.chunk
    cases = args.cases or (CPU_CASES if jax.default_backend() == "cpu" else GPU_CASES)
    about = machine.describe("flax", "optax", "gymnax", "rlax")
    settings = {"unroll": UNROLL, "learning_rate": args.learning_rate, "chunk": args.chunk}
    results = []
    for case in cases:
        results.append(result := measure(case, args.runs, args.learning_rate))
        medians = {name: statistics.median(result[name]["steps_per_second"]) for name in ("reference", "ours")}
        print(
            f"{case}: reference {medians['reference']:,.0f}, ours {medians['ours']:,.0f} steps/s, "
            f"{result['ratio_of_medians']:.2f}x; median returns {result['reference']['median_return']}, "
            f"{result['ours']['median_return']}; compile {result['reference']['compile_s']}, "
            f"{result['ours']['compile_s']} s",
            flush=True,
        )
        # After every case: a run that is cut short keeps those that it has.
        path = machine.save("fused_ppo", {"machine": about, "settings": settings, "cases": results}, args.out)
        print(path, flush=True)


if __name__ == "__main__":
    main()
