"""Claim: `precision=bf16` reaches the returns of float32.

PPO on CartPole, as one XLA program, with the same seeds under both precisions. The score of a run is the mean return of
its last 100 training episodes. It compares scores, not speed: CPUs have no units for bfloat16.

    python benchmarks/precision.py
    python benchmarks/precision.py --environment gymnax:Acrobot-v1 --seeds 5
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine

PRECISIONS = ("float32", "bf16")


def returns(precision: Any, environment: str, seeds: int, steps: int) -> list[float]:
    """The score of each seed."""
    import runnel

    with tempfile.TemporaryDirectory() as directory:
        found = runnel.train_members(
            "ppo", environment, "fused", seeds=seeds, steps=steps, precision=precision, quiet=True,
            run_dir=f"{directory}/runs",
        )  # fmt: skip
        results = [json.loads((member / "result.json").read_text()) for member in found.members]
        return [float(result["mean_return"]) for result in results]


def main() -> None:
    import numpy as np

    from runnel.reporting.statistics import confidence_interval

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="gymnax:CartPole-v1")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500_000)
    parser.add_argument("--out", help="a directory for the results")
    args = parser.parse_args()
    found = {each: returns(each, args.environment, args.seeds, args.steps) for each in PRECISIONS}
    for precision, scores in found.items():
        low, high = confidence_interval(np.array(scores))
        print(f"{precision:<8} mean return {np.mean(scores):8.1f}   95% interval {low:.1f} to {high:.1f}")
    differences = np.subtract(found["bf16"], found["float32"])
    low, high = confidence_interval(differences)
    print(f"bf16 - float32, seed by seed: {differences.mean():+.1f}   95% interval {low:+.1f} to {high:+.1f}")
    result = {
        "machine": machine.describe("flax", "gymnax"), "environment": args.environment, "steps": args.steps,
        "first_seed": 0, "returns": found,
    }  # fmt: skip
    print(machine.save("precision", result, args.out))


if __name__ == "__main__":
    main()
