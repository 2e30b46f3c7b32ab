"""Shows that a restructuring changed nothing: two checkouts train to the same bits, and as fast.

    python tools/compare_checkouts.py hashes OLD --out old.json
    python tools/compare_checkouts.py hashes NEW --out new.json
    python tools/compare_checkouts.py diff old.json new.json          # exit status 1 where a run differs
    python tools/compare_checkouts.py throughput OLD NEW --out throughput.json

A checkout is a directory with a `.venv` in which its own runnel is installed. Only what is public is used (`runnel
train`, `runnel.train`, the files of a run directory), so modules may have other names on the two sides. `hashes` trains
every algorithm under distributions that compute the same in every run, and hashes each array of the last checkpoint.
Both sides need one machine, the same versions of packages and the same XLA_FLAGS.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DISTRIBUTIONS = ("inline", "fused", "coarse", "fine")
ENVS = 4


class Task(NamedTuple):
    """Where an algorithm is trained."""

    host: str  # for every distribution but fused
    jax: str  # for fused
    steps: int  # several iterations, and an end of an episode


CARTPOLE = Task("CartPole-v1", "gymnax:CartPole-v1", 512)
PENDULUM = Task("Pendulum-v1", "gymnax:Pendulum-v1", 1024)
TEAM = Task("pettingzoo:mpe2.simple_spread_v3", "jaxmarl:MPE_simple_spread_v3", 512)
TASKS = {"ddpg": PENDULUM, "sac": PENDULUM, "td3": PENDULUM, "mappo": TEAM, "qmix": TEAM, "vdn": TEAM}
"""By algorithm; any other is trained on CartPole."""

SMALL = {"unroll": 16, "hidden": (32,)}
SMALL_REPLAY = {"unroll": 4, "n_step": 2, "hidden": (32,), "batch": 32, "capacity": 512, "min_size": 64}
SMALL_REPLAY |= {"samples_per_insert": 8.0}  # few updates an iteration
SETTINGS: dict[str, dict[str, Any]] = dict.fromkeys(("ddpg", "sac", "td3"), SMALL_REPLAY)
SETTINGS |= {name: SMALL_REPLAY | {"target_period": 20} for name in ("c51", "dqn", "qmix", "vdn")}
"""By algorithm; `SMALL` for any other."""

VARIANTS = {
    "ppo with memory": ("ppo", CARTPOLE, {"memory": "gru", "memory_size": 16, "normalise_observations": True}),
    "ppo of a team": ("ppo", TEAM, {}),
    "ppo on a box": ("ppo", PENDULUM, {"popart": True}),
    "dqn with priorities": ("dqn", CARTPOLE, {"prioritised": True, "dueling": True}),
}
"""Settings that add much code to a program, besides each algorithm as it is."""

SPEEDS = {
    "ppo inline": ("ppo", "CartPole-v1", "inline", 300_000),
    "ppo fused": ("ppo", "gymnax:CartPole-v1", "fused", 3_000_000),
    "ppo coarse": ("ppo", "CartPole-v1", "coarse", 300_000),
    "impala async": ("impala", "CartPole-v1", "async", 200_000),
    "impala decoupled": ("impala", "CartPole-v1", "decoupled", 150_000),
}
"""What `throughput` runs, a few seconds each: algorithm, environment, distribution, steps."""


# Hashes


def hashes(args: argparse.Namespace) -> int:
    """Trains in the checkout's own Python, in one process, and writes what came out after every run."""
    if Path(sys.prefix) != args.checkout / ".venv":
        python = args.checkout / ".venv" / "bin" / "python"
        return subprocess.run([python, __file__, *sys.argv[1:]], check=False).returncode
    found: dict[str, Any] = {"about": about(args), "runs": {}}
    for name, (algorithm, task, settings) in cases():
        for distribution in args.distributions:
            run = f"{name}, {distribution}"
            if args.only and args.only not in run:
                continue
            started = time.monotonic()
            found["runs"][run] = trained(algorithm, task, settings, distribution, args.seed)
            args.out.write_text(json.dumps(found, indent=1) + "\n")
            print(f"{run}: {time.monotonic() - started:.1f} s {found['runs'][run].get('refused', '')}", flush=True)
    return 0


