"""A league: main agents, and exploiters that look for what is wrong with them (AlphaStar; Vinyals et al. 2019).

    league = League(every=200_000, league_exploiters=1)
    league.groups  # ("main", "main-exploiter", "league-exploiter")

A league is a matchmaker of several learners of a symmetric game. Every learner has the same share of the environments,
and a pool of opponents that is filled from the past of all of them.

| learner | plays against | begins again |
|---|---|---|
| main agent | the newest main agent, the past of all, and the past main agents and exploiters that beat it | never |
| main exploiter | the newest main agent, or its past while the exploiter hardly wins | when it beats the main agents |
| league exploiter | the past of all | when it beats all that it has played |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from runnel.errors import UserError
from runnel.matchmaking import Candidate, Matches, Matchmaker, learners, score_of, share_out
from runnel.payoffs import PayoffTable

MAIN, MAIN_EXPLOITER, LEAGUE_EXPLOITER = "main", "main-exploiter", "league-exploiter"

LEAST_GAMES: Final = 20
"""The fewest games after which a win rate counts as evidence that an exploiter has beaten its opponent."""

MOST: Final = 16
"""The largest number of learners of a kind."""


@dataclass(frozen=True)
class League(Matchmaker):
    """A league of main agents and exploiters. The defaults are AlphaStar's for one race."""

    main_agents: int = 1
    main_exploiters: int = 1
    league_exploiters: int = 2
    self_play: float = 0.35
    """The share of a main agent's games that is against the newest main agent."""
    against_past: float = 0.5
    """The share of games against past policies of all learners, by how hard they are to beat: (1 - p)^2. The rest is
    against past main agents and exploiters that it scores less than `forgotten` against; against the newest main agent
    if there are none."""
    forgotten: float = 0.3
    too_hard: float = 0.2
    """A main exploiter that scores less against the newest main agent plays its past, by p (1 - p), until it is better.
    """
    beaten: float = 0.7
    """An exploiter whose scores against all opponents it has played exceed this is reset."""
    patience: int = 20
    """The number of decisions after which an exploiter is reset in any case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("main_agents", "main_exploiters", "league_exploiters", "patience"):
            value, least = getattr(self, name), int(name in ("main_agents", "patience"))
            if type(value) is not int or value < least or (name != "patience" and value > MOST):
                limit = f"of at least {least}" if name == "patience" else f"from {least} to {MOST}"
                raise UserError(f"{name}={str(value)[:40]}: found {str(value)[:40]}, expected a whole number {limit}")
        for name in ("self_play", "against_past", "forgotten", "too_hard", "beaten"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise UserError(f"{name}={str(value)[:40]}: found {str(value)[:40]}, expected a number from 0 to 1")
        if self.self_play + self.against_past > 1:
            total = self.self_play + self.against_past
            raise UserError(f"self_play + against_past: found {total:g}, expected at most 1")

    @property
    def groups(self) -> tuple[str, ...]:
        counts = {
            MAIN: self.main_agents, MAIN_EXPLOITER: self.main_exploiters, LEAGUE_EXPLOITER: self.league_exploiters,
        }  # fmt: skip
        return tuple(name for kind, count in counts.items() for name in _names(kind, count))

    def fill(self, rng: np.random.Generator, round: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> Matches:
        del round
        newest = {candidate.group: candidate for candidate in pool}  # the last one of each group
        past = [candidate for candidate in pool if newest[candidate.group] is not candidate]
        scores = {candidate.key: score_of(payoffs, pool, candidate) for candidate in pool}
        mains = [candidate for group, candidate in newest.items() if kind_of(group) == MAIN]
        target = mains[int(rng.integers(len(mains)))]
        kind = kind_of(pool[-1].group)
        weights, share = dict[str, float](), 0.0
        if kind == MAIN:
            weights, share = self._of_main(past, scores), self._newest_share(past, scores)
        elif kind == LEAGUE_EXPLOITER:
            weights = _weights(past, scores, _hard)
        elif self._too_hard(payoffs, pool, target):
            weights = _weights([each for each in past if each.group == target.group], scores, _even)
        return share_out(rng, self.places, weights, target.key, share if weights else 1.0)

    def starts_over(self, rounds: int, payoffs: PayoffTable, pool: Sequence[Candidate]) -> bool:
        """Exploiters are reset when they have beaten all opponents since the last decision, or after `patience`
        decisions."""
        newest = pool[-1]
        if kind_of(newest.group) == MAIN:
            return False
        games = {each.key: payoffs.games(newest.key, each.key) for each in pool}
        scores = [payoffs.score(newest.key, key) for key, count in games.items() if count]
        beaten = sum(games.values()) >= LEAST_GAMES and min(scores) > self.beaten
        return beaten or rounds >= self.patience

    def _of_main(self, past: Sequence[Candidate], scores: Mapping[str, float]) -> dict[str, float]:
        """The weights of past policies, which add up to their share of the games."""
        found = {key: self.against_past * weight for key, weight in _weights(past, scores, _hard).items()}
        for key, weight in _weights(self._forgotten(past, scores), scores, _hard).items():
            found[key] += (1 - self.self_play - self.against_past) * weight
        return found

    def _newest_share(self, past: Sequence[Candidate], scores: Mapping[str, float]) -> float:
        return self.self_play if self._forgotten(past, scores) else 1 - self.against_past

    def _too_hard(self, payoffs: PayoffTable, pool: Sequence[Candidate], target: Candidate) -> bool:
        """Whether a main exploiter rarely wins against the newest version of the target that it has played."""
        versions = [each for each in pool if each.group == target.group]
        met = [each for each in versions if any(payoffs.games(own.key, each.key) for own in learners(pool))]
        return bool(met) and score_of(payoffs, pool, met[-1]) < self.too_hard

    def _forgotten(self, past: Sequence[Candidate], scores: Mapping[str, float]) -> list[Candidate]:
        known = [candidate for candidate in past if kind_of(candidate.group) in (MAIN, MAIN_EXPLOITER)]
        return [candidate for candidate in known if scores[candidate.key] < self.forgotten]


def _names(kind: str, count: int) -> list[str]:
    return [kind] if count == 1 else [f"{kind}-{number}" for number in range(1, count + 1)]


def kind_of(group: str) -> str:
    """The role of a group's learner in a league, from the group's name without its number."""
    return group.rstrip("0123456789").rstrip("-")


def _weights(
    candidates: Sequence[Candidate], scores: Mapping[str, float], weight: Callable[[float], float]
) -> dict[str, float]:
    """Weights by key, normalised to a sum of 1; uniform if all are 0."""
    found = {candidate.key: weight(scores[candidate.key]) for candidate in candidates}
    total = sum(found.values())
    return {key: each / total if total else 1 / len(found) for key, each in found.items()}


def _hard(score: float) -> float:
    return (1 - score) ** 2


def _even(score: float) -> float:
    return score * (1 - score)
