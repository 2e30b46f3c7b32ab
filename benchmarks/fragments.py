"""Claim: a run reaches 90% of what its fragments allow.

Each fragment runs alone, all its replicas at once, in processes like those of the run, with peers that answer at once
and take everything; before the run and after it, because a machine does not stay as fast as it was. `async` and
`decoupled`, with a core per worker, should reach 90% of their slowest fragment; `coarse` and `fine`, whose fragments
wait for each other, 90% of one over the sum of the times that their fragments take alone, a fragment being as fast as
its slowest replica. The environment costs what the case says, by work in Python.

    python benchmarks/fragments.py                               # cases for the cores that are there
    python benchmarks/fragments.py async:environment --runs 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

GOAL = 0.9


@dataclass(frozen=True)
class Case:
    """A run to be measured; `cost_us` is of an environment's step."""

    distribution: str
    algorithm: str
    cost_us: float
    settings: dict[str, Any] = field(default_factory=dict)
    envs: int = 16  # of each actor

    @property
    def free(self) -> bool:
        return self.distribution in ("async", "decoupled")


CASES = {
    "async:environment": Case("async", "impala", 100.0),
    "async:learner": Case("async", "impala", 3.0, {"hidden": [512, 512]}),
    "decoupled:environment": Case("decoupled", "impala", 100.0),
    "coarse": Case("coarse", "ppo", 30.0, {"unroll": 64}),
    "fine": Case("fine", "ppo", 30.0, {"unroll": 64}),
}


def build(case: Case, actors: int, work: int) -> Any:
    from benchmarks import _costly
    from runnel import algorithms, distributions
    from runnel.execution import building

    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in case.settings.items()}
    return building.build(
        algorithms.load(case.algorithm)(**settings),
        _costly.NAME,
        distributions.load(case.distribution)(actors=actors),  # type: ignore[call-arg]
        case.envs * actors,
        env_settings={"work": work},
    )


def alone(
    name: str, fragment: str, replicas: int, actors: int, work: int, seconds: float, threads: int
) -> list[dict[str, float]]:
    """What each replica of a fragment counts, in new processes with as many threads as they have in the run."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        "--alone",
        name,
        fragment,
        str(actors),
        str(work),
        str(seconds),
    ]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": str(threads), "PJRT_NPROC": str(threads)}
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
        for _ in range(replicas)
    ]
    counted = []
    for process in processes:
        said, failed = process.communicate(timeout=300)
        if process.returncode:
            raise SystemExit(f"{name}: {fragment} alone failed:\n{failed[-3000:]}")
        counted.append(json.loads(said.splitlines()[-1]))
    return counted


def alone_process(name: str, fragment: str, actors: int, work: int, seconds: float) -> None:
    from benchmarks import _alone
    from runnel.config.jax_config import configure_jax

    configure_jax()
    print(json.dumps(_alone.alone(build(CASES[name], actors, work), fragment, seconds)))


def measure(name: str, actors: int, work: int, seconds: float) -> dict[str, Any]:
    """Fragments alone and the run, in steps of all environments per second."""
    from benchmarks import _costly, _runs

    case = CASES[name]
    built = build(case, actors, work)
    plan, cores = built.plan, os.cpu_count() or 1

    def fragments_alone() -> dict[str, float]:
        rates = {}
        for fragment in plan.fragments:
            learns = "learner" in fragment.name
            threads = max(1, cores - plan.workers + fragment.replicas) if learns else 1
            counted = alone(name, fragment.name, fragment.replicas, actors, work, seconds, threads)
            each = [c["updates"] * plan.steps_per_iteration if learns else c["env_steps"] for c in counted]
            rates[fragment.name] = sum(each) if case.free else min(each) * len(each)
        return rates

    before = fragments_alone()
    shares = _runs.watch(
        built.algorithm, _costly.NAME, built.distribution, plan.envs, {"work": work}, 1.0, seconds
    )  # fmt: skip
    after = fragments_alone()
    rates = {fragment: statistics.fmean((rate, after[fragment])) for fragment, rate in before.items()}
    run = shares["learner"].rate("updates") * plan.steps_per_iteration
    allowed = min(rates.values()) if case.free else 1 / sum(1 / rate for rate in rates.values())
    return {
        "workers": plan.workers,
        "alone": rates,
        "before": before,
        "after": after,
        "run": run,
        "allowed": allowed,
        "ratio": run / allowed,
        "stolen": shares["learner"].stolen,
        "waiting": {worker: round(share.waiting, 4) for worker, share in shares.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--actors", type=int, help="so that each worker has a core, if not told")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--out", help="directory for the raw results")
    parser.add_argument("--alone", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    if args.alone:
        name, fragment, actors, work, seconds = args.alone
        return alone_process(name, fragment, int(actors), int(work), float(seconds))
    unknown = [name for name in args.cases if name not in CASES]
    if unknown:
        raise SystemExit(f"there is no case '{unknown[0]}'; there are {', '.join(CASES)}")
    from benchmarks import _costly
    from benchmarks import _machine as machine

    cores, results = os.cpu_count() or 1, {}
    about = machine.describe("gymnasium", "flax", "optax")
    settings = {"seconds": args.seconds, "cases": {name: vars(CASES[name]) for name in args.cases}}
    path = None
    for name in args.cases:
        case = CASES[name]
        others = 2 if case.distribution == "decoupled" else 1
        actors = args.actors or max(1, cores - others)
        work = _costly.work_for(case.cost_us)
        runs = [measure(name, actors, work, args.seconds) for _ in range(args.runs)]
        middle = statistics.median(run["ratio"] for run in runs)
        results[name] = {"actors": actors, "cost_us": case.cost_us, "work": work, "runs": runs, "ratio": middle}
        last = runs[-1]
        told = ", ".join(f"{fragment} {rate:,.0f}" for fragment, rate in last["alone"].items())
        what = "the slowest" if case.free else "one over their sum"
        share = "" if last["workers"] <= cores else f"; {last['workers']} workers share {cores} cores"
        print(
            f"{name}, {actors} actors: alone {told}; {what} {last['allowed']:,.0f}; run {last['run']:,.0f} steps/s: "
            f"{middle:.0%} of what they allow{share}",
            flush=True,
        )
        found = {"machine": about, "settings": settings, "cases": results}
        path = machine.save("fragments", found, args.out)  # each time: the machine may be a loan
    print(path)


if __name__ == "__main__":
    main()
