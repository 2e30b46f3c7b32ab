"""Claim: what crosses the network is what the plan says, within 10%, and two machines do 1.8 times the work of one.

The machines are host agents on this one, each pinned to half of its cores, joined over its loopback by the same
encrypted sockets as machines of a cluster. The environment costs about 100 microseconds a step, by work in Python, and
gives noise to observe. Bytes are compared as they would be without compression, which no plan foretells.
One machine has a learner and an actor on every other core; the second has an actor on every core.

    python benchmarks/cluster.py                             # halves of all cores
    python benchmarks/cluster.py --distributions async       # one only
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

ALGORITHMS = {"async": "impala", "coarse": "ppo", "fine": "ppo", "decoupled": "impala"}
SETTINGS: dict[str, dict[str, Any]] = {"ppo": {"unroll": 128, "minibatches": 4, "epochs": 2}, "impala": {"unroll": 20}}
WARM_S = 2.0


def machine_pool(groups: list[list[int]]) -> Any:
    """So many machines, each of which has some of the cores."""
    from runnel.execution.supervision.machine_pool import ClusterMachines
    from runnel.launch.cluster import Cluster
    from runnel.launch.host_launcher import LocalHostLauncher
    from runnel.planning.plan import Machine

    names = [f"machine-{i}" for i in range(len(groups))]
    machines = [Machine(len(cores), ("cpu:0",), name) for name, cores in zip(names, groups, strict=True)]
    prefixes = {
        name: ("taskset", "-c", ",".join(map(str, cores))) for name, cores in zip(names, groups, strict=True)
    }  # fmt: skip
    return ClusterMachines(Cluster(LocalHostLauncher(machines, prefixes)))


def run(name: str, groups: list[list[int]], work: int, envs: int, seconds: float) -> dict[str, Any]:
    """One run on some machines: its rate, and what crossed between them for each step."""
    from benchmarks import _costly, _runs
    from runnel import algorithms, distributions

    actors = max(1, len(groups[0]) - 1) + sum(len(cores) for cores in groups[1:])
    inference = {"inference": len(groups)} if name == "decoupled" else {}
    found: dict[str, Any] = {}

    def look(program: Any) -> None:
        traffic = pool.traffic()
        found.update(wire=_wire(traffic), saved=_saved(traffic), counts=_steps(program), plan=program.plan)

    pool = machine_pool(groups)
    try:
        shares = _runs.watch(
            algorithms.load(ALGORITHMS[name])(**SETTINGS[ALGORITHMS[name]]),
            _costly.NAME,
            distributions.load(name)(actors=actors, **inference),  # type: ignore[call-arg]
            envs * actors,
            {"work": work, "noise": True},
            WARM_S,
            seconds,
            look,
            pool,
        )
    finally:
        pool.close()
    playing = [share for worker, share in shares.items() if worker.partition("-")[0] in ("actor", "environment")]
    row: dict[str, Any] = {
        "machines": len(groups), "actors": actors, "steps_per_second": sum(s.rate("env_steps") for s in playing),
        "busy": {worker: round(1 - share.waiting, 3) for worker, share in shares.items()},
    }  # fmt: skip
    if len(groups) > 1:
        predicted = found["plan"].across
        row |= {
            "bytes_per_step": found["wire"] / found["counts"],
            "uncompressed_bytes_per_step": (found["wire"] + found["saved"]) / found["counts"],
            "predicted_bytes_per_step": predicted.bytes_per_step,
            "predicted_by_kind": predicted.by_kind(),
        }
    return row


def _wire(traffic: dict[str, Any]) -> int:
    return sum(tally["wire"].get("sent_bytes", 0) for tally in traffic.values())


def _saved(traffic: dict[str, Any]) -> int:
    """By compression, which no plan foretells."""
    return sum(counts.get("saved_bytes", 0) for tally in traffic.values() for counts in tally["carried"].values())


def _steps(program: Any) -> float:
    """Of environments, since the workers began."""
    statuses = program.statuses().items()
    return sum(s.counts.get("env_steps", 0) for name, s in statuses if name.startswith(("actor", "env")))


def measure(name: str, cores: list[int], work: int, envs: int, seconds: float, rounds: int) -> dict[str, Any]:
    half = len(cores) // 2
    groups = [cores[:half], cores[half:]]
    one, two = [], []
    for _ in range(rounds):
        one.append(run(name, groups[:1], work, envs, seconds))
        two.append(run(name, groups, work, envs, seconds))
    rates = [statistics.median(row["steps_per_second"] for row in rows) for rows in (one, two)]
    ratio = rates[1] / rates[0]
    more = two[0]["actors"] / one[0]["actors"]
    last = two[-1]
    bytes_, whole, predicted = (
        last[key] for key in ("bytes_per_step", "uncompressed_bytes_per_step", "predicted_bytes_per_step")
    )
    print(
        f"{name:<10} {rates[0]:>10,.0f} {rates[1]:>10,.0f}  {ratio:>5.2f}x with {more:.2f}x the actors   "
        f"{bytes_:>8.1f} B a step, {whole:.1f} uncompressed, predicted {predicted:.1f} ({whole / predicted - 1:+.0%})",
        flush=True,
    )
    return {"distribution": name, "ratio": ratio, "of_actors": ratio / more, "one": one, "two": two}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--distributions", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--envs", type=int, default=32, help="of each actor")
    parser.add_argument("--cost-us", type=float, default=100.0, help="of a step of the environment")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run, measured")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", help="directory for the raw results")
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    from benchmarks import _costly
    from benchmarks import _machine as machine

    cores = sorted(os.sched_getaffinity(0))
    work = _costly.work_for(args.cost_us)
    about = machine.describe("gymnasium", "pyzmq", "flax", "optax")
    result: dict[str, Any] = {
        "machine": about, "settings": {**vars(args), "work": work, "algorithms": ALGORITHMS, "of": SETTINGS},
        "rows": [],
    }  # fmt: skip
    print(f"{len(cores)} cores; steps/s on one machine and on two", flush=True)
    path = None
    for name in args.distributions:
        try:
            row = measure(name, cores, work, args.envs, args.seconds, args.rounds)
        except Exception as error:
            print(f"{name} failed: {error}"[:2000], flush=True)
            row = {"distribution": name, "failed": str(error)[:2000]}
        result["rows"].append(row)
        path = machine.save(f"cluster-{len(cores)}-cores", result, args.out)
    print(path)


if __name__ == "__main__":
    main()
