"""Claim: a sweep in one program takes a small part of the GPU seconds of runs one by one; halving, half of those.

64 trials of PPO on gymnax Acrobot-v1: learning rate, entropy cost and clip, by Optuna's random sampler, so that all
parts try the same settings. Measured, in this order and in one process:

  one program   `runnel.sweep` with all trials in one batch, which is one XLA program
  halving       the same trials with successive halving
  one by one    `runnel.train` for each trial of the first part; `--sample` of them, spread evenly, scaled to all

Seconds are those of the clock on a machine where nothing else runs: with compilation, evaluations, checkpoints and
sessions. How many of them went into compilation is reported too, for sweeps with that of the winner, and a first, tiny
sweep that is not counted pays for what a process does once. The seconds of the winner's seeds are apart. The winner of
either sweep is trained again on ten unseen seeds and evaluated: 64 greedy episodes each.

Halving saves no more than what the smaller programs of its rungs cost less: on a GPU that is steps only where even they
fill it. Hence many environments for each run by default on a GPU.

    python benchmarks/sweep_members.py                                                         # one GPU
    python benchmarks/sweep_members.py --trials 8 --envs 16 --steps 30000 --seeds 1 --winner-seeds 2 --sample 2  # CPU
    python benchmarks/sweep_members.py --seeds 1 --envs 16 --steps 100000 --sample 0            # CPU, all 64 runs

Results are saved after each part; a part that fails is named with its error.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
from jax.experimental.compilation_cache import compilation_cache

import runnel
from benchmarks import _machine as machine
from runnel import LogUniform, Uniform
from runnel.config.jax_config import configure_jax
from runnel.execution.sweeps.sweep import Sweep

ENVIRONMENT = "gymnax:Acrobot-v1"
OVER = {"learning_rate": LogUniform(1e-5, 1e-1), "entropy_cost": LogUniform(1e-4, 1e-1), "clip": Uniform(0.05, 0.4)}


class Compiling:
    """Seconds in which this process has compiled: in several threads at once, more than the clock's."""

    def __init__(self):
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        del kwargs
        if event in ("/jax/core/compile/backend_compile_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration"):
            self.seconds += duration_secs


def common(args: argparse.Namespace) -> dict[str, Any]:
    """What all runs share."""
    return {
        "envs": args.envs, "steps": args.steps, "settings": {"unroll": args.unroll}, "eval_every": args.steps,
        "eval_episodes": args.eval_episodes, "quiet": True,
    }  # fmt: skip


