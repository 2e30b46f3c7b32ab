"""Results of games between players, as data: how often each snapshot won against each other.

    table = PayoffTable().add(GameResult("player:12", "player:4", wins=3, draws=1))
    table.score("player:12", "player:4")  # 0.875

A player is named by a key: `group:version` for a snapshot of the run, or `RUN_DIR@TAG` for a stored policy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.errors import UserError, a

FORMAT: Final = 1
MOST_RESULTS: Final = 1_000_000
"""The largest number of results of a table, one for each pair and role."""
MOST_CHARACTERS: Final = 4096
"""The longest key or role."""
MOST_GAMES: Final = 2.0**53
"""The largest count, below which floats are exact; also the limit of a sum of returns."""


class GameResult(NamedTuple):
    """Results of one player against one opponent, from the player's side.

    `role` is the player's group or seat. It is empty in symmetric games, where both have the same one. Counts may be
    fractions, such as those of weighted games.
    """

    player: str
    opponent: str
    wins: float = 0.0
    draws: float = 0.0
    losses: float = 0.0
    returns: float = 0.0  # the sum of the player's returns
    role: str = ""

    @property
    def games(self) -> float:
        return self.wins + self.draws + self.losses

    @property
    def score(self) -> float:
        """Wins and half the draws, as a share of all games: 0 to 1, NaN without games."""
        return (self.wins + 0.5 * self.draws) / self.games if self.games else math.nan

    @property
    def mean_return(self) -> float:
        """The mean return; NaN without games."""
        return self.returns / self.games if self.games else math.nan


Pair = tuple[str, str, str]
"""The key of the result: role, player and opponent."""


@dataclass(frozen=True)
class PayoffTable:
    """Results between players, one for each role and ordered pair; `add` and `merge` return another table.

    A game is recorded once, from the side of one of its players. Where no role is given, or the empty one of
    symmetric games, a game of `a` against `b` also counts as one of `b` against `a`, with wins and losses exchanged. In
    a named role it does not, because there the opponent has another role.
    """

    results: tuple[GameResult, ...] = ()
    """Results by role, player and opponent. Results of the same three are added up."""

    def __post_init__(self) -> None:
        by_pair: dict[Pair, GameResult] = {}
        for result in self.results:
            pair = (result.role, result.player, result.opponent)
            result = _checked(result, f"a result of '{str(result.player)[:40]}'")
            by_pair[pair] = result if pair not in by_pair else _sum(by_pair[pair], result)
        if len(by_pair) > MOST_RESULTS:
            raise UserError(f"found {len(by_pair)} pairs of players, expected at most {MOST_RESULTS}")
        object.__setattr__(self, "results", tuple(by_pair[pair] for pair in sorted(by_pair)))

    def add(self, *results: GameResult) -> PayoffTable:
        """A table with these results too. One call with many results is cheaper than many calls."""
        return PayoffTable((*self.results, *results))

    def merge(self, other: PayoffTable) -> PayoffTable:
        return self.add(*other.results)

    def between(self, player: str, opponent: str, role: str | None = None) -> GameResult:
        """The results of two players from the first one's side: in one role, or in all of them.

        Returns are those of games that were recorded from the side of `player`.
        """
        found = self._recorded(player, opponent, role)
        if not role and player != opponent:
            mirrored = self._recorded(opponent, player, role)
            found = found._replace(
                wins=found.wins + mirrored.losses,
                draws=found.draws + mirrored.draws,
                losses=found.losses + mirrored.wins,
            )
        elif not role:  # a win against itself is a loss as well
            even = 0.5 * (found.wins + found.losses)
            found = found._replace(wins=even, losses=even)
        return found._replace(role=role or "")

    def score(self, player: str, opponent: str, role: str | None = None) -> float:
        """Wins and half the draws of a player, as a share of all games: 0 to 1, NaN without games."""
        return self.between(player, opponent, role).score

    def games(self, player: str, opponent: str, role: str | None = None) -> float:
        return self.between(player, opponent, role).games

    def mean_return(self, player: str, opponent: str, role: str | None = None) -> float:
        """Mean return of a player in the games that were recorded from its side; NaN without any."""
        return self._recorded(player, opponent, role).mean_return

    def matrix(
        self, players: Sequence[str], role: str | None = None, opponents: Sequence[str] | None = None
    ) -> np.ndarray:
        """[N, M] scores of players against opponents, who are the same by default; NaN without games."""
        return self._mean(
            lambda result: (result.wins + 0.5 * result.draws, result.losses + 0.5 * result.draws),
            players, role, opponents,
        )  # fmt: skip

    def zero_sum_returns(
        self, players: Sequence[str], role: str | None = None, opponents: Sequence[str] | None = None
    ) -> np.ndarray:
        """[N, M] mean returns of players against opponents, who lose what players win; NaN without games."""
        return self._mean(lambda result: (result.returns, -result.returns), players, role, opponents)

    def _mean(
        self, points: Callable[[GameResult], tuple[float, float]], players: Sequence[str], role: str | None,
        opponents: Sequence[str] | None,
    ) -> np.ndarray:  # fmt: skip
        """[N, M] the mean, per game, of the points that `points(result)` assigns to the player and the opponent."""
        others = players if opponents is None else opponents
        rows, columns = ({key: i for i, key in enumerate(dict.fromkeys(keys))} for keys in (players, others))
        sums, games = np.zeros((2, len(rows), len(columns)))
        for result in self.results:
            if role is not None and result.role != role:
                continue
            player, opponent, (won, lost) = result.player, result.opponent, points(result)
            if player in rows and opponent in columns:
                sums[rows[player], columns[opponent]] += won
                games[rows[player], columns[opponent]] += result.games
            if not role and opponent in rows and player in columns:  # the same games, as the opponent sees them
                sums[rows[opponent], columns[player]] += lost
                games[rows[opponent], columns[player]] += result.games
        means = np.divide(sums, games, out=np.full(games.shape, np.nan), where=games > 0)
        return means[np.ix_([rows[key] for key in players], [columns[key] for key in others])]

    def players(self, role: str | None = None) -> tuple[str, ...]:
        """Keys of all players and opponents in alphabetical order; of a named role, those who had that role."""
        found = [result for result in self.results if role is None or result.role == role]
        opponents = [] if role else [result.opponent for result in found]
        return tuple(sorted({*(result.player for result in found), *opponents}))

    def opponents(self, role: str | None = None) -> tuple[str, ...]:
        """Keys of all opponents, in alphabetical order; without a named role, of all players."""
        found = {result.opponent for result in self.results if result.role == role}
        return tuple(sorted(found)) if role else self.players(role)

    def roles(self) -> tuple[str, ...]:
        return tuple(sorted({result.role for result in self.results}))

    def to_json(self) -> dict[str, Any]:
        """The table as JSON. It depends on the results alone, not on the order in which they were added."""
        return {"format": FORMAT, "fields": list(GameResult._fields), "results": [list(each) for each in self.results]}

    @classmethod
    def from_json(cls, data: Any) -> PayoffTable:
        """The table that `to_json` wrote; anything else is refused, because files may have been edited."""
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            found = a(data) if not isinstance(data, Mapping) else f"format {str(data.get('format'))[:40]!r}"
            raise UserError(f"found {found}, expected a payoff table of format {FORMAT}; was the file edited?")
        fields, rows = data.get("fields"), data.get("results")
        if fields != list(GameResult._fields):
            raise UserError(f"found fields {str(fields)[:80]}, expected {', '.join(GameResult._fields)}")
        if not isinstance(rows, list) or len(rows) > MOST_RESULTS:
            found = f"{len(rows)} results" if isinstance(rows, list) else a(rows)
            raise UserError(f"found {found}, expected a list of at most {MOST_RESULTS} results")
        results = tuple(_result(row, number) for number, row in enumerate(rows, 1))
        if len({(each.role, each.player, each.opponent) for each in results}) < len(results):
            raise UserError(
                "found several results of one player, opponent and role, expected one; was the file edited?"
            )
        return cls(results)

    @functools.cached_property
    def _by_pair(self) -> dict[Pair, GameResult]:
        return {(each.role, each.player, each.opponent): each for each in self.results}

    @functools.cached_property
    def _roles(self) -> tuple[str, ...]:
        return self.roles()

    def _recorded(self, player: str, opponent: str, role: str | None) -> GameResult:
        """The recorded results of `player` against `opponent`, added up over roles if `role` is None."""
        roles = self._roles if role is None else (role,)
        found = [self._by_pair[pair] for name in roles if (pair := (name, player, opponent)) in self._by_pair]
        return functools.reduce(_sum, found, GameResult(player, opponent))


def _sum(one: GameResult, other: GameResult) -> GameResult:
    return one._replace(
        wins=one.wins + other.wins,
        draws=one.draws + other.draws,
        losses=one.losses + other.losses,
        returns=one.returns + other.returns,
    )


def _result(row: Any, number: int) -> GameResult:
    if not isinstance(row, list) or len(row) != len(GameResult._fields):
        found = f"{len(row)} values" if isinstance(row, list) else a(row)
        raise UserError(f"result {number}: found {found}, expected a list of {len(GameResult._fields)} values")
    return _checked(GameResult(*row), f"result {number}")


def _checked(result: GameResult, where: str) -> GameResult:
    """The result with its numbers as floats. Raises UserError, which begins with `where`, if it is invalid."""
    problem = _problem(result)
    if problem:
        raise UserError(f"{where}: {problem}")
    player, opponent, wins, draws, losses, returns, role = result
    return GameResult(player, opponent, float(wins), float(draws), float(losses), float(returns), role)


def _problem(result: GameResult) -> str:
    """The reason why a result is invalid; empty if it is valid."""
    for name in ("player", "opponent", "role"):
        text = getattr(result, name)
        least = 0 if name == "role" else 1
        if not isinstance(text, str) or not least <= len(text) <= MOST_CHARACTERS or not text.isprintable():
            expected = f"{least} to {MOST_CHARACTERS} printable characters"
            return f"found {name} {str(text)[:40]!r}, expected {expected}"
    for name in ("wins", "draws", "losses", "returns"):
        value = getattr(result, name)
        least = -MOST_GAMES if name == "returns" else 0.0
        if not _is_number(value) or not least <= value <= MOST_GAMES:
            return f"found {name}={str(value)[:40]}, expected a number from {least:g} to {MOST_GAMES:g}"
    return ""


def _is_number(value: Any) -> bool:
    """Whether a value is a number of Python or NumPy, and not a bool, which JSON has too."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
