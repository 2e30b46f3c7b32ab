"""What a distribution writes: which nodes form which fragment, how often, on what, and how edges wait."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from runnel.deprecated import accepts_old_fields
from runnel.errors import UserError
from runnel.planning.synchronisation import Barrier, BoundedStaleness, Synchronisation, is_whole

if TYPE_CHECKING:
    from runnel.graph.nodes import Graph

__all__ = ["REST", "Barrier", "BoundedStaleness", "Distribution", "Fragment", "Layout", "Synchronisation"]

REST = "*"
"""Among a fragment's nodes: every node that no fragment names."""

Devices = Literal["cpu", "one", "all"]


@accepts_old_fields
@dataclass(frozen=True)
class Fragment:
    """Nodes that run as one program, and how often.

    `nodes` names kinds (`act`), nodes (`hunters/act`), groups (`hunters/*`) or `REST`. A `compiled` fragment is
    one XLA program or an error, and the whole plan in one worker; others are loops of a process around compiled parts.
    A worker whose environments ask others for their actions holds them in `env_splits` blocks: while one block waits,
    another steps.

    `deadline_us`: in an asynchronous run, replicas that act for others wait this long after a request for those of all
    other blocks. None: they act at once for the blocks that have asked. `prefetch`: in an asynchronous run, a learner
    on a GPU copies the next unrolls to it during the update.

    Replicas that step environments share them; replicas that learn are one program over all their devices; other
    replicas take whole iterations in rotation.
    """

    name: str
    nodes: tuple[str, ...]
    replicas: int = 1
    devices: Devices = "cpu"
    compiled: bool = False
    env_splits: int = 1
    deadline_us: int | None = None
    prefetch: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.nodes, tuple | list) or not all(isinstance(node, str) for node in self.nodes):
            raise UserError(f"fragment {self.name}: found nodes={self.nodes!r}, expected a tuple of names: ('act',)")
        if not isinstance(self.replicas, int):
            raise UserError(f"fragment {self.name}: found replicas={self.replicas!r}, expected a whole number")
        if self.devices not in get_args(Devices):
            wanted = ", ".join(map(repr, get_args(Devices)))
            raise UserError(f"fragment {self.name}: found devices={self.devices!r}, expected one of {wanted}")
        if not is_whole(self.env_splits, 1):
            raise UserError(
                f"fragment {self.name}: found env_splits={self.env_splits!r}, expected a whole number, 1 or more"
            )
        if self.deadline_us is not None and not is_whole(self.deadline_us, 0):
            raise UserError(
                f"fragment {self.name}: found deadline_us={self.deadline_us!r}, expected a whole number of "
                "microseconds, or None"
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


class Distribution(abc.ABC):
    """Base of all distributions: a frozen dataclass of numbers that returns a layout."""

    needs: ClassVar[tuple[str, ...]] = ()
    """Kinds of node without which it makes no sense."""

    default_for: ClassVar[Literal["host", "jax"] | None] = None
    """The environments that are trained under it when no distribution is named."""

    one_process: ClassVar[bool] = False
    """Whether it never needs workers: nothing is prepared for them, and it takes what no other process can import."""

    @abc.abstractmethod
    def layout(self, graph: Graph) -> Layout: ...
