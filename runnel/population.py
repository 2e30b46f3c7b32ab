"""Rules that compare and copy members of a population while they train.

    runnel.train_population("ppo", "gymnax:CartPole-v1", members=16, steps=1_000_000,
                            rule=PBT(every=50_000, perturb={"learning_rate": LogUniform(1e-5, 1e-1)}))

A rule is data with one pure function, `decide`. It knows nothing of processes, devices or files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from runnel.config.search_space import LogUniform, Uniform
from runnel.errors import UserError

FloatRange = Uniform | LogUniform

Settings = Mapping[str, float]
"""Settings of an algorithm that a rule chooses for a member, by name."""


class Decision(NamedTuple):
    """The learner state and settings with which a member continues."""

    parent: int  # the member whose learner state it gets; its own number where it keeps its own
    settings: Settings = {}  # noqa: RUF012  (never changed) that change, from now on


class PopulationRule:
    """Decides which members become copies of others, and with which settings.

    A rule is a frozen dataclass that extends this class. It has `every`, the environment steps of each member between
    two decisions, and `decide`. The rest has defaults.
    """

    every: int

    objective: str = "return"
    """The score of a member: `return`, `length`, `return/GROUP` or `env/NAME` of the newest evaluation or, without
    evaluations, of the newest episodes; `min:NAME` if lower is better."""

    @property
    def varying(self) -> tuple[str, ...]:
        """The settings that may differ between members: arguments of the compiled program from the beginning."""
        return ()

    def initial(self, rng: np.random.Generator, members: int) -> list[Settings]:
        """The initial settings of each member that differ from those of the run."""
        del rng
        return [{}] * members

    def decide(
        self, rng: np.random.Generator, round: int, scores: np.ndarray, settings: Sequence[Settings]
    ) -> Sequence[Decision]:
        """A decision for each member.

        `rng` is the same for the same seed and round. `round`: 1, 2 and so on. `scores`: [M], higher is better; minus
        infinity for a member that has failed, or has no score yet. `settings`: [M], the current values of `varying`.

        A member whose state is copied keeps its own state: its `parent` is itself.
        """
        raise NotImplementedError


def random_numbers(seed: int, round: int, *which: int) -> np.random.Generator:
    """The random numbers of a decision; those of round 0 choose initial settings.

    `which`: distinguishes several decisions of a round.
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, round, *which])))


# The rule of the field


@dataclass(frozen=True)
class PBT(PopulationRule):
    """Population-based training (Jaderberg et al. 2017), with truncation selection.

    The worst members become copies of the best, chosen at random, with other settings: those in `perturb` are
    multiplied by one of `factors` and kept within their range, and those in `resample` are drawn from their range
    again. Every member begins with settings drawn from all ranges. A member that has failed is among the worst,
    however many there are.
    """

    every: int = 100_000
    """Environment steps of each member between two decisions."""
    quantile: float = 0.25
    """The fraction of members that counts as the worst, and as the best; at least one member."""
    perturb: dict[str, FloatRange] = field(default_factory=dict)
    """Settings that are multiplied."""
    resample: dict[str, FloatRange] = field(default_factory=dict)
    """Settings that are sampled independently of their old values."""
    factors: tuple[float, ...] = (0.8, 1.25)
    """One of these is drawn for each setting in `perturb`."""
    objective: str = "return"
    """The score of a member, see `PopulationRule.objective`."""

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 0.5:
            raise UserError(f"quantile={self.quantile}: found {self.quantile}, expected more than 0 and at most 0.5")
        if not self.factors or not all(math.isfinite(factor) and factor > 0 for factor in self.factors):
            raise UserError(f"factors={self.factors}: expected positive numbers")
        both = sorted(set(self.perturb) & set(self.resample))
        if both:
            raise UserError(f"found {', '.join(both)} in perturb= and resample=, expected each in one of them")
        for name, range_ in {**self.perturb, **self.resample}.items():
            if not isinstance(range_, FloatRange):
                raise UserError(f"{name}: found {range_!r}, expected Uniform(low, high) or LogUniform(low, high)")
            least = 0.0 if isinstance(range_, LogUniform) else -math.inf
            if not least < range_.low <= range_.high < math.inf:
                positive = " positive" if least == 0.0 else ""
                raise UserError(f"{name}: found {range_!r}, expected two{positive} numbers, the lower one first")

    @property
    def varying(self) -> tuple[str, ...]:
        return (*self.perturb, *self.resample)

    def initial(self, rng: np.random.Generator, members: int) -> list[Settings]:
        ranges = {**self.perturb, **self.resample}
        return [{name: ranges[name].sample(rng) for name in ranges} for _ in range(members)]

    def decide(
        self, rng: np.random.Generator, round: int, scores: np.ndarray, settings: Sequence[Settings]
    ) -> list[Decision]:
        del round
        decisions = [Decision(member) for member in range(len(scores))]
        count = max(1, int(self.quantile * len(scores)))
        ranked = [int(member) for member in np.argsort(scores, kind="stable")]
        best = [member for member in ranked[-count:] if np.isfinite(scores[member])]
        worst = [m for place, m in enumerate(ranked) if place < count or not np.isfinite(scores[m])]
        for member in worst if best else []:
            if member not in best:
                parent = best[int(rng.integers(len(best)))]
                decisions[member] = Decision(parent, self._explored(rng, settings[parent]))
        return decisions

    def _explored(self, rng: np.random.Generator, settings: Settings) -> Settings:
        found = {}
        for name, range_ in self.perturb.items():
            value = settings[name] * self.factors[int(rng.integers(len(self.factors)))]
            found[name] = float(min(max(value, range_.low), range_.high))
        return {**found, **{name: range_.sample(rng) for name, range_ in self.resample.items()}}
