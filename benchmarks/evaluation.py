"""Claim: evaluation every 100,000 steps on a spare core costs a run less than 3% of its throughput.

IMPALA on Pong under `decoupled`, with as many environment workers on both sides, alternating: without evaluation, and
with one evaluation worker. Compared is `steps_per_second` of `result.json`, which counts from the first update.

    python benchmarks/evaluation.py --actors 13 --envs 104 --steps 2000000       a machine of 16 cores and a GPU
    python benchmarks/evaluation.py --environment CartPole-v1 --actors 1 --steps 100000 --eval-every 20000

Where a command may not take long, each makes one pair and adds it to those before:

    python benchmarks/evaluation.py --runs 1 --out pairs
    python benchmarks/evaluation.py --runs 1 --out pairs --first-seed 1 --add pairs/evaluation-DEVICE-DATE.json
"""

from __future__ import annotations

import argparse
import json
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
    parser.add_argument("--add", metavar="FILE", type=Path, help="a result whose runs come first")
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    about = machine.describe_elsewhere("runnel", "ale_py")
    found = {"without": [], "with": []} if args.add is None else earlier(args, about)
    for seed in range(args.first_seed, args.first_seed + args.runs):
        for name, evaluated in (("without", False), ("with", True)):
            found[name].append({"seed": seed, **run(args, seed, evaluated)})
            print(f"{name} evaluation, seed {seed}: {found[name][-1]}", flush=True)
        report(found, args, about)  # after each pair: a benchmark that is cut off keeps what it has


def compared(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments that must be equal for runs to be compared."""
    others = ("add", "out", "runs", "first_seed")
    return {name: value for name, value in vars(args).items() if name not in others}


def earlier(args: argparse.Namespace, about: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The runs of an earlier result, refused if they cannot be compared with those of these arguments."""
    result = json.loads(args.add.read_text())
    for what, before, now in (
        ("arguments", result["asked"], compared(args)),
        *((what, result["machine"][what], about[what]) for what in ("cores", "device", "python", "versions")),
    ):
        if before != now:
            sys.exit(f"--add {args.add}: found {what} {before}, expected {now}")
    seeds = {run["seed"] for run in result["runs"]["with"]}
    if again := seeds & set(range(args.first_seed, args.first_seed + args.runs)):
        sys.exit(f"--add {args.add}: found runs of seed {min(again)}; choose another --first-seed")
    return result["runs"]


def report(found: dict[str, list[dict[str, Any]]], args: argparse.Namespace, about: dict[str, Any]) -> None:
    medians = {name: statistics.median(each["steps_per_second"] for each in runs) for name, runs in found.items()}
    ratio = medians["with"] / medians["without"]
    print(f"with evaluation {medians['with']:,.0f} steps/s, without {medians['without']:,.0f}: {ratio:.3f}", flush=True)
    result = {"machine": about, "asked": compared(args), "runs": found, "ratio": ratio}
    machine.save("evaluation", result, args.out)


if __name__ == "__main__":
    main()
