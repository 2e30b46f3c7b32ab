"""Games of two players who move at the same time, given by their payoffs, in JAX.

| name | groups | payoff of the first player |
|---|---|---|
| rock_paper_scissors | player | 1 for a win, -1 for a loss |
| biased_rock_paper_scissors | player | rock beats scissors by 1, paper rock by 0.5, scissors paper by 0.1 |
| prisoners_dilemma | player | both cooperate 3, both defect 1; one who defects alone 5, the other 0 |
| matching_pennies | row, column | 1 if both show the same, -1 if not; column receives the opposite |

The only equilibrium of biased rock-paper-scissors plays rock, paper and scissors with probabilities 1/16, 10/16 and
5/16. Its payoffs are those of OpenSpiel's `matrix_brps`, divided by 50.

In a symmetric game, where both players have the same payoffs from their own side, the players form one group, `player`,
of two agents. Otherwise each is a group, `row` and `column`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.errors import UserError, nearest
from runnel.types import AgentSpec, Array, Box, Discrete, EnvSpec, PyTree

GROUPS: Final = ("kind", "each")


class Payoffs(NamedTuple):
    """The payoffs of both players by their actions: [row's actions, column's actions]."""

    row: Any
    column: Any = None  # None: zero-sum


GAMES: Final = {
    "rock_paper_scissors": Payoffs([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]),
    "biased_rock_paper_scissors": Payoffs([[0, -0.5, 1], [0.5, 0, -0.1], [-1, 0.1, 0]]),
    "prisoners_dilemma": Payoffs([[3, 0], [5, 1]], [[3, 5], [0, 1]]),
    "matching_pennies": Payoffs([[1, -1], [-1, 1]]),
}


def make(name: str, /, **settings: Any) -> MatrixGame:
    """The game of that name: `make("prisoners_dilemma", rounds=10)`."""
    if name not in GAMES:
        raise UserError(
            f"no matrix game is called '{name}'{nearest(name, GAMES)}", page="add-an-environment#matrix-games"
        )
    for setting in settings:
        if setting not in ("groups", "rounds"):
            raise UserError(f"matrix:{name} has no setting '{setting}'{nearest(setting, ('groups', 'rounds'))}")
    return MatrixGame(*GAMES[name], **settings, name=f"matrix:{name}")


class State(NamedTuple):
    """A game in progress."""

    left: Array  # [] rounds to be played


class MatrixGame:
    """A game by its payoffs, as pure functions: `MatrixGame([[1, -1], [-1, 1]])`.

    An episode is `rounds` rounds, and its end a termination. A player sees the share of the rounds that is left, which
    is the constant 1 in a game of one round; in a longer one also what it and the other did in the last round.
    """

    def __init__(
        self,
        payoff_row: Any,
        payoff_column: Any = None,
        *,
        rounds: int = 1,
        groups: str = "kind",
        name: str = "matrix game",
    ):
        """`payoff_row[i][j]` is what row receives for i against column's j; without `payoff_column`, column loses it.

        The players of a symmetric game share a policy, or each has its own (`groups="each"`).
        """
        if groups not in GROUPS:
            raise UserError(f"{name}: groups is '{groups}'; expected kind or each")
        if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
            raise UserError(f"{name}: rounds is {rounds}; expected a whole number of 1 or more")
        row = _matrix(name, "payoff_row", payoff_row)
        column = -row if payoff_column is None else _matrix(name, "payoff_column", payoff_column)
        if row.shape != column.shape:
            raise UserError(
                f"{name}: payoff_row is {_shape(row)}, payoff_column {_shape(column)}; expected both as row's actions "
                "x column's actions"
            )
        self.payoffs = np.stack([row, column])  # [2, row's actions, column's actions]
        self._rounds, self._actions = rounds, row.shape
        symmetric = row.shape[0] == row.shape[1] and bool(np.array_equal(column, row.T))
        self._names = ("player_0", "player_1") if symmetric else ("row", "column")
        self._shared = symmetric and groups == "kind"
        self.spec = EnvSpec(name, self._groups(), rounds)

    def reset(self, key: Array) -> tuple[State, PyTree]:
        state = State(jnp.asarray(self._rounds, jnp.int32))
        return state, self._observe(state, None)

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        moves = action if self._shared else [action[name] for name in self._names]
        row, column = (jnp.clip(moves[seat], 0, self._actions[seat] - 1) for seat in (0, 1))
        rewards = jnp.asarray(self.payoffs, jnp.result_type(float))[:, row, column]  # [2]
        state = State(state.left - 1)
        observation = self._observe(state, (row, column))
        return state, TimeStep(observation, self._by_group(*rewards), state.left <= 0, jnp.zeros((), jnp.bool))

    def _observe(self, state: State, moves: tuple[Array, Array] | None) -> PyTree:
        left = (state.left / self._rounds).astype(jnp.float32)[None]
        if self._rounds == 1:
            return self._by_group(left, left)
        did = [
            jnp.zeros(size) if moves is None else jax.nn.one_hot(move, size)
            for move, size in zip(moves or (None, None), self._actions, strict=True)
        ]
        row, column = (jnp.concatenate([left, *seen]).astype(jnp.float32) for seen in (did, did[::-1]))
        return self._by_group(row, column)

    def _by_group(self, row: Array, column: Array) -> PyTree:
        return jnp.stack([row, column]) if self._shared else dict(zip(self._names, (row, column), strict=True))

    def _groups(self) -> dict[str, AgentSpec]:
        seen = Box((1 if self._rounds == 1 else 1 + sum(self._actions),), np.dtype(np.float32), 0.0, 1.0)
        if self._shared:
            return {"player": AgentSpec(seen, Discrete(self._actions[0]), 2, self._names)}
        return {
            name: AgentSpec(seen, Discrete(size), 1, (name,))
            for name, size in zip(self._names, self._actions, strict=True)
        }


def _matrix(name: str, argument: str, given: Any) -> np.ndarray:
    try:
        matrix = np.asarray(given, np.float64)
    except (TypeError, ValueError) as problem:
        raise UserError(f"{name}: {argument} is no matrix of numbers; expected rows of equal length") from problem
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise UserError(
            f"{name}: {argument} is {_shape(matrix)}; expected a matrix of finite numbers, actions x actions"
        )
    return matrix


def _shape(matrix: np.ndarray) -> str:
    return " x ".join(map(str, matrix.shape)) or "a number"
