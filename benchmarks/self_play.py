"""Claim: past opponents make self-play converge where it cycles, and learn games of perfect information.

`rps`: rock-paper-scissors and its biased variant. Playing only the newest policy goes round in circles. The average of
the policies under `UniformPast`, and the mixture that `Psro` plays in the end, are within 0.05 of the equilibrium.
`tictactoe`: the greedy policy loses no game over all replies, from either seat.
`connect_four`: at least 99% of the games against random moves are won, and 90% against a one-step look-ahead.

    python benchmarks/self_play.py rps tictactoe connect_four
    python benchmarks/self_play.py tictactoe --seeds 10 11
    python benchmarks/self_play.py --seeds 1 --fraction 0.01 --games 20     a try, of about a minute each

Settings were found with seeds 0 and 1; the results are of others.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import runnel
from benchmarks import _boards as boards
from benchmarks import _machine as machine
from benchmarks._boards import CONNECT_FOUR, TIC_TAC_TOE
from runnel.recording.match_log import read_matches

EQUILIBRIA = {"rock_paper_scissors": (1 / 3, 1 / 3, 1 / 3), "biased_rock_paper_scissors": (1 / 16, 10 / 16, 5 / 16)}


class Size(NamedTuple):
    """How much of the benchmark is run."""

    fraction: float = 1.0  # of the steps of each run
    games: int = 1000  # against each opponent

    def steps(self, whole: int) -> int:
        return max(1, round(self.fraction * whole))


def trained(
    game: str, matchmaker: runnel.Matchmaker, seed: int, steps: int, envs: int, settings: dict[str, Any], run_dir: Path
) -> dict[str, Any]:
    """Trains, and says what was trained and how long it took, compilation included."""
    began = time.perf_counter()
    run = runnel.train(
        "ppo", game, "fused", opponents=matchmaker, envs=envs, steps=steps, seed=seed, settings=settings,
        run_dir=run_dir, quiet=True,
    )  # fmt: skip
    return {
        "game": game,
        "seed": seed,
        "env_steps": run.result["env_steps"],
        "envs": envs,
        "matchmaker": repr(matchmaker),
        "settings": {name: str(value) for name, value in settings.items()},
        "seconds": time.perf_counter() - began,
    }


# Rock-paper-scissors


def strategies(run_dir: Path) -> dict[str, np.ndarray]:
    """By key, as matches name them: what each policy of a run plays, [3], the oldest first."""
    import jax

    found = {}
    for snapshot in runnel.policies(run_dir).query("player"):
        actor_critic: Any = runnel.load(snapshot.path).params.actor_critic  # type: ignore[union-attr]
        distribution = actor_critic.step(np.ones(1, np.float32), ()).distribution
        found[f"player:{snapshot.version}"] = np.asarray(jax.nn.softmax(distribution.logits), np.float64)
    return found


def rps(seed: int, place: Path, size: Size) -> list[dict[str, Any]]:
    # Without a hidden layer the policy is a table. Large unrolls, because chance alone would make it pure.
    table = {
        "hidden": (), "unroll": 4, "minibatches": 1, "epochs": 2, "clip": 0.5, "normalise_advantages": False,
        "discount": 1.0, "gae_lambda": 1.0, "learning_rate": 0.01,
    }  # fmt: skip
    envs, found = 1024, []
    iteration = envs * table["unroll"]
    for game, entropy_cost in (("rock_paper_scissors", 0.1), ("biased_rock_paper_scissors", 0.02)):
        ways: tuple[tuple[runnel.Matchmaker, int], ...] = (
            (runnel.Latest(every=10 * iteration, places=1, pool_size=200), 150),
            (runnel.UniformPast(every=10 * iteration, places=150, pool_size=200, latest_share=0.25), 150),
            (runnel.Psro(every=100 * iteration, places=50, pool_size=200, payoff="return"), 50),
        )
        for matchmaker, decisions in ways:
            name = type(matchmaker).__name__
            run_dir = place / f"{game}-{name}-{seed}"
            settings = {**table, "entropy_cost": entropy_cost}
            if name == "Psro":
                settings["learning_rate"] = 0.05  # an oracle: it is to reach its response before the next decision
            steps = size.steps(decisions) * matchmaker.every
            result = trained(f"matrix:{game}", matchmaker, seed, steps, envs, settings, run_dir)
            found.append(result | _distances(run_dir, np.array(EQUILIBRIA[game])))
            print(_line(name, found[-1]), flush=True)
    return found


def _distances(run_dir: Path, equilibrium: np.ndarray) -> dict[str, Any]:
    """How far from the equilibrium the policies are, in the greatest difference of a probability."""
    played = strategies(run_dir)
    each = np.stack(list(played.values()))  # [N, 3]
    last = read_matches(run_dir)[-1]
    mixture = sum(chance * played[key] for key, chance in zip(last.places, last.probabilities, strict=True))
    late = np.abs(each[-len(each) // 4 :] - equilibrium).max(axis=1)  # [N / 4]
    return {
        "strategies": each.round(4).tolist(),
        "average": float(np.abs(each.mean(axis=0) - equilibrium).max()),
        "mixture": float(np.abs(mixture - equilibrium).max()),
        "last_quarter": {"least": float(late.min()), "mean": float(late.mean()), "greatest": float(late.max())},
    }


def _line(name: str, result: dict[str, Any]) -> str:
    late = result["last_quarter"]
    return (
        f"{result['game']:<34} {name:<11} seed {result['seed']}: from the equilibrium, the average is "
        f"{result['average']:.3f}, the mixture {result['mixture']:.3f}, policies of the last quarter "
        f"{late['least']:.2f} to {late['greatest']:.2f}; {result['seconds']:.0f} s"
    )


# Board games

BOARD_SETTINGS = {"unroll": 32, "minibatches": 8, "discount": 1.0, "learning_rate": 1e-3, "entropy_cost": 0.2}
"""The entropy lets opponents try every reply now and then: with a sixth of it, rare replies stay unanswered."""


def tictactoe(seed: int, place: Path, size: Size) -> list[dict[str, Any]]:
    steps = size.steps(6_000_000)
    settings = {**BOARD_SETTINGS, "unroll": 16, "hidden": (128, 128), "activation": "relu", "anneal_steps": steps}
    matchmaker = runnel.UniformPast(every=100_000, places=8)
    run_dir = place / f"tictactoe-{seed}"
    result = trained("pgx:tic_tac_toe", matchmaker, seed, steps, 512, settings, run_dir)
    player = boards.greedy(TIC_TAC_TOE, runnel.load(run_dir, group="player"), 512)
    for seat, first in (("first", True), ("second", False)):
        result[seat] = boards.all_replies(TIC_TAC_TOE, player, first)._asdict()
    lost = result["first"]["losses"] + result["second"]["losses"]
    print(f"tictactoe seed {seed}: {lost} games lost over all replies; {result['seconds']:.0f} s", flush=True)
    return [result]


def connect_four(seed: int, place: Path, size: Size) -> list[dict[str, Any]]:
    steps = size.steps(6_000_000)
    settings = {**BOARD_SETTINGS, "network": "benchmarks._board_network:Windows", "anneal_steps": steps}
    matchmaker = runnel.UniformPast(every=250_000, places=4)
    run_dir = place / f"connect_four-{seed}"
    result = trained("pgx:connect_four", matchmaker, seed, steps, 128, settings, run_dir)
    each = size.games // 2
    player = boards.greedy(CONNECT_FOUR, runnel.load(run_dir, group="player"), each)
    rng = np.random.default_rng(seed)
    for name, opponent in (("random", boards.uniform), ("look_ahead", boards.look_ahead)):
        seats = {"first": True, "second": False}
        scores = {
            seat: boards.play(CONNECT_FOUR, player, opponent(CONNECT_FOUR, rng), each, first)._asdict()
            for seat, first in seats.items()
        }
        won = sum(score["wins"] for score in scores.values()) / (2 * each)
        result[name] = {"won": won, **scores}
        print(f"connect_four seed {seed}: {won:.1%} won against {name}; {result['seconds']:.0f} s", flush=True)
    return [result]


PARTS: dict[str, Callable[[int, Path, Size], list[dict[str, Any]]]] = {
    "rps": rps,
    "tictactoe": tictactoe,
    "connect_four": connect_four,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, []], default=[], metavar="PART", help=f"{', '.join(PARTS)}; all of them"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12, 13, 14])
    parser.add_argument("--fraction", type=float, default=1.0, help="of the steps of each run; less is a try")
    parser.add_argument("--games", type=int, default=1000, help="against each opponent of Connect Four, an even number")
    parser.add_argument("--out", metavar="DIR", help="where the raw results go (benchmarks/results)")
    args = parser.parse_args(arguments)
    size = Size(args.fraction, args.games)
    for part in args.parts or PARTS:
        found = []
        for seed in args.seeds:
            with tempfile.TemporaryDirectory() as place:
                found += PARTS[part](seed, Path(place), size)
        result = {"machine": machine.describe("pgx"), "seeds": args.seeds, "size": size._asdict(), "results": found}
        print(machine.save(f"self_play-{part}", result, args.out), flush=True)


if __name__ == "__main__":
    main()