def about(args: argparse.Namespace) -> dict[str, Any]:
    """What the results depend on besides the code."""
    import jax

    import runnel

    assert Path(runnel.__file__).is_relative_to(args.checkout), f"runnel is that of {runnel.__file__}"
    commit = subprocess.run(
        ["git", "-C", args.checkout, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    flags = os.environ.get("XLA_FLAGS", "")
    return {"commit": commit, "seed": args.seed, "jax": jax.__version__, "xla_flags": flags, "cores": os.cpu_count()}


def cases() -> Iterator[tuple[str, tuple[str, Task, dict[str, Any]]]]:
    """Every algorithm of the checkout, then the variants: algorithm, task, settings."""
    from runnel import algorithms

    for name in algorithms.names():
        yield name, (name, TASKS.get(name, CARTPOLE), SETTINGS.get(name, SMALL))
    for name, (algorithm, task, settings) in VARIANTS.items():
        yield name, (algorithm, task, SETTINGS.get(algorithm, SMALL) | settings)


def trained(algorithm: str, task: Task, settings: dict[str, Any], distribution: str, seed: int) -> dict[str, Any]:
    """The hash of each array of the last checkpoint, and its counters; or why the run was refused."""
    import runnel

    fields: dict[str, Any] = {} if distribution in ("inline", "fused") else {"actors": 2}
    if distribution == "replicated":
        fields = {"learners": 2}
    environment = task.jax if distribution == "fused" else task.host
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        try:
            runnel.train(
                algorithm, environment, distribution, envs=ENVS, steps=task.steps, seed=seed, run_dir=run_dir,
                settings=settings, quiet=True, **fields,
            )  # fmt: skip
        except runnel.UserError as error:
            return {"refused": str(error)}
        return read_checkpoint(max((run_dir / "checkpoints").iterdir()))


def read_checkpoint(checkpoint: Path) -> dict[str, Any]:
    arrays = {}
    for part in ("state", "replay"):
        if (checkpoint / part).exists():
            arrays |= {f"{part} {name}": digest(array) for name, array in read_arrays(checkpoint / part).items()}
    counters = json.loads((checkpoint / "counters.json").read_text())
    del counters["wall_seconds"]
    return {"counters": counters, "arrays": arrays}


def read_arrays(part: Path) -> Mapping[str, Any]:
    import numpy as np
    import orbax.checkpoint as ocp

    with ocp.PyTreeCheckpointer() as checkpointer:
        names = checkpointer.metadata(part / "arrays").item_metadata.tree
        types = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
        return checkpointer.restore(part / "arrays", restore_args=types)


def digest(array: Any) -> str:
    """Of an array's dtype, shape and bytes."""
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()[:16]


# Differences


def diff(args: argparse.Namespace) -> int:
    """Prints what differs; a run that both refuse does not, whatever the words."""
    old, new = (json.loads(file.read_text()) for file in (args.old, args.new))
    print(f"old: {old['about']}\nnew: {new['about']}")
    differing = 0
    for run in sorted({*old["runs"], *new["runs"]}):
        lines = differences(old["runs"].get(run), new["runs"].get(run))
        differing += bool(lines)
        for line in lines:
            print(f"{run}: {line}")
    both = [run for run in old["runs"] if run in new["runs"]]
    refused = sum("refused" in old["runs"][run] for run in both)
    print(f"{len(both)} runs on both sides, {refused} of them refused; {differing} differ")
    return 1 if differing or not both else 0


def differences(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> list[str]:
    """One line for each thing of a run that is not the same on both sides."""
    if old is None or new is None:
        return [f"only on the {'new' if old is None else 'old'} side"]
    if "refused" in old or "refused" in new:
        if "refused" in old and "refused" in new:
            return []
        side, why = ("old", old["refused"]) if "refused" in old else ("new", new["refused"])
        return [f"refused on the {side} side alone: {why}"]
    lines = []
    for kind in ("counters", "arrays"):
        for name in sorted({*old[kind], *new[kind]}):
            a, b = old[kind].get(name, "absent"), new[kind].get(name, "absent")
            if a != b:
                lines.append(f"{name}: {a}, {b}")
    return lines


# Throughput


def throughput(args: argparse.Namespace) -> int:
    """Old and new in turns, each run a process of its own; an idle machine is needed."""
    speeds: dict[str, dict[str, list[float]]] = {name: {"old": [], "new": []} for name in SPEEDS}
    for turn in range(args.runs):
        for name, case in SPEEDS.items():
            sides = {"old": args.old, "new": args.new}
            for side in sides if turn % 2 == 0 else reversed(sides):
                speeds[name][side].append(speed(sides[side], case, seed=turn))
        args.out.write_text(json.dumps(speeds, indent=1) + "\n")
    print("| run | old, steps/s | new, steps/s | new / old |\n|---|---|---|---|")
    for name, by_side in speeds.items():
        old, new = by_side["old"], by_side["new"]
        print(f"| {name} | {spread(old)} | {spread(new)} | {statistics.median(new) / statistics.median(old):.3f} |")
    return 0


def speed(checkout: Path, case: tuple[str, str, str, int], seed: int) -> float:
    """Steps per second after the first update, as the run reports them."""
    algorithm, environment, distribution, steps = case
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "run"
        command = [checkout / ".venv" / "bin" / "runnel", "train", algorithm, environment, "--quiet"]
        command += ["--distribution", distribution, "--steps", str(steps), "--seed", str(seed), "--run-dir", run_dir]
        subprocess.run(command, check=True, cwd=directory)
        return json.loads((run_dir / "result.json").read_text())["steps_per_second"]


def spread(speeds: list[float]) -> str:
    return f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"


def path(text: str) -> Path:
    return Path(text).resolve()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for function, positional in ((hashes, ("checkout",)), (diff, ("old", "new")), (throughput, ("old", "new"))):
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(run=function)
        for name in positional:
            command.add_argument(name, type=path)
        if function is not diff:
            command.add_argument("--out", type=path, required=True)
        if function is hashes:
            command.add_argument("--seed", type=int, default=1)
            command.add_argument("--distributions", nargs="+", default=DISTRIBUTIONS)
            command.add_argument("--only", help="runs whose name has this in it, such as 'sac, coarse'")
        if function is throughput:
            command.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
