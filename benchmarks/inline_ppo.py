"""Claim: PPO on Gymnasium's CartPole, in one process, is at least 5 times as fast as Stable-Baselines3.

Both sides run in turns, each in a process of its own, at the settings of Stable-Baselines3's PPO: 8 environments,
256 steps, minibatches of 256, 4 epochs, two 64-unit tanh towers. Rates exclude start-up and the first update.

    python benchmarks/inline_ppo.py --peer-python PATH   # one that has stable-baselines3; this one by default
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine

OURS = """
import json, sys, runnel
from runnel.algorithms.ppo import PPO
steps, seed, run_dir = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
algorithm = PPO(unroll=256, minibatches=8, epochs=4, learning_rate=3e-4)
run = runnel.train(algorithm, "CartPole-v1", "inline", envs=8, steps=steps, seed=seed, run_dir=run_dir, quiet=True)
print(json.dumps(run.result))
"""


def ours(steps: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        arguments = [sys.executable, "-c", OURS, str(steps), str(seed), f"{directory}/run"]
        return _json_of(arguments)


def peer(python: str, steps: int, seed: int, threads: int) -> dict[str, Any]:
    script = str(ROOT / "benchmarks" / "reference" / "sb3_ppo.py")
    return _json_of([python, script, "--steps", str(steps), "--seed", str(seed), "--threads", str(threads)])


def _json_of(command: list[str]) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:2])} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1 is the faster on two cores")
    parser.add_argument("--out", help="directory for the raw results")
    args = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {"stable-baselines3": [], "runnel": []}
    for run in range(args.runs):
        rows["stable-baselines3"].append(peer(args.peer_python, args.steps, run, args.threads))
        rows["runnel"].append(ours(3 * args.steps, run))
        print({name: round(row[-1]["steps_per_second"]) for name, row in rows.items()}, flush=True)
    rates = {name: statistics.median(row["steps_per_second"] for row in kept) for name, kept in rows.items()}
    ratio = rates["runnel"] / rates["stable-baselines3"]
    print(f"medians {rates}, {ratio:.2f}x")
    about = machine.describe("gymnasium", "flax")
    result = {"machine": about, "runs": rows, "ratio_of_medians": ratio}
    print(machine.save("inline_ppo", result, args.out))


if __name__ == "__main__":
    main()
