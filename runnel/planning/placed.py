"""What a plan consists of: fragments in their places, and the edges cut between them. Data that needs no JAX.

`cuts.py` and `plan.py` make it; a program that only shows plans, such as `runnel dash`, reads it from a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from runnel.deprecated import accepts_old_fields
from runnel.graph.kinds import StreamKind

Pattern = Literal["send", "gather", "scatter", "route", "broadcast", "all-reduce"]

ChannelKind = StreamKind | Literal["store", "collective"]
"""What carries a cut edge: streams of four kinds, a parameter store, or collectives that JAX runs itself."""


@accepts_old_fields
@dataclass(frozen=True)
class PlacedFragment:
    """A fragment with its nodes found and its replicas placed."""

    name: str
    nodes: tuple[str, ...]
    replicas: int
    devices: tuple[tuple[str, ...], ...]  # of each replica
    compiled: bool
    environments: tuple[tuple[int, int], ...] = ()  # of each replica: the indices it steps, from and to
    env_splits: int = 1  # blocks that each replica's environments form
    deadline_us: int | None = None  # for which requests wait for those of other blocks
    prefetch: bool = True  # whether the next unrolls go to the device during the update

    @property
    def steps_envs(self) -> bool:
        """Whether its workers step environments."""
        return bool(self.environments)

    def workers(self) -> list[str]:
        """Their names."""
        return [f"{self.name}-{i}" for i in range(self.replicas)] if self.replicas > 1 else [self.name]


@dataclass(frozen=True)
class CutEdge:
    """Edges from one node to the nodes of another fragment that travel together, or gradients between replicas."""

    source: str
    target: str
    what: tuple[str, ...]
    pattern: Pattern
    synchronisation: str
    bytes_per_iteration: int
    channel: ChannelKind
    group: str = ""
    node: str = ""  # whose values it carries
    slack: int | None = 0  # by how many updates the source may run ahead; None: the target never waits


def stepping_fragment(fragments: Iterable[PlacedFragment]) -> PlacedFragment:
    """The fragment whose workers step the environments."""
    return next(fragment for fragment in fragments if fragment.steps_envs)


class DrawnPlan(Protocol):
    """What a picture shows of a plan, be it a `Plan` or one that was read from a file."""

    @property
    def algorithm(self) -> str: ...
    @property
    def environment(self) -> str: ...
    @property
    def distribution(self) -> str: ...
    @property
    def envs(self) -> int: ...
    @property
    def steps_per_iteration(self) -> int: ...
    @property
    def fragments(self) -> Sequence[PlacedFragment]: ...
    @property
    def cuts(self) -> Sequence[CutEdge]: ...
    @property
    def notes(self) -> Sequence[str]: ...
    @property
    def hosts(self) -> Mapping[str, str]: ...
    @property
    def across(self) -> Any: ...
    @property
    def workers(self) -> int: ...
    def host(self, worker: str) -> str: ...


@dataclass(frozen=True)
class PlanUsage:
    """How a plan fares, as a picture shows it."""

    busy: Mapping[str, float] = field(default_factory=dict)  # by worker: the share of its time
    edges: Mapping[tuple[str, str, str], str] = field(default_factory=dict)  # by source, target and channel: in words


def plural(count: int, noun: str) -> str:
    """`1 update`, `2,000 updates`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
