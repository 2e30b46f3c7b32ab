"""Claim: members of one program train as fast as one run with as many environments in all.

PPO on gymnax CartPole and on MinAtar's Breakout, 16 environments for each member, with the default networks; with
`--convolutions` also Breakout with a network of convolutions, whose members have calls of their own on a CPU. Compared,
alternating in one process: members in one program; one run with the environments of all members; and one member's run,
which gives the speed of runs one after another. Both runs are the program that `runnel train` makes of a run.
Compilation is left out. The whole command, with the sessions that record each member, is measured by `--whole`.

    python benchmarks/members.py
    python benchmarks/members.py --members 16 64 2048 --rounds 5 --tasks gymnax:CartPole-v1
    python benchmarks/members.py --whole --convolutions
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine

ENVS = 16
TASKS = ("gymnax:CartPole-v1", "gymnax:Breakout-MinAtar")


def convolution() -> Any:
    """A small network with a convolution, for observations on a grid."""
    import jax.numpy as jnp
    from flax import linen

    class Convolution(linen.Module):
        @linen.compact
        def __call__(self, grid: Any) -> Any:
            x = linen.relu(linen.Conv(16, (3, 3), padding="VALID")(grid.astype(jnp.float32)))
            return linen.relu(linen.Dense(128)(jnp.ravel(x)))

    return Convolution()


def built_run(task: str, envs: int, network: Any) -> Any:
    from runnel.algorithms.ppo import PPO
    from runnel.execution.building import build

    return build(PPO(network=network), task, "fused", envs)


class Timed:
    """Something that trains, and how many steps a second it takes."""

    def __init__(self, steps: int):
        self._steps, self._iterations = steps, 1  # of an iteration; in a call

    def call(self, iterations: int) -> None:
        raise NotImplementedError

    def run(self, seconds: float) -> float:
        """Steps a second over at least so many seconds."""
        while True:
            began = time.perf_counter()
            self.call(self._iterations)
            spent = time.perf_counter() - began
            if spent >= seconds:
                return self._iterations * self._steps / spent
            self._iterations = max(self._iterations + 1, int(self._iterations * 1.2 * seconds / max(spent, 1e-4)))


class Members(Timed):
    """The members of one program, in as many calls as the run-time makes of it."""

    def __init__(self, members: int, task: str, network: Any):
        import jax
        import numpy as np

        from runnel.execution.members.fused_members import side_calls
        from runnel.runtime.programs.loop import Loop
        from runnel.runtime.single_process.cohort import CohortProgram

        built = built_run(task, ENVS, network)
        super().__init__(built.graph.steps_per_iteration * members)
        self._program = CohortProgram(lambda _: Loop(built.graph, built.environment), jax.devices())
        parallel_calls = side_calls(self._program, jax.devices())
        size = self._program.call_size(members, parallel_calls)
        self._carries = [self._program.fresh(range(start, start + size), {}) for start in range(0, members, size)]
        self._threads, self._targets = ThreadPoolExecutor(parallel_calls), np.full(size, np.inf)
        self._program.prepare(size)
        self.call(1)

    def call(self, iterations: int) -> None:
        ran = self._threads.map(lambda carry: self._program.run(carry, {}, iterations, self._targets), self._carries)
        self._carries = [carry for carry, _ in ran]


class OneRun(Timed):
    """A run as `runnel train` makes it."""

    def __init__(self, envs: int, task: str, network: Any):
        import jax

        from runnel.runtime.programs.loop import Loop
        from runnel.runtime.single_process.compiled import CompiledProgram

        built = built_run(task, envs, network)
        super().__init__(built.graph.steps_per_iteration)
        self._program = CompiledProgram(Loop(built.graph, built.environment), jax.devices(), 0)
        self.call(1)

    def call(self, iterations: int) -> None:
        self._program.iterations_per_call = iterations
        done = 0
        while done < iterations:
            done += self._program.run(iterations - done, math.inf, math.inf, lambda: False).iterations


def compare(members: int, rounds: int, seconds: float, task: str, network: Any = None) -> dict[str, Any]:
    ways: dict[str, Timed] = {
        "members": Members(members, task, network),
        "one run": OneRun(members * ENVS, task, network),
        "one member": OneRun(ENVS, task, network),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way.run(seconds))
    medians = {name: statistics.median(speeds) for name, speeds in found.items()}
    return {
        "task": task,
        "network": "default" if network is None else "convolution",
        "members": members,
        "steps_per_second": medians,
        "all": found,
        "of_one_run": medians["members"] / medians["one run"],
        "of_one_after_another": medians["members"] / medians["one member"],
    }


def whole(members: int, steps: int, task: str) -> dict[str, Any]:
    """Steps a second of the command itself, after compilation: sessions, metrics and checkpoints included."""
    import runnel
    from runnel.execution.run import read_result

    with tempfile.TemporaryDirectory() as place:
        found = runnel.train_members(
            "ppo", task, "fused", seeds=members, envs=ENVS, steps=steps, run_dir=Path(place) / "all", quiet=True
        )
        speeds = [(read_result(path) or {}).get("steps_per_second") or 0.0 for path in found.members]
    return {"members": members, "steps": steps, "steps_per_second": sum(speeds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--whole", action="store_true", help="the command too")
    parser.add_argument("--whole-seconds", type=float, default=20.0, help="about how long the command trains")
    parser.add_argument("--convolutions", action="store_true", help="also a network of convolutions, on the last task")
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    cases: list[tuple[str, Any]] = [(task, None) for task in args.tasks]
    cases += [(args.tasks[-1], convolution())] if args.convolutions else []
    results = []
    for task, network in cases:
        for members in args.members:
            result = compare(members, args.rounds, args.seconds, task, network)
            if args.whole and network is None:
                steps = int(args.whole_seconds * result["steps_per_second"]["members"] / members)
                result["whole"] = whole(members, steps, task)
            results.append(result)
            print(_line(result), flush=True)
            machine.save("members", {"machine": machine.describe("jax"), "envs": ENVS, "results": results}, args.out)


def _line(result: dict[str, Any]) -> str:
    speeds = ", ".join(f"{name} {speed:,.0f}" for name, speed in result["steps_per_second"].items())
    also = f"; with sessions {result['whole']['steps_per_second']:,.0f}" if "whole" in result else ""
    network = "" if result["network"] == "default" else ", convolutions"
    return (
        f"{result['task']}{network}: {result['members']} members of {ENVS} environments, steps/s: {speeds}; "
        f"{result['of_one_run']:.2f} of one run, {result['of_one_after_another']:.2f} of one after another{also}"
    )


if __name__ == "__main__":
    main()
