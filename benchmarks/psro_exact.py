"""Claim: PSRO with an exact best response as its oracle finds an equilibrium of Kuhn and Leduc poker.

Policy-space response oracles over `runnel.ops.meta_games`: in each iteration the meta-game of all policies so far is
solved, and the best response of either player to the other's mixture joins the pool. NashConv of the mixture falls
below 0.01. Needs the extra `openspiel`.

    python benchmarks/psro_exact.py
    python benchmarks/psro_exact.py --games kuhn_poker --solvers nash prd uniform
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine
from runnel.ops import exploitability, meta_games

Table = dict[str, np.ndarray]  # [A] probabilities, by the key of an information state


class SequenceForm(NamedTuple):
    """A two-player game as matrices over sequences, which are a player's own actions so far (Koller et al. 1996).

    What a policy does is a vector: with which probability its player's actions of each sequence are taken. Payoffs are
    linear in it, and the vector of a mixture of policies is the mixture of their vectors.
    """

    payoffs: np.ndarray  # [S0, S1] of player 0, weighted by chance
    states: tuple[dict[str, int], dict[str, int]]  # by player and information state: the sequence that leads there
    sequences: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]  # by player, state and action
    legal: Table  # [A]

    def plan(self, player: int, table: Table) -> np.ndarray:
        """[S] the vector of a policy."""
        found = np.ones(1 + len(self.sequences[player]))
        for (key, action), sequence in self.sequences[player].items():  # what comes before is there already
            found[sequence] = found[self.states[player][key]] * table[key][action]
        return found

    def table(self, player: int, plan: np.ndarray) -> Table:
        """The policy of a vector; uniform where its own actions never lead."""
        found = {}
        for key, before in self.states[player].items():
            legal = self.legal[key]
            taken = np.zeros(len(legal))
            for action in np.flatnonzero(legal):
                taken[action] = plan[self.sequences[player][key, int(action)]]
            found[key] = taken / taken.sum() if plan[before] > 0 and taken.sum() > 0 else legal / legal.sum()
        return found


def sequence_form(game_name: str) -> SequenceForm:
    import pyspiel

    legal = {state.key: state.legal.astype(float) for state in exploitability.information_states(game_name)}
    states: tuple[dict[str, int], dict[str, int]] = ({}, {})
    sequences: tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]] = ({}, {})
    ends: list[tuple[int, int, float]] = []

    def visit(state: Any, before: tuple[int, int], chance: float) -> None:
        if state.is_terminal():
            ends.append((*before, chance * state.returns()[0]))
        elif state.is_chance_node():
            for action, probability in state.chance_outcomes():
                visit(state.child(action), before, chance * probability)
        else:
            player, key = state.current_player(), state.information_state_string()
            states[player][key] = before[player]
            for action in state.legal_actions():
                known = sequences[player]
                sequence = known.setdefault((key, action), len(known) + 1)
                visit(state.child(action), (sequence, before[1]) if player == 0 else (before[0], sequence), chance)

    visit(pyspiel.load_game(game_name).new_initial_state(), (0, 0), 1.0)
    payoffs = np.zeros((1 + len(sequences[0]), 1 + len(sequences[1])))
    for row, column, payoff in ends:
        payoffs[row, column] += payoff
    return SequenceForm(payoffs, states, sequences, legal)


def psro(game_name: str, solver: str = "nash", iterations: int = 1000, **options: Any) -> Iterator[float]:
    """NashConv of the mixture in each iteration; both players begin with the uniform policy."""
    game = sequence_form(game_name)
    states = exploitability.information_states(game_name)
    uniform = dict(zip([state.key for state in states], exploitability.uniform_policy(states), strict=True))
    pools = [[game.plan(player, uniform)] for player in (0, 1)]
    for _ in range(iterations):
        plans = [np.stack(pool) for pool in pools]  # [N, S0] and [M, S1]
        payoffs = plans[0] @ game.payoffs @ plans[1].T  # [N, M]
        mixtures = meta_games.SOLVERS[solver](payoffs, **options)
        table = {}
        for player in (0, 1):
            table |= game.table(player, mixtures[player] @ plans[player])
        policy = exploitability.of_table(table)
        yield exploitability.nash_conv(game_name, policy)
        for player in (0, 1):
            pools[player].append(game.plan(player, exploitability.best_response(game_name, player, policy).table))


def until(game_name: str, target: float, **options: Any) -> list[float]:
    """NashConv of each iteration, up to the first that is below `target`."""
    found: list[float] = []
    for value in psro(game_name, **options):
        found.append(value)
        if value < target:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["kuhn_poker", "leduc_poker"])
    parser.add_argument("--solvers", nargs="+", default=["nash"], choices=sorted(meta_games.SOLVERS))
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--target", type=float, default=0.01)
    parser.add_argument("--out", help="a directory for the results")
    args = parser.parse_args()
    found = {}
    for game in args.games:
        for solver in args.solvers:
            began = time.perf_counter()
            curve = until(game, args.target, solver=solver, iterations=args.iterations)
            seconds = time.perf_counter() - began
            print(f"{game:<12} {solver:<9} NashConv {curve[-1]:.4f} after {len(curve)} iterations, {seconds:.1f} s")
            found[f"{game}/{solver}"] = {"nash_conv": curve, "seconds": seconds}
    print(machine.save("psro_exact", {"machine": machine.describe("open_spiel", "scipy"), "curves": found}, args.out))


if __name__ == "__main__":
    main()
