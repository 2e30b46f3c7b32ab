"""Claim: thousands of games of hide-and-seek run in one program.

Environment steps per second of `hide:quadrant` or `hide:full`, with random actions, resets included and without
learning, over the number of environments. Compilation is left out.

    python benchmarks/hide_and_seek.py
    python benchmarks/hide_and_seek.py --game full --envs 64 1024 16384
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine


def program(game: str, envs: int, unroll: int) -> Any:
    """A state of all environments, and a compiled function that steps them `unroll` times."""
    import jax

    from hide_and_seek import HideAndSeek
    from runnel.ops.autoreset import autoreset_step

    environment = HideAndSeek(game)
    sizes = jax.numpy.asarray(environment.spec.groups["player"].action.sizes)

    def step(state: Any, key: Any) -> tuple[Any, Any]:
        act_key, reset_key = jax.random.split(key)
        action = jax.random.randint(act_key, (envs, environment.agents, len(sizes)), 0, sizes)
        fresh = jax.vmap(environment.reset)(jax.random.split(reset_key, envs))
        keys = jax.random.split(key, envs)
        state, _, timestep = jax.vmap(partial(autoreset_step, environment))(state, action, keys, fresh)
        return state, timestep.reward.sum()

    @jax.jit
    def run(state: Any, key: Any) -> tuple[Any, Any]:
        return jax.lax.scan(step, state, jax.random.split(key, unroll))

    state, _ = jax.jit(jax.vmap(environment.reset))(jax.random.split(jax.random.key(0), envs))
    return state, run


def speed(game: str, envs: int, unroll: int, seconds: float) -> float:
    """Environment steps per second, over at least so many seconds."""
    import jax

    state, run = program(game, envs, unroll)
    key = jax.random.key(1)
    state, _ = jax.block_until_ready(run(state, key))
    began, done = time.perf_counter(), 0
    while True:
        state, _ = jax.block_until_ready(run(state, jax.random.fold_in(key, done)))
        done += 1
        spent = time.perf_counter() - began
        if spent >= seconds:
            return done * unroll * envs / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="quadrant", choices=["quadrant", "full"])
    parser.add_argument("--envs", type=int, nargs="+", default=[64, 1024, 16384])
    parser.add_argument("--unroll", type=int, default=16, help="steps of each environment in one call")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    options = parser.parse_args()
    found = {}
    for envs in options.envs:
        rates = [speed(options.game, envs, options.unroll, options.seconds) for _ in range(options.runs)]
        print(f"{options.game:<9} {envs:>6} environments {statistics.median(rates):>12,.0f} steps/s", flush=True)
        found[envs] = rates
    result = {"game": options.game, "unroll": options.unroll, "steps_per_second": found}
    machine.save("hide_and_seek", {"machine": machine.describe("jax"), **result}, options.out)


if __name__ == "__main__":
    main()
