"""What a distribution writes: which nodes form which fragment, how often, on what, and how edges wait."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from runnel.deprecated import accepts_old_fields
from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.graph.nodes import Graph

REST = "*"
"""Among a fragment's nodes: every node that no fragment names."""

Devices = Literal["cpu", "one", "all"]


class Synchronisation(abc.ABC):
    """How the ends of a cut edge wait for each other. Others read these properties and do not ask for the class."""

    @property
    @abc.abstractmethod
    def slack(self) -> int:
        """By how many updates the source may run ahead of the target. 0: both wait for each other."""

    @property
    def asynchronous(self) -> bool:
        """Whether the source may run ahead at all, as far as the algorithm tolerates it."""
        return True

    @property
    def every_step(self) -> bool:
        """Whether environments and what acts for them wait for each other at every step."""
        return False


@dataclass(frozen=True)
class Barrier(Synchronisation):
    """Both ends wait for each other, every step or every unroll."""

    every: Literal["step", "unroll"] = "unroll"

    def __post_init__(self) -> None:
        if self.every not in ("step", "unroll"):
            raise UserError(f"found Barrier(every={self.every!r}), expected 'step' or 'unroll'")

    @property
    def slack(self) -> int:
        return 0

    @property
    def asynchronous(self) -> bool:
        return False

    @property
    def every_step(self) -> bool:
        return self.every == "step"

    def __str__(self) -> str:
        return f"barrier every {self.every}"


@dataclass(frozen=True)
class BoundedStaleness(Synchronisation):
    """The source runs ahead of the target, by at most `max_staleness` updates."""

    max_staleness: int

    def __post_init__(self) -> None:
        if not _whole(self.max_staleness, 0):
            raise UserError(
                f"found BoundedStaleness({self.max_staleness!r}), expected a whole number of updates, 0 or more"
            )

    @property
    def slack(self) -> int:
        return self.max_staleness

    def __str__(self) -> str:
        return f"asynchronous, staleness at most {self.max_staleness}"


@accepts_old_fields
@dataclass(frozen=True)
class Fragment:
    """Nodes that run as one program, and how often.

    `nodes` names kinds (`act`), nodes (`hunters/act`), groups (`hunters/*`) or `REST`. A `compiled` fragment is
    one XLA program or an error; others are loops of a process around compiled parts. A worker whose environments
    ask others for their actions holds them in `env_splits` blocks: while one block waits, another steps.

    Replicas that play share the environments; replicas that learn are one program over all their devices; other
    replicas take whole iterations in turn.
    """

    name: str
    nodes: tuple[str, ...]
    replicas: int = 1
    devices: Devices = "cpu"
    compiled: bool = False
    env_splits: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, tuple | list) or not all(isinstance(node, str) for node in self.nodes):
            raise UserError(f"fragment {self.name}: found nodes={self.nodes!r}, wanted a tuple of names: ('act',)")
        if not isinstance(self.replicas, int):
            raise UserError(f"fragment {self.name}: found replicas={self.replicas!r}, wanted a whole number")
        if self.devices not in get_args(Devices):
            wanted = ", ".join(map(repr, get_args(Devices)))
            raise UserError(f"fragment {self.name}: found devices={self.devices!r}, wanted one of {wanted}")
        if not _whole(self.env_splits, 1):
            raise UserError(
                f"fragment {self.name}: found env_splits={self.env_splits!r}, expected a whole number, 1 or more"
            )


Edges = Mapping[tuple[str, str], Synchronisation]
"""The synchronisation of single edges, by the nodes at their ends, each named as in `Fragment.nodes`."""


@dataclass(frozen=True)
class Layout:
    """What a distribution makes of a graph.

    `edges` says how single cut edges synchronise; `synchronisation` holds for the rest. The staleness that a learner
    may see is the sum of the slacks along the cycle from its actors to it and back. The rest of a cycle counts once.
    """

    fragments: tuple[Fragment, ...]
    synchronisation: Synchronisation = field(default_factory=Barrier)
    edges: Edges = field(default_factory=dict)

    @property
    def asynchronous(self) -> bool:
        """Whether any edge may be asynchronous."""
        return any(each.asynchronous for each in (self.synchronisation, *self.edges.values()))


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


class Distribution(abc.ABC):
    """Base of all distributions: a frozen dataclass of numbers that gives a layout."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Kinds of node without which it makes no sense."""

    default_for: ClassVar[Literal["host", "jax"] | None] = None
    """The environments that are trained under it when no distribution is named."""

    one_process: ClassVar[bool] = False
    """Whether it never needs workers: nothing is prepared for them, and it takes what no other process can import."""

    @abc.abstractmethod
    def layout(self, graph: Graph) -> Layout: ...
