"""Tic-tac-toe and Connect Four in NumPy, apart from the environments that policies are trained in.

Boards are arrays [N, cells] of the player to move: 1 its own stones, -1 the other's, 0 empty. What a policy sees of
them is what pgx shows to the player to move: `[rows, columns, 2]`, its own stones and the other's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Player = Callable[[np.ndarray], np.ndarray]
"""Moves [N] of the player to move on boards [N, cells]."""


class Board(NamedTuple):
    """A game in which the first to have some stones in a line wins."""

    rows: int
    columns: int
    line: int  # stones
    falls: bool  # whether a stone falls down a column, which is the move then

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def lines(self) -> np.ndarray:
        """[L, line] cells of every line."""
        found = []
        for row in range(self.rows):
            for column in range(self.columns):
                for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                    last_row, last_column = row + down * (self.line - 1), column + right * (self.line - 1)
                    if last_row < self.rows and 0 <= last_column < self.columns:
                        found.append([(row + down * k) * self.columns + column + right * k for k in range(self.line)])
        return np.array(found)

    def legal(self, boards: np.ndarray) -> np.ndarray:
        """[N, moves]"""
        return boards[:, : self.columns] == 0 if self.falls else boards == 0

    def move(self, boards: np.ndarray, moves: np.ndarray) -> np.ndarray:
        """[N, cells] after a move, still from the side of who made it."""
        cells = moves
        if self.falls:
            filled = (boards.reshape(-1, self.rows, self.columns) != 0).sum(axis=1)  # [N, columns]
            cells = (self.rows - 1 - filled[np.arange(len(moves)), moves]) * self.columns + moves
        after = boards.copy()
        after[np.arange(len(moves)), cells] = 1
        return after

    def won(self, boards: np.ndarray) -> np.ndarray:
        """[N] whether the stones that are 1 have a line."""
        return (boards[:, LINES[self]] == 1).all(axis=2).any(axis=1)

    def observation(self, boards: np.ndarray) -> dict[str, np.ndarray]:
        """What pgx shows to the player to move."""
        seen = np.stack([boards == 1, boards == -1], axis=-1)
        return {
            "observation": seen.reshape(-1, self.rows, self.columns, 2),
            "action_mask": self.legal(boards),
            "active": np.ones(len(boards), np.bool_),
        }


TIC_TAC_TOE = Board(3, 3, 3, falls=False)
CONNECT_FOUR = Board(6, 7, 4, falls=True)
LINES = {board: board.lines() for board in (TIC_TAC_TOE, CONNECT_FOUR)}


def greedy(board: Board, policy: Any, rows: int) -> Player:
    """A policy's most likely moves; it is called with so many rows always, so that it is compiled once."""

    def moves(boards: np.ndarray) -> np.ndarray:
        found = []
        for start in range(0, len(boards), rows):
            part = boards[start : start + rows]
            filled = np.concatenate([part, np.zeros((rows - len(part), board.cells), part.dtype)])
            found.append(np.asarray(policy.act(board.observation(filled)))[: len(part)])
        return np.concatenate(found).astype(np.int64)

    return moves


def uniform(board: Board, rng: np.random.Generator) -> Player:
    """Any legal move."""
    return lambda boards: _drawn(board.legal(boards), rng)


def look_ahead(board: Board, rng: np.random.Generator) -> Player:
    """Wins if a move does, else stops the other from winning with the next move, else any legal move."""

    def moves(boards: np.ndarray) -> np.ndarray:
        legal = board.legal(boards)
        wins, stops = _winning(board, boards), _winning(board, -boards)
        choice = np.where(wins.any(1, keepdims=True), wins, np.where(stops.any(1, keepdims=True), stops, legal))
        return _drawn(choice, rng)

    return moves


def _winning(board: Board, boards: np.ndarray) -> np.ndarray:
    """[N, moves] legal moves that win at once."""
    legal = board.legal(boards)
    found = np.zeros_like(legal)
    for move in range(legal.shape[1]):
        able = np.flatnonzero(legal[:, move])
        if len(able):
            found[able, move] = board.won(board.move(boards[able], np.full(len(able), move)))
    return found


def _drawn(allowed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.where(allowed, rng.random(allowed.shape), -1.0).argmax(axis=1)


class Score(NamedTuple):
    wins: int
    draws: int
    losses: int


def play(board: Board, player: Player, opponent: Player, games: int, first: bool) -> Score:
    """Games of one player, who moves first or second."""
    boards = np.zeros((games, board.cells), np.int8)
    mine, results = first, [0, 0, 0]
    while len(boards):
        boards = board.move(boards, (player if mine else opponent)(boards))
        won = board.won(boards)
        full = ~won & (boards != 0).all(axis=1)
        results[0 if mine else 2] += int(won.sum())
        results[1] += int(full.sum())
        boards, mine = -boards[~won & ~full], not mine
    return Score(*results)


def all_replies(board: Board, player: Player, first: bool) -> Score:
    """Every game that can be played against one who always moves alike: how many sequences of replies end how.

    Positions that several sequences lead to are asked once, and counted as often as they are reached.
    """
    boards, counts = np.zeros((1, board.cells), np.int8), np.ones(1, np.int64)
    mine, results = first, [0, 0, 0]
    while len(boards):
        if mine:
            boards = board.move(boards, player(boards))
        else:
            rows, moves = np.nonzero(board.legal(boards))
            boards, counts = board.move(boards[rows], moves), counts[rows]
        won = board.won(boards)
        full = ~won & (boards != 0).all(axis=1)
        results[0 if mine else 2] += int(counts[won].sum())
        results[1] += int(counts[full].sum())
        open_ = ~won & ~full
        boards, index = np.unique(-boards[open_], axis=0, return_inverse=True)
        counts = np.bincount(index.reshape(-1), weights=counts[open_], minlength=len(boards)).astype(np.int64)
        mine = not mine
    return Score(*results)
