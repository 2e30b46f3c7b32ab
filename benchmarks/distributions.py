"""CartPole-v1 to a mean return of 475 under every distribution: wall time, steps and rate of each.

python benchmarks/distributions.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import runnel
from benchmarks._machine import describe, save
from runnel import distributions

GOAL = 475.0

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "inline": ("ppo", "CartPole-v1", {}),
    "fused": ("ppo", "gymnax:CartPole-v1", {}),
    "coarse": ("ppo", "CartPole-v1", {"actors": 2}),
    "fine": ("ppo", "CartPole-v1", {"actors": 2}),
    "replicated": ("ppo", "CartPole-v1", {"learners": 2}),
    "environments": ("ppo", "CartPole-v1", {"actors": 2}),
    "central": ("a2c", "CartPole-v1", {"actors": 2}),
    "async": ("impala", "CartPole-v1", {"actors": 2}),
    "decoupled": ("impala", "CartPole-v1", {"actors": 2}),
}
"""By distribution: the algorithm that is its natural user, the environment and the number of workers."""


def train(name: str, seed: int, run_dir: Path, steps: int = 1_500_000) -> dict[str, Any]:
    """Trains until the goal is reached; the run's result."""
    algorithm, environment, numbers = CASES[name]
    distribution = distributions.load(name)(**numbers)
    run = runnel.train(
        algorithm, environment, distribution, steps=steps, seed=seed, stop_at_return=GOAL, run_dir=run_dir, quiet=True
    )
    return run.result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CASES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1_500_000, help="at most, of each run")
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    rows = []
    for name in options.names:
        with tempfile.TemporaryDirectory() as directory:
            result = train(name, options.seed, Path(directory) / "run", options.steps)
        algorithm, environment, numbers = CASES[name]
        wanted = ("mean_return", "env_steps", "updates", "wall_seconds", "startup_seconds", "steps_per_second",
                  "staleness_mean", "staleness_max", "bottleneck")  # fmt: skip
        rows.append({"distribution": name, "algorithm": algorithm, "environment": environment, **numbers,
                     **{key: result[key] for key in wanted}})  # fmt: skip
        print(
            f"{name:13} {algorithm:7} {result['mean_return']:6.1f} {result['env_steps']:>9,} steps "
            f"{result['wall_seconds']:6.1f} s, {result['startup_seconds']:5.1f} of them to the first update",
            flush=True,
        )
    save("distributions", {"machine": describe("gymnasium", "gymnax"), "runs": rows}, options.out)


if __name__ == "__main__":
    main()
