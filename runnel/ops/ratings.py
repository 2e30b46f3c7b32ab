"""Ratings of players by their games: Bradley-Terry by maximum likelihood, on the scale of Elo's numbers.

A player who is rated 400 higher is expected to score 10 to 1. A draw is half a win for each. One player, the anchor,
has a fixed rating; the others are relative to it.

Every other player has a prior worth half a drawn game against the anchor. It keeps the rating finite of a player who
has only won or only lost, and a few games outweigh it. Intervals are computed from the Fisher information, prior
included. Counting a draw as half a win each makes them a little too wide where many games are drawn.

The prior also connects players to the anchor who have not met it, not even through others. It alone would decide their
ratings, so they have none: NaN, with an interval from minus to plus infinity.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from runnel.errors import UserError, nearest
from runnel.payoffs import PayoffTable

SCALE: Final = 400 / math.log(10)
"""Rating points of one unit of log-odds."""
PRIOR_GAMES: Final = 0.5
"""The number of drawn prior games against the anchor."""
QUANTILE: Final = 1.959963984540054
"""The quantile of the normal distribution for 95% intervals, in standard deviations."""
MOST_STEPS: Final = 200
"""The largest number of Newton's iterations; it takes about ten."""


class Rating(NamedTuple):
    """A player's rating with its 95% confidence interval; NaN if no games connect it to the anchor."""

    rating: float
    low: float
    high: float
    games: float


class BradleyTerry(NamedTuple):
    """Maximum-likelihood strengths, in log-odds relative to the anchor."""

    strengths: np.ndarray  # [N] NaN where no games join a player to the anchor
    deviations: np.ndarray  # [N] standard deviations; infinite there, 0 for the anchor


def ratings(table: PayoffTable, anchor: str, role: str | None = None, anchor_rating: float = 0.0) -> dict[str, Rating]:
    """Ratings of all players of a role, or of all games together, in alphabetical order.

    In a named role, a player and its opponent have different roles: the same key there is rated on both sides, and only
    the ratings of those who had the role are returned. The anchor is fixed where it had the role, or, if it never did,
    as an opponent.
    """
    if not math.isfinite(anchor_rating):
        raise UserError(f"anchor_rating={anchor_rating}: expected a finite number")
    players, opponents = table.players(role), table.opponents(role)
    if anchor not in players and anchor not in opponents:
        where = f" in role '{role}'" if role else ""
        known = nearest(anchor, {*players, *opponents})
        raise UserError(f"anchor='{anchor}': found no games of it{where}, expected a player of the table{known}")
    nodes = [(0, key) for key in players] + ([(1, key) for key in opponents] if role else [])
    index = {node: number for number, node in enumerate(nodes)}
    wins = np.zeros((len(nodes), len(nodes)))  # [N, N] wins of a row over a column, draws as half
    for result in table.results:
        if role is None or result.role == role:
            i, j = index[0, result.player], index[1 if role else 0, result.opponent]
            wins[i, j] += result.wins + 0.5 * result.draws
            wins[j, i] += result.losses + 0.5 * result.draws
    fixed = index[0, anchor] if (0, anchor) in index else index[1, anchor]
    fit = bradley_terry(wins, fixed)
    np.fill_diagonal(wins, 0.0)
    games = (wins + wins.T).sum(axis=1)
    rated = anchor_rating + SCALE * fit.strengths
    margins = SCALE * QUANTILE * fit.deviations
    return {key: _rating(rated[i], margins[i], games[i]) for i, (side, key) in enumerate(nodes) if side == 0}


def _rating(rating: float, margin: float, games: float) -> Rating:
    if math.isnan(rating):
        return Rating(math.nan, -math.inf, math.inf, float(games))
    return Rating(float(rating), float(rating - margin), float(rating + margin), float(games))


def bradley_terry(wins: np.ndarray, anchor: int) -> BradleyTerry:
    """Fits strengths to `wins`, [N, N]: of a row over a column, draws as half. Games against oneself are ignored."""
    wins = np.array(wins, np.float64)
    if wins.ndim != 2 or wins.shape[0] != wins.shape[1] or not 0 <= anchor < len(wins):
        raise ValueError(f"found wins of shape {wins.shape} and anchor {anchor}, expected a square and one of its rows")
    if not np.isfinite(wins).all() or (wins < 0).any():
        raise ValueError("found wins that are negative or not finite, expected numbers of games")
    np.fill_diagonal(wins, 0.0)
    joined = _joined(wins + wins.T > 0, anchor)
    strengths, deviations = np.full(len(wins), np.nan), np.full(len(wins), np.inf)
    strengths[anchor], deviations[anchor] = 0.0, 0.0
    others = [i for i in joined if i != anchor]
    if others:
        rows = [*others, anchor]  # the anchor last
        found, covariance = _newton(_with_prior(wins[np.ix_(rows, rows)]))
        strengths[others], deviations[others] = found, np.sqrt(np.diagonal(covariance))
    return BradleyTerry(strengths, deviations)


def _joined(played: np.ndarray, start: int) -> list[int]:
    """Players whom a chain of games connects to `start`, and `start` itself."""
    reached = np.zeros(len(played), bool)
    reached[start] = True
    while True:
        more = reached | played[reached].any(axis=0)
        if (more == reached).all():
            return [int(i) for i in np.flatnonzero(reached)]
        reached = more


def _with_prior(wins: np.ndarray) -> np.ndarray:
    wins[:-1, -1] += 0.5 * PRIOR_GAMES
    wins[-1, :-1] += 0.5 * PRIOR_GAMES
    return wins


def _newton(wins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Strengths [N - 1] relative to the last player, and their covariance.

    The log-likelihood is strictly concave, because the prior joins everyone to the last player.
    """
    games = wins + wins.T
    strengths = np.zeros(len(wins))
    likelihood = _log_likelihood(wins, strengths)
    for _ in range(MOST_STEPS):
        gradient, information = _derivatives(wins, games, strengths)
        step = np.linalg.solve(information, gradient)
        gain = gradient @ step  # twice what the quadratic model promises
        if gain <= 1e-16 * max(1.0, abs(likelihood)):
            break
        # A step in log-odds beyond a few units leaves where the quadratic model holds.
        length = min(1.0, 4.0 / float(np.abs(step).max()))
        while length > 1e-10:
            tried = strengths.copy()
            tried[:-1] += length * step
            found = _log_likelihood(wins, tried)
            if found >= likelihood:
                break
            length *= 0.5
        else:
            break  # the rest is rounding
        strengths, likelihood = tried, found
    _, information = _derivatives(wins, games, strengths)
    return strengths[:-1], np.linalg.inv(information)


def _log_likelihood(wins: np.ndarray, strengths: np.ndarray) -> float:
    return -float((wins * np.logaddexp(0.0, strengths[None, :] - strengths[:, None])).sum())


def _derivatives(wins: np.ndarray, games: np.ndarray, strengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradient [N - 1] of the log-likelihood, and the Fisher information [N - 1, N - 1]."""
    # [N, N] the probability that a row wins, accurate also where it is tiny
    expected = np.exp(-np.logaddexp(0.0, strengths[None, :] - strengths[:, None]))
    gradient = (wins * expected.T - wins.T * expected).sum(axis=1)
    weights = games * expected * expected.T
    information = np.diag(weights.sum(axis=1)) - weights
    return gradient[:-1], information[:-1, :-1]
