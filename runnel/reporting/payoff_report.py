"""What the policies of a run scored against each other while it was trained, and their ratings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from runnel.errors import UserError
from runnel.ops.ratings import Rating, ratings
from runnel.payoffs import PayoffTable
from runnel.recording.match_log import FILE, MatchRound, payoffs_of, read_matches

OWN: Final = re.compile(r".+:[0-9]{1,18}")
"""The key of a policy of the run itself: its group and version."""


@dataclass(frozen=True)
class PayoffReport:
    """The results of one role, or of a symmetric game."""

    table: PayoffTable
    role: str  # empty of a symmetric game
    players: tuple[str, ...]  # keys, the oldest snapshot first, then those of other runs
    opponents: tuple[str, ...]  # the same in a symmetric game
    env_steps: dict[str, int]  # by key of a snapshot: after which it was taken
    anchor: str  # the oldest, whose rating is 0
    ratings: dict[str, Rating]  # by key of a player

    def scores(self, players: Sequence[str], opponents: Sequence[str]) -> np.ndarray:
        """[N, M] of players against opponents; NaN without games."""
        return self.table.matrix(players, self.role, opponents)

    def games(self, players: Sequence[str], opponents: Sequence[str]) -> list[list[float]]:
        return [[self.table.games(player, other, self.role) for other in opponents] for player in players]


def read_payoffs(run_dir: Path | str) -> list[PayoffReport]:
    """The results of a run, by role. A run without any is refused."""
    if not Path(run_dir).is_dir():
        raise UserError(f"there is no directory {run_dir}")
    rounds = read_matches(run_dir)
    table = payoffs_of(rounds)
    if not table.results:
        why = f"there is no {FILE} in it" if not rounds else "no game has been counted yet"
        raise UserError(f"{run_dir} has no results between policies: {why}; train with opponents, past policies")
    steps = _env_steps(rounds)
    return [_of_role(table, role, steps) for role in table.roles()]


def _of_role(table: PayoffTable, role: str, env_steps: dict[str, int]) -> PayoffReport:
    players, opponents = (_ordered(keys, env_steps) for keys in (table.players(role), table.opponents(role)))
    anchor = players[0]
    return PayoffReport(
        table, role, players, opponents, env_steps, anchor, ratings(_alone(table, role), anchor, role or None)
    )


def _alone(table: PayoffTable, role: str) -> PayoffTable:
    return PayoffTable(tuple(result for result in table.results if result.role == role))


def _env_steps(rounds: Sequence[MatchRound]) -> dict[str, int]:
    """By key: when a snapshot was the learner's newest."""
    found: dict[str, int] = {}
    for made in rounds:
        if made.pool and OWN.fullmatch(made.pool[-1]):
            found.setdefault(made.pool[-1], made.env_steps)
    return found


def _ordered(keys: Sequence[str], env_steps: dict[str, int]) -> tuple[str, ...]:
    return tuple(sorted(keys, key=lambda key: (key not in env_steps, env_steps.get(key, 0), key)))


def evenly_spaced(keys: Sequence[str], most: int) -> tuple[str, ...]:
    """So many of the keys, the first and the last among them."""
    if len(keys) <= most:
        return tuple(keys)
    return tuple(keys[int(k)] for k in np.linspace(0, len(keys) - 1, most).round())
