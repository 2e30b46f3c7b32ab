"""Claim: evaluation every 100,000 steps on a spare core costs a run less than 3% of its throughput.

IMPALA on Pong under `decoupled`, with as many environment workers on both sides, alternating: without evaluation, and
with one evaluation worker. Compared is `steps_per_second` of `result.json`, which counts from the first update.

    python benchmarks/evaluation.py --actors 13 --envs 104 --steps 2000000       a machine of 16 cores and a GPU
    python benchmarks/evaluation.py --environment CartPole-v1 --actors 1 --steps 100000 --eval-every 20000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine


def run(args: argparse.Namespace, seed: int, evaluated: bool) -> dict[str, Any]:
    """Steps a second of one run, and how many evaluations it made."""
    import runnel
    from runnel.recording.evaluation_log import read_evaluations

    more = {"eval_every": args.eval_every, "eval_episodes": args.episodes, "eval_workers": 1} if evaluated else {}
    with tempfile.TemporaryDirectory() as place:
        found = runnel.train(
            "impala", args.environment, "decoupled", actors=args.actors, inference=args.inference, steps=args.steps,
            envs=args.envs, seed=seed, run_dir=Path(place) / "run", quiet=True, **more,
        )  # fmt: skip
        made = len(read_evaluations(Path(place) / "run"))
    return {
        "steps_per_second": found.result["steps_per_second"],
        "evaluations": made,
        "skipped": found.result.get("evaluations_skipped", 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", default="ALE/Pong-v5")
    parser.add_argument("--actors", type=int, default=13)
    parser.add_argument("--inference", type=int, default=1)
    parser.add_argument("--envs", type=int, default=None)
    parser.add_argument("--steps", type=int, default=2_000_000)
    parser.add_argument("--eval-every", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--runs", type=int, default=3, help="of each side")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first run; others follow")
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"without": [], "with": []}
    about = machine.describe_elsewhere("runnel", "ale_py")
    for seed in range(args.first_seed, args.first_seed + args.runs):
        for name, evaluated in (("without", False), ("with", True)):
            found[name].append(run(args, seed, evaluated))
            print(f"{name} evaluation, seed {seed}: {found[name][-1]}", flush=True)
        report(found, args, about)  # after each pair: a benchmark that is cut off keeps what it has


def report(found: dict[str, list[dict[str, Any]]], args: argparse.Namespace, about: dict[str, Any]) -> None:
    medians = {name: statistics.median(each["steps_per_second"] for each in runs) for name, runs in found.items()}
    ratio = medians["with"] / medians["without"]
    print(f"with evaluation {medians['with']:,.0f} steps/s, without {medians['without']:,.0f}: {ratio:.3f}", flush=True)
    asked = {name: value for name, value in vars(args).items() if name != "out"}
    result = {"machine": about, "asked": asked, "runs": found, "ratio": ratio}
    machine.save("evaluation", result, args.out)


if __name__ == "__main__":
    main()
