"""The kinds of node, and what each means to planning, scheduling, supervision and checkpoints: one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["environment", "act", "rollout", "map", "replay", "learn", "gradient", "apply"]

LearnerValue = Literal["params", "state", "version"]
"""What a node reads of its group's learner: the parameters, the whole state, or only which version is the newest."""


@dataclass(frozen=True)
class KindTraits:
    """What is true of every node of a kind."""

    output: str = "value"
    """The name of what its edges carry."""

    trains: bool = True
    """It runs after the rollout, once per iteration or per batch. Others run once per environment step."""

    learns: bool = False
    """It changes its group's state: its fragment publishes parameters, and several replicas of it are one program."""

    reads: LearnerValue | None = None
    """What it reads of its group's learner where that is in another fragment."""

    has_state: bool = False
    """It has a state that only a checkpoint can restore: a worker that has it cannot be replaced alone."""


KINDS: dict[NodeKind, KindTraits] = {
    "environment": KindTraits("step", trains=False),
    "act": KindTraits("action", trains=False, reads="params"),
    "rollout": KindTraits("trajectory", trains=False, reads="version"),
    "map": KindTraits(reads="params"),  # only if its function asks for `params` or `key`: see `Node.reads`
    "replay": KindTraits("batch", has_state=True),
    "learn": KindTraits(learns=True, has_state=True),
    "gradient": KindTraits("gradients", reads="state"),
    "apply": KindTraits(learns=True, has_state=True),
}
