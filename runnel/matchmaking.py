"""Matchmakers decide which past policies a learner plays against, while it trains.

    matchmaker = PFSP(every=200_000, places=8, latest_share=0.5)
    matches = matchmaker.fill(random_numbers(seed, round), round, payoffs, pool)

A matchmaker is data with one pure function, `fill`. It knows nothing of processes, devices or files.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.errors import UserError, a, nearest
from runnel.ops import meta_games
from runnel.payoffs import PayoffTable

MOST_PLACES: Final = 1024
MOST_IN_POOL: Final = 4096
MOST_GAMES: Final = 100_000
NEGLIGIBLE: Final = 1e-9
"""The smallest share of games for which a policy gets a place: solvers return smaller ones by rounding."""


class Candidate(NamedTuple):
    """A policy that can be an opponent."""

    key: str  # as payoffs name it: `group:version`, or `RUN_DIR@TAG` of a stored policy
    version: int = 0  # updates that produced its parameters
    env_steps: int = 0  # after which it was taken
    group: str = ""  # whose seats it fills
    pinned: bool = False  # never dropped from a pool, such as a stored policy that the user named


class Matches(NamedTuple):
    """The opponents until the next decision."""

    places: tuple[str, ...]  # [K] keys of candidates; one may have several places
    probabilities: tuple[float, ...]  # [K] of each place in an environment's next episode; they add up to 1


@dataclass(frozen=True, kw_only=True)
class Matchmaker:
    """Chooses the policies that a learner plays against.

    A matchmaker is a frozen dataclass that extends this class and has `fill`:

        pool = (Candidate("player:0"), Candidate("player:40", 40, 10_000))  # the last one is the learner's newest
        matches = matchmaker.fill(rng, round, payoffs, pool)
        matchmaker.check(matches, pool)
        pool = matchmaker.grow(pool[:-1], pool[-1], round)
    """

    every: int = 100_000
    """Environment steps between two decisions."""
    places: int = 4
    """The number of policies that play at a time."""
    pool_every: int = 1
    """A snapshot enters the pool at every n-th decision."""
    pool_size: int = 64
    """The largest number of snapshots of a group in the pool. When it is full, snapshots evenly spaced in environment
    steps are kept."""
    games: int = 0
    """The number of games that the learner's newest policy plays against each candidate at a decision, beside training,
    as the only results. With 0, results are those of training. In leagues and games of two roles, they always are."""

    def __post_init__(self) -> None:
        most_of = {"places": MOST_PLACES, "pool_size": MOST_IN_POOL, "games": MOST_GAMES}
        for name in ("every", "places", "pool_every", "pool_size", "games"):
            value, least, most = getattr(self, name), int(name != "games"), most_of.get(name)
            if type(value) is not int or value < least or (most is not None and value > most):
                limit = f"of at least {least}" if most is None else f"from {least} to {most}"
                raise UserError(f"{name}={str(value)[:40]}: found {str(value)[:40]}, expected a whole number {limit}")
        share = getattr(self, "latest_share", 0.0)
        if not isinstance(share, int | float) or not 0 <= share <= 1:
            raise UserError(f"latest_share={share}: found {share}, expected a number from 0 to 1")

    @property
    def groups(self) -> tuple[str, ...]:
        """The learners of a league, in a symmetric game; empty if there is one learner, against its own past."""
        return ()

    def fill(self, rng: np.random.Generator, round: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> Matches:
        """The policies for all places.

        `rng` is the same for the same seed and round. `round`: 0 before the first step, then 1, 2 and so on. `payoffs`:
        all results so far. `pool`: candidates, the oldest first; the last one is the learner's newest.

        If all candidates belong to one group, all are opponents, including the newest. Otherwise the candidates of
        other groups are opponents, and the learner's own are included only for their results. In a league, all
        candidates are opponents; they are ordered by group, with the learner's own last.
        """
        raise NotImplementedError

    def starts_over(self, rounds: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> bool:
        """Whether the learner is reset to its first parameters. Its newest policy is kept, as all others are.

        `rounds`: decisions since the last reset.
        """
        del rounds, payoffs, pool
        return False

    def playable(self, pool: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """The candidates that `fill` may name."""
        return tuple(pool) if self.groups else opponents(pool)

    def grow(self, pool: Sequence[Candidate], newest: Candidate, round: int) -> tuple[Candidate, ...]:
        """The pool of one group after a decision; `newest` enters at every `pool_every`-th, round 0 included."""
        if round % self.pool_every or newest.key in (candidate.key for candidate in pool):
            return tuple(pool)
        return evenly_spaced((*pool, newest), self.pool_size)

    def check(self, matches: Matches, pool: Sequence[Candidate]) -> None:
        """Refuses invalid matches: `fill` may be a user's own."""
        name = type(self).__name__
        if not isinstance(matches, tuple) or len(matches) != 2:
            raise UserError(f"{name}.fill: found {a(matches)}, expected Matches(places, probabilities)")
        places, probabilities = matches
        if not isinstance(places, Sequence) or isinstance(places, str):
            raise UserError(f"{name}.fill: found places as {a(places)}, expected a tuple of {self.places} keys")
        if not places:
            raise UserError(f"{name}.fill: found no snapshot, expected {self.places} keys of the pool")
        if len(places) != self.places:
            raise UserError(f"{name}.fill: found {len(places)} places, expected {self.places}; repeat a key for more")
        known = [candidate.key for candidate in self.playable(pool)]
        for key in places:
            if key not in known:
                hint = nearest(str(key), known)
                raise UserError(
                    f"{name}.fill: found '{str(key)[:60]}', expected a key of an opponent in the pool{hint}"
                )
        problem = _problem_of(probabilities, self.places)
        if problem:
            raise UserError(f"{name}.fill: {problem}")


