"""Claim: population-based training from deliberately bad learning rates reaches 95% of the best fixed setting.

PPO with its tuned settings, but for the learning rate, on gymnax CartPole-v1 and on MinAtar's Breakout. Compared, each
in one program of members under `fused`, with as many steps for each member:

  fixed    a grid of learning rates, each with `--repetitions` seeds; the best one is that with the highest mean. This
           favours it: its rate is chosen by the returns that it is then compared by.
  PBT      `--members` members whose learning rates are at first 10 to 300 times too small or too large
  random   `--members` learning rates drawn from the whole range that PBT may come to: the same budget

PBT compares members by their newest 100 episodes, doubles or halves the learning rate of copies, and decides
`--rounds` times. Of a PBT run and of a random search counts the member with the best final evaluation. It, and each
seed of the best fixed rate, is then evaluated on fresh episodes, the same number for all: the best of many evaluations
is also lucky. `--fresh-episodes 0` leaves that out. Results are saved after every part; a part that fails is named.

    python benchmarks/population.py                                                              # one GPU
    python benchmarks/population.py --tasks gymnax:CartPole-v1 --repetitions 2 --members 8 --rates 5   # two cores
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

import runnel
from benchmarks import _machine as machine
from runnel import PBT, LogUniform
from runnel.config.jax_config import configure_jax
from runnel.evaluation.evaluate import evaluate

RANGE = LogUniform(1e-6, 1.0)
"""Learning rates that PBT may come to, and that random search draws from."""

GRID = (1e-5, 1e-1)
"""The ends of the grid of fixed learning rates."""


@dataclass(frozen=True)
class Task:
    steps: int  # of each member
    good: float  # a learning rate that is known to work, which the bad ones are far from
    settings: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "gymnax:CartPole-v1": Task(500_000, 2.5e-3),
    "gymnax:Acrobot-v1": Task(500_000, 1e-3, {"normalise_observations": True, "entropy_cost": 0.01}),
    # Its tuned learning rate falls to 0 over 10 M steps; here over those that there are.
    "gymnax:Breakout-MinAtar": Task(5_000_000, 5e-3, {"anneal_steps": 5_000_000}),
}


def bad_rates(good: float, members: int) -> list[float]:
    """Far from a good one on both sides, spread evenly in their logarithm."""
    small = members - members // 2
    return [
        *(good / 10 ** float(x) for x in np.linspace(1.0, 2.5, small)),
        *(min(good * 10 ** float(x), RANGE.high) for x in np.linspace(1.0, 2.0, members - small)),
    ]


class Comparison:
    """The parts of one task, each with the same steps for each member."""

    def __init__(self, environment: str, args: argparse.Namespace, place: Path):
        self._environment, self._args, self._place = environment, args, place
        self._task = TASKS[environment]
        self.steps = args.steps or self._task.steps
        settings = dict(self._task.settings)
        if "anneal_steps" in settings:
            settings["anneal_steps"] = self.steps
        self._common = {
            "steps": self.steps, "settings": settings, "quiet": True, "eval_every": self.steps,
            "eval_episodes": args.eval_episodes, "on_nan": "skip", **({"envs": args.envs} if args.envs else {}),
        }  # fmt: skip

    def fixed(self) -> dict[str, Any]:
        rates = [float(rate) for rate in np.geomspace(*GRID, self._args.rates)]
        count, place = self._args.repetitions, self._place / "fixed"
        found = runnel.train_members(
            "ppo", self._environment, "fused", seeds=count, seed=self._args.seed, run_dir=place,
            variants=[{"learning_rate": rate} for rate in rates], **self._common,
        )  # fmt: skip
        # Members come variant by variant, each with all seeds.
        returns = [run["return"] for run in found.result["runs"]]
        by_rate = [returns[k * count : (k + 1) * count] for k in range(len(rates))]
        best = max(range(len(rates)), key=lambda k: _mean(by_rate[k]))
        finals = [self._final(place, best * count + k, returns[best * count + k]) for k in range(count)]
        return {"rates": rates, "returns": by_rate, "best_rate": rates[best], "finals": finals}

    def pbt(self, repetition: int) -> dict[str, Any]:
        members, place = self._args.members, self._place / f"pbt-{repetition}"
        rule = PBT(
            every=max(1, self.steps // (self._args.rounds + 1)), quantile=self._args.quantile,
            perturb={"learning_rate": RANGE}, factors=(0.5, 2.0),
        )  # fmt: skip
        begin = bad_rates(self._task.good, members)
        asked = {**self._common, "eval_every": None}
        found = runnel.train_population(
            "ppo", self._environment, "fused", rule=rule, members=members, seed=self._seed(repetition), run_dir=place,
            variants=[{"learning_rate": rate} for rate in begin], **asked,
        )  # fmt: skip
        best = found.result["best"]
        ended = [run["settings"]["learning_rate"] for run in found.result["runs"]]
        return {
            "begin": begin,
            "end": ended,
            "best_rate": best["settings"]["learning_rate"],
            "rounds": len(found.result["lineage"]),
            "returns": [run["return"] for run in found.result["runs"]],
            "final": self._final(place, best["member"], best["score"]),
        }

    def random(self, repetition: int) -> dict[str, Any]:
        place, rng = self._place / f"random-{repetition}", np.random.default_rng([self._args.seed, repetition])
        rates = [RANGE.sample(rng) for _ in range(self._args.members)]
        found = runnel.train_members(
            "ppo", self._environment, "fused", seeds=1, seed=self._seed(repetition), run_dir=place,
            variants=[{"learning_rate": rate} for rate in rates], **self._common,
        )  # fmt: skip
        returns = [run["return"] for run in found.result["runs"]]
        best = max(range(len(rates)), key=lambda k: _mean([returns[k]]))
        return {
            "rates": rates,
            "best_rate": rates[best],
            "returns": returns,
            "final": self._final(place, best, returns[best]),
        }

    def _seed(self, repetition: int) -> int:
        """No member shares one with those of other repetitions."""
        return self._args.seed + 10_000 * (repetition + 1)

    def _final(self, place: Path, member: int, known: float | None) -> float | None:
        """The mean return of the greedy policy on fresh episodes."""
        if not self._args.fresh_episodes:
            return known
        found = evaluate(place, self._args.fresh_episodes, 123_456, member=member)
        return float(found["mean_return"])


def _mean(returns: Sequence[float | None]) -> float:
    """Of runs that failed nothing is known: they count as the worst."""
    known = [each for each in returns if each is not None and math.isfinite(each)]
    return statistics.fmean(known) if known and len(known) == len(returns) else -math.inf


def compare(environment: str, args: argparse.Namespace, place: Path, keep: Callable[[dict[str, Any]], None]) -> None:
    comparison = Comparison(environment, args, place)
    result: dict[str, Any] = {"environment": environment, "steps": comparison.steps, "pbt": [], "random": []}

    def attempt(what: str, run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        started, found = time.perf_counter(), dict[str, Any]()
        try:
            found |= run()
        except Exception as error:  # what other parts have measured stays
            found["error"] = f"{type(error).__name__}: {error}"[:2000]
        found["seconds"] = time.perf_counter() - started
        print(_line(environment, what, found), flush=True)
        return found

    result["fixed"] = attempt("fixed", comparison.fixed)
    keep(result)
    for repetition in range(args.repetitions):
        for part, run in (("pbt", comparison.pbt), ("random", comparison.random)):
            result[part].append(attempt(f"{part} {repetition}", lambda run=run, k=repetition: run(k)))
            result["summary"] = summary(result)
            keep(result)
    shown = ", ".join(f"{name} {value:.3g}" for name, value in result.get("summary", {}).items())
    print(f"{environment}: {shown}", flush=True)


def summary(result: dict[str, Any]) -> dict[str, float]:
    """Means over repetitions, and what part of the best fixed setting they are, where returns are positive."""
    finals = {part: [each["final"] for each in result[part] if "final" in each] for part in ("pbt", "random")}
    means = {"fixed": _mean(result["fixed"].get("finals", [])), **{part: _mean(finals[part]) for part in finals}}
    found = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    if found.get("fixed", 0.0) > 0:
        found |= {f"{part} of fixed": found[part] / found["fixed"] for part in finals if part in found}
    elif "fixed" in found:
        found |= {f"{part} minus fixed": found[part] - found["fixed"] for part in finals if part in found}
    return found


def _line(environment: str, what: str, found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{environment}: {what} failed: {found['error'][:300]}"
    text = f"{environment}: {what}: learning rate {found['best_rate']:.2g}"
    if "finals" in found:
        shown = ", ".join("none" if each is None else f"{each:.1f}" for each in found["finals"])
    else:
        shown = "none" if found["final"] is None else f"{found['final']:.1f}"
    return f"{text}, final return {shown}; {found['seconds']:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS)[::2])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--steps", type=int, help="of each member (by task)")
    parser.add_argument("--envs", type=int, help="of each member (as tuned)")
    parser.add_argument("--rounds", type=int, default=20, help="decisions of PBT")
    parser.add_argument("--quantile", type=float, default=0.25)
    parser.add_argument("--rates", type=int, default=9, help="of the grid")
    parser.add_argument("--eval-episodes", type=int, default=20, help="by which the best is chosen")
    parser.add_argument("--fresh-episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    configure_jax()
    about = machine.describe("gymnax")
    results: dict[str, Any] = {}
    for environment in args.tasks:

        def keep(result: dict[str, Any], environment: str = environment) -> None:
            results[environment] = result
            raw = {"machine": about, "settings": vars(args), "results": list(results.values())}
            machine.save("population", raw, args.out)

        with tempfile.TemporaryDirectory() as place:
            compare(environment, args, Path(place), keep)


if __name__ == "__main__":
    main()
