"""The kinds of node, and what each means to planning, scheduling, supervision, errors and pictures: one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NodeKind = Literal["environment", "act", "rollout", "map", "replay", "learn", "gradient", "apply"]

LearnerValue = Literal["params", "state", "version"]
"""What a node reads of its group's learner: the parameters, the whole state, or only which version is the newest."""

StreamKind = Literal["unroll", "request", "reply", "value"]
"""What kind of stream carries the values of a node to another worker."""

VALUE = "value"
"""What edges carry whose values have no name of their own."""


@dataclass(frozen=True)
class KindTraits:
    """What is true of every node of a kind."""

    output: str = VALUE
    """The name of what its edges carry, also in errors. A `VALUE` is called as its node."""

    trains: bool = True
    """It runs after the rollout, once per iteration or per batch. Others run once per environment step."""

    learns: bool = False
    """It changes its group's state: its fragment publishes parameters, and several replicas of it are one program."""

    takes_samples: bool = False
    """It computes gradients from samples, which several learners can share. With `learns`, it also applies them."""

    draws_batches: bool = False
    """An iteration inserts into it, and the nodes after it run once for each batch that it then draws."""

    feeds_one_learner: bool = False
    """Outside of the learner's fragment it makes one value, which several learners cannot share."""

    reads: LearnerValue | None = None
    """What it reads of its group's learner where that is in another fragment."""

    reads_by_name: bool = False
    """It reads only if its function asks for `params` or `key` by name."""

    has_state: bool = False
    """It has a state that only a checkpoint can restore: a worker that has it cannot be replaced alone."""

    stream: StreamKind = "value"
    """The kind of stream that carries its values to other workers."""

    colour: tuple[str, str] = ("#eeeeee", "#666666")
    """Of its box in the picture of a plan: a fill and its ink."""


KINDS: dict[NodeKind, KindTraits] = {
    "environment": KindTraits("step", trains=False, stream="request", colour=("#e3f4e8", "#2f8f4e")),
    "act": KindTraits("action", trains=False, reads="params", stream="reply", colour=("#e2eefb", "#2b6cb0")),
    "rollout": KindTraits("trajectory", trains=False, reads="version", stream="unroll", colour=("#e0f4f5", "#1d7f88")),
    "map": KindTraits(reads="params", reads_by_name=True, feeds_one_learner=True),
    "replay": KindTraits(
        "batch", draws_batches=True, feeds_one_learner=True, has_state=True, colour=("#efe7fa", "#7447b5")
    ),
    "learn": KindTraits(learns=True, takes_samples=True, has_state=True, colour=("#fdecd9", "#b9651b")),
    "gradient": KindTraits("gradients", takes_samples=True, reads="state", colour=("#fdecd9", "#b9651b")),
    "apply": KindTraits(learns=True, has_state=True, colour=("#fde3dc", "#b5432a")),
}
