"""The stages of emergent behaviour as conditions on an environment's metrics: data, fixed before any long training.

A stage is reached when all its conditions hold for the means over the newest episodes, in `metrics.jsonl` under
`env/NAME`, and every earlier stage has been reached before. Agents that act at random reach none in the quadrant game.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Condition:
    """A bound on one metric of the environment."""

    metric: str
    bound: Literal["at least", "at most"]
    value: float

    def holds(self, metrics: Mapping[str, float]) -> bool:
        value = metrics[self.metric]
        return value >= self.value if self.bound == "at least" else value <= self.value


@dataclass(frozen=True)
class Stage:
    """One behaviour, and the conditions by which it is recognised."""

    name: str
    summary: str
    conditions: tuple[Condition, ...]

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether all conditions hold; `metrics` by their names, without `env/`."""
        return all(condition.holds(metrics) for condition in self.conditions)


STAGES: Final = (
    Stage("running", "seekers look for hiders and follow them", (Condition("seen", "at least", 0.6),)),
    Stage(
        "shelter",
        "hiders move boxes in the preparation, lock them, and are seen less",
        (
            Condition("max_box_move_prep", "at least", 0.5),
            Condition("num_box_lock_prep", "at least", 0.8),
            Condition("seen", "at most", 0.4),
        ),
    ),
    Stage(
        "ramp use",
        "seekers take ramps to walls and boxes, climb, and see hiders in their shelters",
        (
            Condition("seeker_climbed", "at least", 0.4),
            Condition("max_ramp_move", "at least", 0.5),
            Condition("seen", "at least", 0.4),
        ),
    ),
    Stage(
        "ramp defence",
        "hiders lock the ramps in the preparation, and are seen less again",
        (Condition("num_ramp_lock_prep", "at least", 0.7), Condition("seen", "at most", 0.35)),
    ),
)
"""In the order in which they emerge."""


def reached(history: Iterable[Mapping[str, float]]) -> list[int]:
    """For each stage that was reached, in order, the number of the first entry of `history` at which it was.

    Entries are metrics by name, without `env/`, oldest first. One entry can reach one stage only.
    """
    found: list[int] = []
    for number, metrics in enumerate(history):
        if len(found) < len(STAGES) and STAGES[len(found)].holds(metrics):
            found.append(number)
    return found
