"""A population rule: members are paired at random, and the worse of each pair becomes a copy of the better."""

from dataclasses import dataclass

from runnel import Decision, PopulationRule


@dataclass(frozen=True)
class Tournament(PopulationRule):
    every: int = 20_000
    spread: float = 1.5

    @property
    def varying(self):
        return ("learning_rate",)

    def decide(self, rng, round, scores, settings):
        decisions = [Decision(member) for member in range(len(scores))]
        order = rng.permutation(len(scores)).tolist()
        for a, b in zip(order[::2], order[1::2], strict=False):
            winner, loser = (a, b) if scores[a] >= scores[b] else (b, a)
            rate = settings[winner]["learning_rate"] * self.spread ** rng.uniform(-1, 1)
            decisions[loser] = Decision(winner, {"learning_rate": rate})
        return decisions
