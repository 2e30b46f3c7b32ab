"""A matchmaker: the newest policy plays half of the games, and the one that beats it most often the other half."""

from dataclasses import dataclass

from runnel import Matches, Matchmaker


@dataclass(frozen=True)
class Nemesis(Matchmaker):
    places: int = 2

    def fill(self, rng, round, payoffs, pool):
        newest = pool[-1].key
        scores = {past.key: payoffs.score(past.key, newest) for past in pool[:-1]}
        known = {key: score for key, score in scores.items() if score == score}  # NaN where they have not met
        nemesis = max(known, key=known.__getitem__, default=newest)
        return Matches((newest, nemesis), (0.5, 0.5))
