"""Claim: 14 actors step host environments at 85% or more of what the bare environment does on as many processes.

The environment costs about 100 microseconds a step, by work in Python. Each run is measured from a second after its
first update on, by what its actors say they stepped, and compared with the bare environment on as many processes as
it has actors, measured before and after it. Of `coarse`, which waits while its learner learns, that time is left out:
the rate is of the time in which the learner waits for unrolls. It waits for its slowest actor too, and cores of one
machine differ: what that alone costs the bare environment is told beside it. Actors of `coarse` change places for
that reason; with `--still` they do not. `decoupled` has one inference worker beside its actors.

    python benchmarks/scaling.py                                          # as many actors as there are cores for
    python benchmarks/scaling.py --actors 1 2 4 8 14 --learner cpu        # acting and learning on the CPU
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

ACTORS = (1, 2, 4, 8, 14)
ALGORITHMS = {"coarse": "ppo", "async": "impala", "decoupled": "impala"}
SETTINGS: dict[str, dict[str, Any]] = {"ppo": {"unroll": 128, "minibatches": 4, "epochs": 2}, "impala": {"unroll": 20}}
WARM_S, BARE_S = 1.0, 2.0


class Bare(NamedTuple):
    """The bare environment on some processes, in steps per second."""

    free: float
    barrier: float  # if all waited for the slowest every unroll of `coarse`, and lost nothing else


def bare_process(work: int, envs: int, seconds: float) -> None:
    """One process that steps environments and does nothing else; begins when it is told to."""
    from benchmarks._costly import Costly

    environments = [Costly(work) for _ in range(envs)]
    for seed, environment in enumerate(environments):
        environment.reset(seed=seed)
    print("ready", flush=True)
    sys.stdin.readline()
    began = [time.perf_counter()]
    while began[-1] < began[0] + seconds:
        for _ in range(SETTINGS["ppo"]["unroll"]):
            for environment in environments:
                _, _, terminated, truncated, _ = environment.step(0)
                if terminated or truncated:
                    environment.reset()
        began.append(time.perf_counter())
    print(json.dumps([after - before for before, after in pairwise(began)]), flush=True)


def bare(processes: int, work: int, envs: int, seconds: float) -> Bare:
    """So many processes side by side."""
    command = [sys.executable, __file__, "--bare", str(work), str(envs), str(seconds)]
    command += ["--unroll", str(SETTINGS["ppo"]["unroll"])]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    unrolls = [json.loads(process.communicate(timeout=seconds + 60)[0]) for process in started]
    steps = SETTINGS["ppo"]["unroll"] * envs
    slowest = [max(times) for times in zip(*unrolls, strict=False)]  # of each unroll; who was quicker has more of them
    free = sum(steps * len(times) / sum(times) for times in unrolls)
    return Bare(free, processes * steps / statistics.mean(slowest))


def run(name: str, actors: int, work: int, envs: int, seconds: float) -> dict[str, Any]:
    """One run of a distribution: its rate, and how its workers spent their time."""
    from benchmarks import _costly, _runs
    from runnel import algorithms, distributions

    algorithm = ALGORITHMS[name]
    shares = _runs.watch(
        algorithms.load(algorithm)(**SETTINGS[algorithm]),
        _costly.NAME,
        distributions.load(name)(actors=actors),  # type: ignore[call-arg]
        envs * actors,
        {"work": work},
        WARM_S,
        seconds,
    )
    playing = [share for worker, share in shares.items() if worker.partition("-")[0] in ("actor", "environment")]
    learner = shares["learner"]
    rate = sum(share.rate("env_steps") for share in playing)
    waits: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for worker, share in shares.items():
        waits.setdefault(worker.partition("-")[0], []).append(round(share.waiting, 4))
        cpu.setdefault(worker.partition("-")[0], []).append(round(share.cpu_s / share.seconds, 4))
    result = {"steps_per_second": rate, "updates_per_second": learner.rate("updates"), "waiting": waits, "cpu": cpu}
    result["stolen"] = learner.stolen
    if name == "coarse":
        result |= {"with_learning": rate, "steps_per_second": rate / learner.waiting}
    if name == "decoupled":
        inference = shares["inference"]
        result["blocks_per_batch"] = inference.rate("env_steps") / inference.rate("batches") / (envs / 2)
    return result


def attempt(*arguments: Any) -> dict[str, Any]:
    """A run that fails is told, and the others go on."""
    try:
        return run(*arguments)
    except Exception as error:
        print(f"{arguments[0]} failed: {error}"[:4000], flush=True)
        return {"failed": str(error)}


def measure(actors: int, names: list[str], work: int, envs: int, seconds: float) -> dict[str, Any]:
    """Every distribution once, each between two measurements of the bare environment: machines change their speed."""
    found = [bare(actors, work, envs, BARE_S)]
    row: dict[str, Any] = {"actors": actors}
    for name in names:
        row[name] = attempt(name, actors, work, envs, seconds)
        found.append(bare(actors, work, envs, BARE_S))
        free, barrier = (statistics.mean(beside) for beside in zip(*found[-2:], strict=True))
        if "failed" in row[name]:
            continue
        rate = row[name]["steps_per_second"]
        row[name] |= {"bare": free, "of_bare": rate / free}
        line = f"{actors:>6}  {name:<10}  {rate:>14,.0f}  {free:>14,.0f}  {rate / free:>5.0%}"
        if name == "coarse":
            row[name] |= {"bare_with_barrier": barrier, "of_bare_with_barrier": rate / barrier}
            line += f"  ({rate / barrier:.0%} of {barrier:,.0f}, the bare environment with a barrier)"
        print(line, flush=True)
    row["bare"] = [each._asdict() for each in found]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, nargs="+")
    parser.add_argument("--distributions", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--learner", choices=["cpu", "gpu"], default="cpu", help="and inference worker")
    parser.add_argument("--unroll", type=int, default=SETTINGS["ppo"]["unroll"], help="of coarse: its actors' barrier")
    parser.add_argument("--envs", type=int, default=32, help="of each actor")
    parser.add_argument("--cost-us", type=float, default=100.0, help="of a step of the environment")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run, measured")
    parser.add_argument("--still", action="store_true", help="actors of coarse stay where the system puts them")
    parser.add_argument("--out", help="directory for the raw results")
    parser.add_argument("--bare", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    SETTINGS["ppo"]["unroll"] = args.unroll
    if args.bare:
        return bare_process(int(args.bare[0]), int(args.bare[1]), float(args.bare[2]))
    if args.learner == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    cores = os.cpu_count() or 1
    counts = args.actors or [count for count in ACTORS if count < max(cores, 2)]
    from benchmarks import _costly
    from benchmarks import _machine as machine
    from runnel.launch import core_balancer

    if args.still:
        core_balancer.TURN_S = threading.TIMEOUT_MAX
    work = _costly.work_for(args.cost_us)
    print(f"{cores} cores, {args.envs} environments an actor, {work} rounds of work a step; learner on {args.learner}")
    print(f"actors  {'':<10}  {'steps/s':>14}  {'bare, steps/s':>14}  ratio", flush=True)
    settings = {
        "envs_per_actor": args.envs, "cost_us": args.cost_us, "work": work, "seconds": args.seconds,
        "learner": args.learner, "still": args.still, "algorithms": ALGORITHMS, "settings": SETTINGS,
    }  # fmt: skip
    about = machine.describe("gymnasium", "flax", "optax")
    result = {"machine": about, "settings": settings, "rows": []}
    path = None
    for k, count in enumerate(counts):
        first = k % len(args.distributions)  # in another order each time: who comes first meets another machine
        names = args.distributions[first:] + args.distributions[:first]
        result["rows"].append(measure(count, names, work, args.envs, args.seconds))
        path = machine.save(f"scaling-{cores}-cores", result, args.out)  # each time: the machine may be a loan
    print(path)


if __name__ == "__main__":
    main()