def _problem_of(probabilities: Any, places: int) -> str:
    if not isinstance(probabilities, Sequence):
        return f"found probabilities as {a(probabilities)}, expected a tuple of {places} numbers"
    if len(probabilities) != places:
        return f"found {len(probabilities)} probabilities, expected {places}, one for each place"
    for value in probabilities:
        if not isinstance(value, int | float | np.floating) or not 0 <= value <= 1 + 1e-6:
            return f"found probability {str(value)[:40]}, expected a number from 0 to 1; divide weights by their sum"
    total = math.fsum(probabilities)
    if abs(total - 1) > 1e-6:
        return f"found probabilities that add up to {total:g}, expected 1; divide them by their sum"
    return ""


# Parts of which a matchmaker is made


def learners(pool: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Candidates of the learner's group, the newest last."""
    return tuple(candidate for candidate in pool if candidate.group == pool[-1].group)


def opponents(pool: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """The opponents among the candidates: those of other groups or, if all are of one group, all."""
    if not pool:
        raise UserError("found an empty pool, expected at least the learner's newest policy")
    others = tuple(candidate for candidate in pool if candidate.group != pool[-1].group)
    return others or tuple(pool)


def share_out(
    rng: np.random.Generator, places: int, weights: Mapping[str, float], latest: str = "", latest_share: float = 0.0
) -> Matches:
    """Places for candidates by weight; a share of the games is against `latest`, whatever its weight.

    If more candidates have a weight than there are places, one for each place is drawn by weight, without replacement,
    and their probabilities follow their weights. `latest` is not drawn: it has a place and keeps its probability.
    Only a single place is drawn among all. If there are fewer candidates, places repeat and divide the probability.
    """
    total = math.fsum(weights.values())
    if not math.isfinite(total) or any(weight < 0 for weight in weights.values()) or not (total or latest):
        raise ValueError(f"found weights {weights}, expected some that are positive, and none that is negative or NaN")
    if latest_share and not latest:
        raise ValueError(f"found latest_share={latest_share} without latest, expected a key")
    share = latest_share if total else 1.0
    chances = {key: (1 - share) * (weight / total) for key, weight in weights.items() if total}
    chances = {key: chance for key, chance in chances.items() if chance > NEGLIGIBLE}
    if share > 0:
        chances[latest] = chances.pop(latest, 0.0) + share  # the newest last
    if len(chances) > places:
        chances = _drawn(rng, places, chances, latest if share > 0 and places > 1 else None)
    keys = list(chances)
    filled = [keys[place % len(keys)] for place in range(places)]
    counts, total = Counter(filled), math.fsum(chances.values())
    return Matches(tuple(filled), tuple(chances[key] / total / counts[key] for key in filled))


def _drawn(rng: np.random.Generator, places: int, chances: dict[str, float], certain: str | None) -> dict[str, float]:
    """Draws as many of `chances` as there are places, without replacement, by Gumbel's trick; in the same order, and
    normalised."""
    keys = [key for key in chances if key != certain]
    noisy = np.log([chances[key] for key in keys]) + rng.gumbel(size=len(keys))
    count = places - (certain is not None)
    chosen = sorted(int(index) for index in np.argsort(-noisy, kind="stable")[:count])
    rest = 1.0 - (chances[certain] if certain is not None else 0.0)
    total = math.fsum(chances[keys[index]] for index in chosen)
    found = {keys[index]: rest * chances[keys[index]] / total for index in chosen}
    return found if certain is None else {**found, certain: chances[certain]}


def evenly_spaced(pool: Sequence[Candidate], size: int) -> tuple[Candidate, ...]:
    """At most `size` candidates, beside the pinned ones: the newest, the oldest, and some evenly spaced between them.

    Candidates whose neighbours are nearest to each other in environment steps are dropped first, the oldest of these
    before others. So a pool that grows by one at a time stays about evenly spaced.
    """
    kept = [candidate for candidate in pool if not candidate.pinned]
    while len(kept) > size:
        gaps = [kept[i + 1].env_steps - kept[i - 1].env_steps for i in range(1, len(kept) - 1)]
        del kept[1 + int(np.argmin(gaps)) if gaps and size > 1 else 0]
    stay = {candidate.key for candidate in kept}
    return tuple(candidate for candidate in pool if candidate.pinned or candidate.key in stay)


def keep_places(before: Matches | None, after: Matches) -> Matches:
    """The same matches in another order: policies that had a place keep it, so that fewer are exchanged."""
    if before is None or len(before.places) != len(after.places):
        return after
    left = list(range(len(after.places)))
    order: list[int | None] = []
    for key in before.places:
        index = next((index for index in left if after.places[index] == key), None)
        order.append(index)
        if index is not None:
            left.remove(index)
    full = [left.pop(0) if index is None else index for index in order]
    return Matches(tuple(after.places[i] for i in full), tuple(after.probabilities[i] for i in full))


# The matchmakers of the field


@dataclass(frozen=True)
class Latest(Matchmaker):
    """Naive self-play: every place is the newest policy."""

    def fill(self, rng: np.random.Generator, round: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> Matches:
        del round, payoffs
        return share_out(rng, self.places, {}, opponents(pool)[-1].key, 1.0)


@dataclass(frozen=True)
class UniformPast(Matchmaker):
    """Fictitious self-play: all past policies with equal probability, and a share of games against the newest."""

    latest_share: float = 0.5
    """The part of the games that is against the newest policy; all of them while there is no past one."""

    def fill(self, rng: np.random.Generator, round: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> Matches:
        del round, payoffs
        *past, latest = opponents(pool)
        weights = {candidate.key: 1.0 for candidate in past}
        return share_out(rng, self.places, weights, latest.key, self.latest_share)


@dataclass(frozen=True)
class PFSP(Matchmaker):
    """Prioritised fictitious self-play (Vinyals et al. 2019): past policies by how hard they are to beat.

    With p, the learner's score against a policy, the weight of `hard` is (1 - p)^2 and that of `even` is p (1 - p). The
    score is that of the newest version of the learner that has played it, and 0.5 if none has. If no policy has a
    weight, all past ones are played alike.
    """

    weighting: str = "hard"
    """`hard` prefers policies that the learner loses to, `even` those that it wins about half of its games against."""
    latest_share: float = 0.5
    """The part of the games that is against the newest policy; all of them while there is no past one."""
    payoff: str = "score"
    """The definition of p. `score`: the share of games won. `return`, for games without winners: 0 against the past
    policy against which the mean return is highest, and 1 against the one against which it is lowest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting not in ("hard", "even"):
            raise UserError(f"weighting='{self.weighting}': found '{self.weighting}', expected 'hard' or 'even'")
        _check_payoff(self.payoff)

    def fill(self, rng: np.random.Generator, round: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> Matches:
        del round
        *past, latest = opponents(pool)
        if self.payoff == "return":
            scores = ranks_by_return(payoffs, pool, past)
        else:
            scores = {candidate.key: score_of(payoffs, pool, candidate) for candidate in past}
        weights = {key: self._weight(score) for key, score in scores.items()}
        if not any(weights.values()):
            weights = dict.fromkeys(weights, 1.0)
        return share_out(rng, self.places, weights, latest.key, self.latest_share)

    def _weight(self, score: float) -> float:
        return (1 - score) ** 2 if self.weighting == "hard" else score * (1 - score)


def score_of(payoffs: PayoffTable, pool: Sequence[Candidate], opponent: Candidate) -> float:
    """The score of the learner against a candidate; 0.5 where there are no games.

    The newest version may have no games yet: then it is that of the newest one that has. In the learner's own group,
    only versions later than the candidate count.
    """
    version = _newest_that_met(payoffs, pool, opponent)
    return 0.5 if version is None else payoffs.score(version.key, opponent.key)


def ranks_by_return(payoffs: PayoffTable, pool: Sequence[Candidate], past: Sequence[Candidate]) -> dict[str, float]:
    """By key: 0 for the policy with the highest mean return against the learner, 1 for the lowest, 0.5 if unknown."""
    versions = {each.key: _newest_that_met(payoffs, pool, each) for each in past}
    returns = {key: payoffs.mean_return(key, own.key) for key, own in versions.items() if own is not None}
    returns = {key: value for key, value in returns.items() if math.isfinite(value)}
    low, high = min(returns.values(), default=0.0), max(returns.values(), default=0.0)
    return {key: (high - returns[key]) / (high - low) if key in returns and high > low else 0.5 for key in versions}


def _newest_that_met(payoffs: PayoffTable, pool: Sequence[Candidate], opponent: Candidate) -> Candidate | None:
    """The learner's newest version that has played a candidate."""
    for candidate in reversed(learners(pool)):
        if candidate.key == opponent.key:
            break
        if not candidate.pinned and payoffs.games(candidate.key, opponent.key):
            return candidate
    return None


def _check_payoff(payoff: str) -> None:
    if payoff not in ("score", "return"):
        raise UserError(f"payoff='{payoff}': found '{payoff}', expected 'score' or 'return'")


@dataclass(frozen=True)
class Fixed(Matchmaker):
    """Named policies with equal probability: stored ones of other runs, or snapshots that are in the pool."""

    keys: tuple[str, ...] = ()
    latest_share: float = 0.0
    """The part of the games that is against the newest policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "keys", tuple(self.keys) if not isinstance(self.keys, str) else (self.keys,))
        if not self.keys or not all(isinstance(key, str) and key for key in self.keys):
            raise UserError(f"keys={self.keys}: found no key, expected at least one, such as 'player:12'")
        if len(set(self.keys)) < len(self.keys):
            raise UserError(f"keys={self.keys}: found a key twice, expected each once")

    def fill(self, rng: np.random.Generator, round: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> Matches:
        del round, payoffs
        known = opponents(pool)
        for key in self.keys:
            if key not in (candidate.key for candidate in known):
                hint = nearest(key, [candidate.key for candidate in known])
                raise UserError(f"keys={self.keys}: found no policy '{key}' in the pool{hint}")
        weights = dict.fromkeys(self.keys, 1.0)
        return share_out(rng, self.places, weights, known[-1].key, self.latest_share)


@dataclass(frozen=True)
class Psro(Matchmaker):
    """Policy-space response oracles (Lanctot et al. 2017): opponents by a meta-strategy over the payoff table.

    The learner is the oracle, which trains a response to the mixture. At each decision it plays all candidates. Pairs
    without games, as in games of two roles, count as even.
    """

    games: int = field(default=100, kw_only=True)
    """The number of games against each candidate at a decision; 0 for the results of training, which leave pairs out.
    """
    solver: str = "nash"
    """`nash`, `prd` (projected replicator dynamics), `alpharank` (needs OpenSpiel) or `uniform`."""
    latest_share: float = 0.0
    """The share of the games that is played against the newest policy, in addition to its share of the meta-strategy.
    """
    payoff: str = "score"
    """The payoff of the meta-game: `score`, wins and losses; or `return`, the mean return of a zero-sum game."""

    def __post_init__(self) -> None:
        super().__post_init__()
        meta_games.check_solver(self.solver)
        _check_payoff(self.payoff)

    def fill(self, rng: np.random.Generator, round: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> Matches:
        del round
        columns, rows = [c.key for c in opponents(pool)], [c.key for c in learners(pool)]
        if self.payoff == "return":
            advantages = payoffs.zero_sum_returns(rows, opponents=columns)  # [N, M]
        else:
            advantages = 2 * payoffs.matrix(rows, opponents=columns) - 1
        mixture = meta_games.solve(self.solver, np.nan_to_num(advantages)).column
        weights = dict(zip(columns, mixture.tolist(), strict=True))
        return share_out(rng, self.places, weights, columns[-1], self.latest_share)
