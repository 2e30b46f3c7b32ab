"""Claim: each knob of docs/performance-knobs.md changes the speed of a run; this says by how much on this machine.

For each knob, a run with it and one without alternate, in one process each. Speeds are steps per second after the
first update, as runs report them.

    python benchmarks/knobs.py                     # all of them
    python benchmarks/knobs.py --only envs unroll  # some
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine

HOST = "train ppo CartPole-v1 --distribution inline"
JAX = "train ppo gymnax:CartPole-v1 --distribution fused"
STEPPED = "train ppo CartPole-v1 --distribution fine --actors 1 --envs 32 --set unroll=64"

KNOBS = {  # without the knob, and with it
    "fused": ("train ppo gymnax:CartPole-v1 --distribution inline --envs 64", f"{JAX} --envs 64"),
    "envs": (f"{HOST} --envs 4 --set unroll=64", f"{HOST} --envs 32 --set unroll=64"),
    "unroll": (f"{JAX} --envs 64 --set unroll=16", f"{JAX} --envs 64 --set unroll=128"),
    "epochs": (f"{HOST} --envs 8 --set epochs=10", f"{HOST} --envs 8 --set epochs=4"),
    "minibatches": (f"{HOST} --envs 8 --set minibatches=16", f"{HOST} --envs 8 --set minibatches=4"),
    "hidden": (f"{HOST} --envs 8 --set hidden=256,256", f"{HOST} --envs 8 --set hidden=64,64"),
    "env_splits": (STEPPED, f"{STEPPED} distribution.env_splits=4"),
    "scan_unroll": (f"{JAX} --envs 256 --set scan_unroll=1", f"{JAX} --envs 256 --set scan_unroll=4"),
    "actors": (f"{HOST} --envs 32", "train ppo CartPole-v1 --distribution coarse --actors 2 --envs 32"),
    "async": (
        "train impala CartPole-v1 --distribution coarse --actors 2 --envs 32",
        "train impala CartPole-v1 --distribution async --actors 2 --envs 32",
    ),
}


def rate(command: str, steps: int) -> float:
    """Steps per second of a run after its first update."""
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        words = [*command.split(), "--steps", str(steps), "--seed", "1", "--quiet", "--run-dir", str(run_dir)]
        subprocess.run([sys.executable, "-m", "runnel", *words], check=True, cwd=ROOT, timeout=900)
        found = json.loads((run_dir / "result.json").read_text())["steps_per_second"]
    if found is None:
        raise SystemExit(f"{command}: found nothing to time after the first update; expected more --steps than {steps}")
    return float(found)


def compare(name: str, rounds: int, steps: int) -> dict[str, Any]:
    """Both runs of a knob, in turns."""
    pairs = [[rate(command, steps) for command in KNOBS[name]] for _ in range(rounds)]
    without, having = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{name:12} {without:12,.0f} {having:12,.0f} steps/s  {having / without:.2f}x", flush=True)
    return {"commands": KNOBS[name], "rates": pairs, "ratio_of_medians": having / without}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KNOBS, default=list(KNOBS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--out", help="directory for the raw results")
    args = parser.parse_args()
    knobs = {name: compare(name, args.rounds, args.steps) for name in args.only}
    print(machine.save("knobs", {"machine": machine.describe("gymnasium", "gymnax"), "knobs": knobs}, args.out))


if __name__ == "__main__":
    main()