def swept(args: argparse.Namespace, place: Path, **more: Any) -> tuple[dict[str, Any], Sweep]:
    started = time.perf_counter()
    found = runnel.sweep(
        "ppo", ENVIRONMENT, "fused", over=OVER, trials=args.trials, sampler=args.sampler, seeds=args.seeds,
        winner_seeds=args.winner_seeds, seed=args.seed, run_dir=place, **common(args), **more,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    winner = 0.0 if found.winner is None else found.winner.result["wall_seconds"]
    steps = sum(trial["steps"] for trial in found.result["trials"]) * args.seeds
    result = {
        "seconds": seconds - winner,
        "winner_seconds": winner,
        "env_steps": steps,
        "best": found.best,
        "winner": found.result["winner"],
        "trials": [
            {name: trial[name] for name in ("status", "objective", "steps", "settings")}
            for trial in found.result["trials"]
        ],
    }
    return result, found


def one_by_one(args: argparse.Namespace, trials: list[dict[str, Any]], place: Path) -> dict[str, Any]:
    count = min(args.sample or len(trials), len(trials))
    chosen = [trials[k * len(trials) // count] for k in range(count)]
    seconds: list[float] = []
    for number, trial in enumerate(chosen):
        for seed in range(args.seed, args.seed + args.seeds):
            asked = common(args)
            asked["settings"] = {**asked["settings"], **trial["settings"]}
            started = time.perf_counter()
            runnel.train("ppo", ENVIRONMENT, "fused", seed=seed, run_dir=place / f"{number}-{seed}", **asked)
            seconds.append(time.perf_counter() - started)
            print(f"one by one: run {len(seconds)} of {count * args.seeds} took {seconds[-1]:.1f} s", flush=True)
    factor = len(trials) * args.seeds / len(seconds)
    return {
        "runs": len(seconds),
        "of": len(trials) * args.seeds,
        "each": seconds,
        "seconds": sum(seconds) * factor,
        "factor": factor,
    }


def main() -> None:
    configure_jax()  # before JAX looks for devices
    gpu = jax.default_backend() != "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=2, help="of each trial")
    parser.add_argument("--envs", type=int, default=512 if gpu else 16, help="of each run")
    parser.add_argument("--unroll", type=int, default=32)
    parser.add_argument("--steps", type=int, default=16_000_000 if gpu else 200_000, help="of each run")
    parser.add_argument("--halving", type=int, default=4)
    parser.add_argument("--rungs", type=int, help="of halving (as many as `runnel.sweep` takes)")
    parser.add_argument("--batch", type=int, help="of halving (what `runnel.sweep` takes)")
    parser.add_argument("--sampler", choices=("random", "tpe"), default="random")
    parser.add_argument("--winner-seeds", type=int, default=10)
    parser.add_argument("--eval-episodes", type=int, default=64)
    parser.add_argument("--sample", type=int, default=4, help="how many trials are run one by one; 0: all")
    parser.add_argument("--warm-up", action=argparse.BooleanOptionalAction, default=True, help="a tiny sweep before")
    parser.add_argument("--parts", nargs="+", choices=("one program", "halving", "one by one"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    compiling = Compiling()
    about = machine.describe("optuna", "gymnax")

    def part(name: str, place: Path, what: Callable[[], dict[str, Any]]) -> None:
        if args.parts is not None and name not in args.parts:
            return
        # What an earlier part has compiled is no help to a later one.
        compilation_cache.reset_cache()
        jax.config.update("jax_compilation_cache_dir", str(place / f"{name} xla"))
        before = compiling.seconds
        try:
            found[name] = what()
            found[name]["compiling"] = (compiling.seconds - before) * found[name].pop("factor", 1.0)
        except Exception as error:  # what other parts have measured stays
            found[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(_line(name, found[name]), flush=True)
        machine.save("sweep_members", {"machine": about, "settings": vars(args), **found}, args.out)

    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        if args.warm_up:
            tiny = argparse.Namespace(**{**vars(args), "trials": 2, "steps": 2 * args.unroll * args.envs, "seeds": 1})
            swept(argparse.Namespace(**{**vars(tiny), "winner_seeds": 0, "eval_episodes": 1}), place / "warm-up")
        part("one program", place, lambda: swept(args, place / "one", batch=args.trials)[0])
        halving = {"halving": args.halving, "rungs": args.rungs, "batch": args.batch}
        part("halving", place, lambda: swept(args, place / "halving", **halving)[0])
        trials = next((each["trials"] for each in found.values() if "trials" in each), None)
        if trials is not None:
            part("one by one", place, lambda: one_by_one(args, trials, place))
    for other, what in (("halving", "halving takes"), ("one by one", "one by one takes")):
        one, two = found.get("one program", {}), found.get(other, {})
        if "seconds" in one and "seconds" in two:
            training = [part["seconds"] - part["compiling"] for part in (one, two)]
            shown = f"{two['seconds'] / one['seconds']:.2f} of the seconds of one program"
            print(f"{what} {shown}; without compilation {training[1] / training[0]:.2f}", flush=True)


def _line(name: str, result: dict[str, Any]) -> str:
    if "error" in result:
        return f"{name} failed: {result['error'][:300]}"
    text = f"{name}: {result['seconds']:.1f} s, {result['compiling']:.1f} s of them compiling"
    if "of" in result:
        return f"{text}, by {result['runs']} of {result['of']} runs"
    text += f", {result['env_steps']:,} steps; best {_settings(result['best'])}"
    winner = result["winner"]
    if winner is None or "iqm_return" not in winner:
        return text
    low, high = winner["iqm_interval"]
    return f"{text}; winner on {len(winner['seeds'])} unseen seeds {winner['iqm_return']:.1f} ({low:.1f} to {high:.1f})"


def _settings(best: dict[str, Any] | None) -> str:
    return "none" if best is None else " ".join(f"{name}={value:.2g}" for name, value in best.items())


if __name__ == "__main__":
    main()
