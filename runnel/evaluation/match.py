"""A match of two sides: plays its games, detects identical ones, and summarises the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.environment import Environment
from runnel.errors import RunFailed
from runnel.evaluation.match_play import Games, Played, joined, make_table, padded
from runnel.evaluation.seating import A, B, Seating
from runnel.types import EnvSpec

COMPARED: Final = 32
"""The number of games identical to an earlier one of their seat after which players count as deterministic."""

QUANTILE: Final = 1.959963984540054
"""The quantile of the normal distribution for 95% intervals, in standard deviations."""

ORDINALS: Final = ("first", "second", "third", "fourth")


class Seat(NamedTuple):
    """A seat or role of side A, with the seating for it."""

    label: str
    seating: Seating
    number: int


class Match:
    """Plays games and detects identical ones."""

    def __init__(self, environment: Environment, seats: Sequence[Seat], seed: int, note: Callable[[str], None]):
        self._seats, self._note = seats, note
        seatings = list({id(seat.seating): seat.seating for seat in seats}.values())
        self._tables = [make_table(environment, seating, seed) for seating in seatings]
        which = {id(seating): k for k, seating in enumerate(seatings)}
        self._table_of = np.array([which[id(seat.seating)] for seat in seats])

    def from_deals(self, count: int) -> Games:
        """`count` deals, each from every seat. `seat` is an index into the list of seats."""
        deal, seat = (
            part.ravel() for part in np.meshgrid(np.arange(count), np.arange(len(self._seats)), indexing="ij")
        )
        return Games(deal.astype(np.uint32), seat.astype(np.int32), np.zeros(deal.size, np.uint32), {})

    def from_openings(self, deals: np.ndarray, moves: Mapping[str, np.ndarray], repeats: int) -> Games:
        """Each opening from every seat, repeated."""
        axes = [np.arange(repeats), np.arange(len(deals)), np.arange(len(self._seats))]
        repeat, opening, seat = (part.ravel() for part in np.meshgrid(*axes, indexing="ij"))
        chosen = {group: made[opening] for group, made in moves.items()}
        return Games(deals[opening], seat.astype(np.int32), repeat.astype(np.uint32), chosen)

    def play(self, games: Games, total: int, searching: bool) -> tuple[Scored, bool]:
        """The games that count, and whether each represents all games of its kind, because these would be identical.

        The first `total` games are played. `searching`: if all games of a kind were identical, but too few to be sure,
        more are played.
        """
        # Games of one seat and opening, which only chance and exploration can distinguish.
        kind = games.seat.astype(np.int64) * (1 << 32) + (games.deal if games.moves else 0)
        batch = self._batch(total)
        parts, done, unsure = [], 0, searching
        while done < total or (unsure and done < len(kind)):
            stop = min(total if done < total else len(kind), done + batch * len(self._tables))
            parts.append(self._play_rows(games, np.arange(done, stop), batch))
            done = stop
            if unsure:
                played = joined(parts, done)
                _, first = np.unique(kind[:done], return_index=True)
                if _all_the_same(kind[:done], played) and done - len(first) >= COMPARED:
                    kept = np.sort(first)
                    return self._scored(games.rows(kept), _rows(played, kept)), True
                # With one game of each kind, there is nothing to leave out.
                unsure = _all_the_same(kind[:done], played) and (done < total or done > len(first))
        return self._scored(games.rows(np.arange(total)), joined(parts, total)), False

    def _batch(self, total: int) -> int:
        """The number of games that each table plays at a time, equal in every call, so that one program is compiled."""
        table = self._tables[0]
        each = math.ceil(total / len(self._tables))
        return math.ceil(each / math.ceil(each / table.most)) if table.adjustable else table.most

    def _play_rows(self, games: Games, rows: np.ndarray, batch: int) -> Played:
        """Plays some of the games, those of each table together."""
        parts, places = [], []
        for number, table in enumerate(self._tables):
            own = rows[self._table_of[games.seat[rows]] == number]
            for start in range(0, len(own), batch):
                these = own[start : start + batch]
                chosen = games.rows(these)
                seat = np.array([self._seats[k].number for k in chosen.seat], np.int32)
                found = table.play(padded(chosen._replace(seat=seat), batch))
                parts.append(joined([found], len(these)))
                places.append(these)
        back = np.argsort(np.concatenate(places))
        return _rows(joined(parts, len(rows)), back)

    def _scored(self, games: Games, played: Played) -> Scored:
        whole = np.isfinite(played.returns.sum(1))
        why = f": {'; '.join(played.notes)}" if played.notes else ""
        if not whole.all():
            self._note(f"{int((~whole).sum())} games were cut and left out{why}")
        if not whole.any():
            raise RunFailed(f"no game is left{why or ': no return is finite'}")
        if played.endless.any():
            self._note(f"{int(played.endless.sum())} games did not end, and are decided by the returns so far")
        a, b = played.returns.T
        won = np.where(np.isclose(a, b, rtol=1e-6, atol=1e-9), 0.5, np.where(a > b, 1.0, 0.0))
        return Scored(games.seat, games.deal, won, played.returns, bool(played.alone.all())).rows(whole)


def _rows(played: Played, chosen: np.ndarray) -> Played:
    return Played(
        played.returns[chosen], played.trace[chosen], played.alone[chosen], played.endless[chosen], played.notes
    )


def _all_the_same(kind: np.ndarray, played: Played) -> bool:
    """Whether games of the same kind have the same moves and returns."""
    _, first, inverse = np.unique(kind, return_index=True, return_inverse=True)
    of_first = first[inverse]
    return bool(
        (played.trace == played.trace[of_first]).all()
        and np.array_equal(played.returns, played.returns[of_first], equal_nan=True)
    )


# Results


class Scored(NamedTuple):
    """The results of E games for side A."""

    seat: np.ndarray  # [E] place in the list of seats
    deal: np.ndarray  # [E]
    won: np.ndarray  # [E] 1, 0.5 for a draw, or 0
    returns: np.ndarray  # [E, 2]
    turns: bool  # whether one agent alone moved first in all of them

    def rows(self, chosen: np.ndarray) -> Scored:
        return self._replace(
            seat=self.seat[chosen], deal=self.deal[chosen], won=self.won[chosen], returns=self.returns[chosen]
        )


def by_seat(scored: Scored, seats: Sequence[Seat], spec: EnvSpec) -> list[tuple[str, Scored]]:
    found = []
    for number, seat in enumerate(seats):
        label, (agents, *rest) = seat.label, spec.groups.values()
        if not rest and scored.turns and agents.agents <= len(ORDINALS):
            label = ORDINALS[number]
        elif not rest and not scored.turns and agents.names:
            label = agents.names[number]
        own = scored.rows(scored.seat == number)
        if len(own.won):
            found.append((label, own))
    return found


def summary(scored: Scored, exact: bool) -> dict[str, Any]:
    won = scored.won
    _, deal = np.unique(scored.deal, return_inverse=True)
    means = np.bincount(deal, won) / np.bincount(deal)
    return {
        "games": len(won),
        "wins": int((won == 1).sum()),
        "draws": int((won == 0.5).sum()),
        "losses": int((won == 0).sum()),
        "score": float(won.mean()),
        "interval": None if exact else list(score_interval(means)),
        "mean_return": float(scored.returns[:, A].mean()),
        "opponent_return": float(scored.returns[:, B].mean()),
    }


def score_interval(scores: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the mean of independent scores from 0 to 1: Wilson's, with the variance that they have.

    Games of one deal are not independent, so `scores` are the means of deals. Of wins and losses alone, this is
    Wilson's interval itself, which has a width even where all games were won.
    """
    count, square = len(scores), QUANTILE**2
    centre = (scores.sum() + square / 2) / (count + square)
    margin = QUANTILE / (count + square) * math.sqrt(count * float(np.var(scores)) + square / 4)
    return max(0.0, float(centre - margin)), min(1.0, float(centre + margin))
