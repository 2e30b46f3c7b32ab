"""Claim: 2,048 PPO agents with 16 environments and 1 M steps each train faster than NAVIX's own, on its environment.

NAVIX's headline, by its own experiment (`experiments/throughput` in its repository): `Navix-Empty-Random-5x5-v0` with
symbolic first-person observations, its `PPO` with default hyper-parameters and networks, `jax.jit(jax.vmap(train))`
over seeds. Beside it, in turns and in one process, Runnel's members on the same environment (`_navix_env.py`), with the
same network and settings: the program that `runnel train --seeds` makes of its members. Every run trains from scratch;
initialisation and first resets count, compilation is reported apart.

Differences that remain, all in how much each side learns from a step, not in how many steps it takes: NAVIX discounts
by 0.99 to the power of the step within its episode, where PPO discounts by 0.99; it weighs the clipped value loss half;
it normalises advantages by minibatch, and evaluates values anew before learning, where Runnel has them from acting. It
returns the record of every step (9 bytes each); Runnel keeps the newest 100 episodes.

What a member reached is the mean return of its newest 100 episodes, and their length, which tells more: a random policy
reaches the goal too, but late. Medians over members are printed. NAVIX is in the extra `bench`; its import of wandb
is met by an empty module where wandb is not installed. A side that fails is named with its error, and what the other
one has measured stays. `--only` runs one side alone. With fewer `--steps`, what counts is steps/s.

    python benchmarks/members_navix.py                                                            # one GPU
    python benchmarks/members_navix.py --members 8 --steps 40000 --runs 3                         # two cores
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from benchmarks import _machine as machine
from benchmarks import _navix_env as navix
from benchmarks._navix_env import NavixEnvironment
from benchmarks.members_peer import Runnel, Score, Side, alternate, as_a_run, memory_gb, newest_scores, ratio
from runnel.algorithms.ppo import PPO


class Encoder(linen.Module):
    """NAVIX's: two layers of 64, on observations as they are."""

    @linen.compact
    def __call__(self, observation: Any) -> Any:
        x = observation.astype(jnp.float32)
        for _ in range(2):
            x = jnp.tanh(linen.Dense(64)(x))
        return x


def algorithm(settings: Any, budget: int) -> PPO:
    """Runnel's PPO at NAVIX's hyper-parameters."""
    return PPO(
        learning_rate=settings.lr, anneal_steps=budget if settings.anneal_lr else None, discount=0.99,
        gae_lambda=settings.gae_lambda, unroll=settings.num_steps, epochs=settings.num_epochs,
        minibatches=settings.num_minibatches, clip=settings.clip_eps,
        value_clip=settings.clip_eps if settings.clip_value_loss else None, value_cost=settings.vf_coef,
        entropy_cost=settings.ent_coef, max_grad_norm=settings.max_grad_norm,
        normalise_advantages=settings.normalise_advantage, network=Encoder(),
    )  # fmt: skip


class Navix:
    """NAVIX's own PPO, vmapped over seeds as its `Experiment` does it."""

    def __init__(self, environment: str, observation: str, settings: Any, members: int):
        world = navix.make(environment, observation)
        agent = navix.PPO(hparams=settings, network=navix.ActorCritic(action_dim=len(world.action_set)), env=world)
        self._members, self._logs = members, {}
        started = time.perf_counter()
        self._train = jax.jit(jax.vmap(agent.train)).lower(self._keys(0)).compile()
        self.compile_s = time.perf_counter() - started
        self.memory_gb = memory_gb(self._train)

    def _keys(self, first_seed: int) -> jax.Array:
        return jax.vmap(jax.random.PRNGKey)(jnp.arange(first_seed, first_seed + self._members))

    def run(self, first_seed: int) -> None:
        self._logs = {}
        # It gives the trained agents too, which nobody asks for here.
        self._logs = jax.block_until_ready(self._train(self._keys(first_seed)))[1]

    def scores(self) -> list[Score]:
        newest: dict[str, np.ndarray] = {}
        for name, log in self._logs.items():  # `agent/train/returns` since 4.0, `returns` before
            if name.rpartition("/")[2] in ("done_mask", "returns", "lengths"):
                # [members, updates, T, B]: of as many updates as have 100 episodes of the longest kind
                newest[name.rpartition("/")[2]] = np.asarray(log[:, -16:])
        self._logs = {}
        # It counts the steps before the one that ends an episode.
        return newest_scores(newest["done_mask"], newest["returns"], newest["lengths"] + 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[2048])
    parser.add_argument("--envs", type=int, default=16, help="of each member")
    parser.add_argument("--steps", type=int, default=1_000_000, help="of each member")
    parser.add_argument("--environment", default="Navix-Empty-Random-5x5-v0")
    parser.add_argument("--observation", default="symbolic_first_person", help="a function of navix.observations")
    parser.add_argument("--runs", type=int, default=2, help="of each side")
    parser.add_argument("--warm-up", type=int, default=0, help="runs that are not counted")
    parser.add_argument("--only", choices=("navix", "runnel"))
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args()
    as_a_run()
    about = machine.describe("flax", "optax", "navix")
    settings = navix.PPOHparams(budget=args.steps, num_envs=args.envs)
    per_update = settings.num_steps * settings.num_envs
    updates = args.steps // per_update
    if updates < 1:
        parser.error(f"--steps {args.steps}: found less than one update, {per_update} steps")
    results: dict[int, dict[str, Any]] = {}
    for members in args.members:

        def keep(found: dict[str, Any], members: int = members) -> None:
            of_both = ratio(found, "runnel", "navix") if len(found) == 2 else None
            results[members] = {"members": members, "ratio": of_both, **found}
            asked = {**vars(args), "steps_each": updates * per_update, "navix": _plain(settings)}
            raw = {"machine": about, "settings": asked, "results": list(results.values())}
            machine.save("members_navix", raw, args.out)

        def ours(members: int = members) -> Side:
            world = NavixEnvironment(args.environment, args.observation)
            return Runnel(algorithm(settings, updates * per_update), world, args.envs, members, updates)

        def theirs(members: int = members) -> Side:
            return Navix(args.environment, args.observation, settings, members)

        sides: dict[str, Callable[[], Side]] = {"navix": theirs, "runnel": ours}
        sides = {name: side for name, side in sides.items() if args.only in (None, name)}
        alternate(sides, args.runs, args.warm_up, members, members * updates * per_update, keep)
        print(_line(args.environment, args.steps, results[members]), flush=True)


def _line(environment: str, steps: int, result: dict[str, Any]) -> str:
    parts = [f"{environment}: {result['members']} members, {steps:,} steps each"]
    for name in ("navix", "runnel"):
        side = result.get(name, {})
        if side.get("seconds"):
            shown = ", ".join(f"{seconds:.1f}" for seconds in side["seconds"])
            speed, compiled = f"{side['steps_per_second']:,.0f} steps/s", f"compile {side['compile_s']} s"
            parts.append(f"{name} {shown} s ({speed}, {compiled})")
        else:
            parts.append(f"{name} without a result")
    return "; ".join(parts) + ("" if result["ratio"] is None else f"; {result['ratio']:.2f}x")


def _plain(settings: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(settings).items() if isinstance(value, int | float)}


if __name__ == "__main__":
    main()
