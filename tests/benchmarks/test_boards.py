"""The games of the benchmark of self-play, beside pgx's."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import _boards as boards
from benchmarks._boards import CONNECT_FOUR, TIC_TAC_TOE, Board, Score


@pytest.mark.parametrize(("name", "board"), [("tic_tac_toe", TIC_TAC_TOE), ("connect_four", CONNECT_FOUR)])
def test_boards_are_those_of_pgx(name: str, board: Board) -> None:
    pgx = pytest.importorskip("pgx")
    import jax

    game, rng = pgx.make(name), np.random.default_rng(0)
    init, step = jax.jit(jax.vmap(game.init)), jax.jit(jax.vmap(game.step))
    state = init(jax.random.split(jax.random.key(0), 64))
    mine = np.zeros((64, board.cells), np.int8)
    while len(running := np.flatnonzero(~np.asarray(state.terminated))):
        seen = board.observation(mine[running])
        np.testing.assert_array_equal(seen["observation"], np.asarray(state.observation)[running])
        np.testing.assert_array_equal(seen["action_mask"], np.asarray(state.legal_action_mask)[running])
        moves = np.zeros(64, np.int64)
        moves[running] = boards.uniform(board, rng)(mine[running])
        state = step(state, moves.astype(np.int32))
        after = board.move(mine[running], moves[running])
        ended, rewards = np.asarray(state.terminated)[running], np.asarray(state.rewards)[running]
        np.testing.assert_array_equal(board.won(after), np.abs(rewards).max(axis=1) > 0)
        np.testing.assert_array_equal(ended, board.won(after) | (after != 0).all(axis=1))
        mine[running] = -after


def test_all_replies_are_all_games() -> None:
    def first_free(cells: np.ndarray) -> np.ndarray:
        return TIC_TAC_TOE.legal(cells).argmax(axis=1)

    def games(cells: np.ndarray, mine: bool) -> np.ndarray:
        """[3] by visiting each by itself."""
        moves = first_free(cells[None]) if mine else np.flatnonzero(cells == 0)
        found = np.zeros(3, int)
        for move in moves:
            after = TIC_TAC_TOE.move(cells[None], np.array([move]))[0]
            if TIC_TAC_TOE.won(after[None])[0]:
                found[0 if mine else 2] += 1
            elif (after != 0).all():
                found[1] += 1
            else:
                found += games(-after, not mine)
        return found

    for first in (True, False):
        assert boards.all_replies(TIC_TAC_TOE, first_free, first) == Score(*games(np.zeros(9, np.int8), first))


def test_looking_ahead_wins_then_stops_the_other() -> None:
    both, stop = np.zeros((2, 42), np.int8)
    both[[35, 36, 37]], both[[41, 34, 27]] = 1, -1
    stop[[35, 36]], stop[[41, 34, 27]] = 1, -1
    ahead = boards.look_ahead(CONNECT_FOUR, np.random.default_rng(0))
    np.testing.assert_array_equal(ahead(np.stack([both, stop])), [3, 6])


def test_a_game_against_oneself_is_counted_from_the_seat() -> None:
    rng = np.random.default_rng(0)
    first, second = (boards.uniform(TIC_TAC_TOE, rng) for _ in range(2))
    ahead = boards.play(TIC_TAC_TOE, first, second, 4000, first=True)
    behind = boards.play(TIC_TAC_TOE, first, second, 4000, first=False)
    assert sum(ahead) == sum(behind) == 4000
    # Of games of random moves, the first player wins 58.5% and the second 28.8%.
    np.testing.assert_allclose([ahead.wins / 4000, behind.wins / 4000], [0.585, 0.288], atol=0.03)
