"""Claim: 256 members of 16 environments train at least 1.3 times as fast as PureJaxRL's method, vmapped over seeds.

Both sides are PPO on gymnax CartPole-v1 with the same network, settings and updates, and train every member from
scratch, in turns, in this process. The peer is the reference written from PureJaxRL's description
(`reference/purejaxrl_ppo.py`) as PureJaxRL documents many seeds: `jax.jit(jax.vmap(train))(keys)`. Runnel's side is the
program that `runnel train --seeds` makes of its members. A run includes initialisation and first resets and excludes
compilation, which is reported. Each run has other seeds, after a warm-up run that is not counted.

The return of a member is the mean of its newest 100 episodes, with the actions that training sampled, read after the
clock has stopped; what is printed is the median over members. A side that fails is named with its error, and what the
other one has measured stays. Results are saved after every run.

    python benchmarks/members_peer.py                                                  # one GPU: 500,000 steps each
    python benchmarks/members_peer.py --members 8 --updates 20 --runs 3                # two cores
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import numpy as np

from benchmarks import _machine as machine
from benchmarks.reference import purejaxrl_ppo
from runnel.algorithms.ppo import PPO
from runnel.config.jax_config import configure_jax
from runnel.execution.building import build
from runnel.execution.members.fused_members import side_calls
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process.cohort import CohortProgram

UNROLL, EPOCHS, MINIBATCHES = 128, 4, 4
NEWEST = 100
"""Episodes of which the return of a member is the mean."""

Score = Mapping[str, float | None]
"""What a member reached."""


class Side(Protocol):
    """Something that trains so many members from scratch."""

    compile_s: float
    memory_gb: float  # what it needs on the device, by its compiler

    def run(self, first_seed: int) -> None: ...

    def scores(self) -> list[Score]:
        """What the members of the newest run reached, after the clock has stopped; frees what it kept."""
        ...


class Runnel:
    """The members of one program, in as many calls as the run-time makes of it."""

    def __init__(self, algorithm: PPO, environment: Any, envs: int, members: int, updates: int):
        built: Any = build(algorithm, environment, "fused", envs)
        started = time.perf_counter()
        self._program = CohortProgram(lambda _: Loop(built.graph, built.environment), jax.devices())
        parallel_calls = side_calls(self._program, jax.devices())
        self._size = self._program.call_size(members, parallel_calls)
        self._program.prepare(self._size)
        jax.block_until_ready(self._program.fresh(range(self._size), {}))
        self.compile_s = time.perf_counter() - started
        self.memory_gb = self._program.bytes(members, parallel_calls) / 1e9
        self._threads = ThreadPoolExecutor(parallel_calls)
        self._targets = np.full(self._size, np.inf)
        self._members, self._updates, self._carries = members, updates, []

    def run(self, first_seed: int) -> None:
        # Over several devices, a call may have rows that are nobody's: seeds beyond those of the members.
        calls = range(first_seed, first_seed + self._members, self._size)
        carries = [self._program.fresh(range(seed, seed + self._size), {}) for seed in calls]
        self._carries = list(self._threads.map(self._train, jax.block_until_ready(carries)))

    def _train(self, carry: Any) -> Any:
        carry, called = self._program.run(carry, {}, self._updates, self._targets)
        assert called.iterations == self._updates
        return carry

    def scores(self) -> list[Score]:
        found: list[Score] = []
        for carry in self._carries:
            window = jax.device_get(carry.window)
            (returns,) = window.returns.values()
            for own, lengths, filled in zip(returns, window.lengths, window.filled, strict=True):
                count = int(filled)
                means = (float(own.sum()) / count, float(lengths.sum()) / count) if count else (None, None)
                found.append({"return": means[0], "length": means[1]})
        self._carries = []
        return found[: self._members]


class PureJaxRL:
    """PureJaxRL's method, vmapped over keys."""

    def __init__(self, environment: str, envs: int, members: int, updates: int, learning_rate: float):
        train = purejaxrl_ppo.make_train(
            environment, envs, UNROLL, updates, epochs=EPOCHS, minibatches=MINIBATCHES, learning_rate=learning_rate
        )
        self._members, self._info = members, {}
        started = time.perf_counter()
        self._train = jax.jit(jax.vmap(train)).lower(self._keys(0)).compile()
        self.compile_s = time.perf_counter() - started
        self.memory_gb = memory_gb(self._train)
        self._newest = min(updates, -(-NEWEST * 500 // (UNROLL * envs)) * 2)  # updates with that many long episodes

    def _keys(self, first_seed: int) -> jax.Array:
        return jax.random.split(jax.random.key(first_seed), self._members)

    def run(self, first_seed: int) -> None:
        self._info = jax.block_until_ready(self._train(self._keys(first_seed)))["info"]

    def scores(self) -> list[Score]:
        names = ("returned_episode", "returned_episode_returns", "returned_episode_lengths")
        # [members, updates, T, B]: of the newest updates only, because all of them are gigabytes
        newest = {name: np.asarray(self._info[name][:, -self._newest :]) for name in names}
        self._info = {}
        return newest_scores(*(newest[name] for name in names))


def memory_gb(compiled: Any) -> float:
    found = compiled.memory_analysis()
    if found is None:
        return 0.0
    held = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return (held + found.temp_size_in_bytes) / 1e9


def newest_scores(ended: np.ndarray, returns: np.ndarray, lengths: np.ndarray) -> list[Score]:
    """What each member reached, by records `[members, ...]` in order of time that count where an episode ended."""
    found: list[Score] = []
    for own, all_returns, all_lengths in zip(ended, returns, lengths, strict=True):
        if own.any():
            newest = {"return": all_returns[own][-NEWEST:], "length": all_lengths[own][-NEWEST:]}
            found.append({name: float(values.mean()) for name, values in newest.items()})
        else:
            found.append({"return": None, "length": None})
    return found


def as_a_run() -> None:
    """JAX as it is in a run of Runnel's, for both sides; but everything is compiled anew."""
    configure_jax()
    jax.config.update("jax_enable_compilation_cache", False)


def alternate(
    sides: Mapping[str, Callable[[], Side]],
    runs: int,
    warm_up: int,
    members: int,
    steps: int,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Runs the sides in turns. `steps`: of all members in a run. `keep` is given what is known after every run."""
    found: dict[str, Any] = {name: {"seconds": []} for name in sides}
    made: dict[str, Side] = {}

    def attempt(name: str, what: Callable[[], Any]) -> Any:
        try:
            return what()
        except Exception as error:  # a side that fails must not take along what the other one has measured
            found[name]["error"] = f"{type(error).__name__}: {error}"[:2000]
            made.pop(name, None)
            print(f"{name} failed: {found[name]['error'][:300]}", flush=True)
            return None

    for name, make in sides.items():
        side = attempt(name, make)
        if side is not None:
            made[name] = side
            found[name] |= {"compile_s": round(side.compile_s, 2), "memory_gb": round(side.memory_gb, 3)}
            print(f"{name}: compiled in {side.compile_s:.1f} s; needs {side.memory_gb:.3g} GB", flush=True)
        keep(found)
    for run in range(warm_up + runs):
        for name, side in list(made.items()):
            started = time.perf_counter()
            attempt(name, lambda side=side, run=run: side.run(run * members))
            seconds = time.perf_counter() - started
            if name not in made:
                keep(found)
                continue
            scores = attempt(name, side.scores)
            if run < warm_up:
                continue
            found[name]["seconds"].append(seconds)
            found[name]["steps_per_second"] = steps / statistics.median(found[name]["seconds"])
            if scores is not None:
                medians = {each: median([score[each] for score in scores]) for each in scores[0]}
                found[name].setdefault("scores", []).append(scores)
                found[name].setdefault("median_scores", []).append(medians)
                shown = ", ".join(f"{each} {_shown(value)}" for each, value in medians.items())
                print(f"{name}: {seconds:.2f} s, {steps / seconds:,.0f} steps/s; medians: {shown}", flush=True)
            keep(found)


def median(values: Sequence[float | None]) -> float | None:
    """None where a member has none: it ended before its first episode did."""
    known = [each for each in values if each is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def ratio(found: Mapping[str, Any], ours: str, theirs: str) -> float | None:
    """How many times as fast, by medians over runs; None where a side has no run."""
    speeds = [found[name].get("steps_per_second") for name in (ours, theirs)]
    return None if None in speeds else speeds[0] / speeds[1]


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def algorithm(learning_rate: float, anneal_steps: int) -> PPO:
    """At the settings of the reference."""
    return PPO(
        learning_rate=learning_rate, anneal_steps=anneal_steps, discount=0.99, gae_lambda=0.95, unroll=UNROLL,
        epochs=EPOCHS, minibatches=MINIBATCHES, clip=0.2, value_clip=0.2, value_cost=0.5, entropy_cost=0.01,
        max_grad_norm=0.5, hidden=(64, 64), activation="tanh",
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[256])
    parser.add_argument("--envs", type=int, default=16, help="of each member")
    parser.add_argument("--updates", type=int, default=244)
    parser.add_argument("--environment", default="CartPole-v1", help="of gymnax")
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="runs that are not counted")
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    as_a_run()
    about = machine.describe("flax", "optax", "gymnax")
    each = args.updates * UNROLL * args.envs
    settings = {**vars(args), "unroll": UNROLL, "epochs": EPOCHS, "minibatches": MINIBATCHES, "steps_each": each}
    ours = algorithm(args.learning_rate, each)
    results: dict[int, dict[str, Any]] = {}
    for members in args.members:

        def keep(found: dict[str, Any], members: int = members) -> None:
            results[members] = {"members": members, "ratio": ratio(found, "runnel", "purejaxrl"), **found}
            raw = {"machine": about, "settings": settings, "results": list(results.values())}
            machine.save("members_peer", raw, args.out)

        shape = (args.envs, members, args.updates)
        sides: dict[str, Callable[[], Side]] = {
            "purejaxrl": lambda shape=shape: PureJaxRL(args.environment, *shape, args.learning_rate),
            "runnel": lambda shape=shape: Runnel(ours, f"gymnax:{args.environment}", *shape),
        }
        alternate(sides, args.runs, args.warm_up, members, members * each, keep)
        print(_line(args.environment, args.envs, results[members]), flush=True)


def _line(environment: str, envs: int, result: Mapping[str, Any]) -> str:
    parts = [f"{environment}: {result['members']} members of {envs} environments"]
    for name in ("purejaxrl", "runnel"):
        speed, compiled = result[name].get("steps_per_second"), result[name].get("compile_s")
        parts.append(f"{name} " + ("failed" if speed is None else f"{speed:,.0f} steps/s (compile {compiled} s)"))
    return "; ".join(parts) + ("" if result["ratio"] is None else f"; {result['ratio']:.2f}x")


if __name__ == "__main__":
    main()
