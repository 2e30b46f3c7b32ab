"""In what order a fragment's nodes run, and what they wait for and send in between. Data only.

Nodes that need nothing from elsewhere in between are one segment, compiled as one program.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from runnel.graph.nodes import Graph, Node
from runnel.runtime.programs.stage import Component, Stage


@dataclass(frozen=True)
class Segment:
    """Nodes that run together."""

    receives: tuple[str, ...]  # nodes elsewhere whose values must have come
    nodes: tuple[Node, ...]
    components: tuple[Component, ...] = ()  # replays and their nodes, all of them here, run as often as they may

    @property
    def inputs(self) -> set[str]:
        """The nodes whose values it takes from outside itself."""
        own = {node.name for node in self.nodes}.union(*(c.names for c in self.components))
        members = [*self.nodes, *(n for c in self.components for n in c.nodes)]
        return {ref.node for node in members for ref in node.inputs} - own


@dataclass(frozen=True)
class CutComponent:
    """A component that is cut: what this fragment does for each batch."""

    component: Component
    samples: bool  # the replays are here
    segments: tuple[Segment, ...]
    awaits_priorities: tuple[str, ...]  # nodes elsewhere that compute them


@dataclass(frozen=True)
class Schedule:
    """What a fragment does in an iteration."""

    segments: tuple[Segment, ...]
    cut_components: tuple[CutComponent, ...]

    @property
    def all_segments(self) -> tuple[Segment, ...]:
        return (*self.segments, *(segment for cut in self.cut_components for segment in cut.segments))


def schedule(graph: Graph, stage: Stage) -> Schedule:
    held = {node.name for node in stage.nodes}
    whole = [c for c in stage.components if c.names <= held]
    cut = [c for c in stage.components if c.names & held and c not in whole]
    each = [node for node in stage.nodes if not node.replays or node.traits.draws_batches]
    segments = _segments(graph, each, held)
    if whole:
        last = segments.pop() if segments else Segment((), ())
        segments.append(Segment(last.receives, last.nodes, tuple(whole)))
    return Schedule(tuple(segments), tuple(_cut_component(graph, component, held) for component in cut))


def _cut_component(graph: Graph, component: Component, held: Collection[str]) -> CutComponent:
    samples = component.replays[0].name in held
    nodes = [node for node in component.nodes if node.name in held]
    awaited = {
        replay.priorities.node
        for replay in component.replays
        if samples and replay.priorities is not None and replay.priorities.node not in held
    }
    return CutComponent(component, samples, tuple(_segments(graph, nodes, held)), tuple(sorted(awaited)))


def _segments(graph: Graph, nodes: Sequence[Node], held: Collection[str]) -> list[Segment]:
    """Cuts a sequence of nodes wherever one needs a value from elsewhere that has not come yet."""
    segments: list[Segment] = []
    here: list[Node] = []
    known: set[str] = set()
    receives: list[str] = []
    for node in nodes:
        missing = dict.fromkeys(
            ref.node for ref in node.inputs
            if ref.node not in held and ref.node not in known and graph.nodes[ref.node].traits.trains
        )  # fmt: skip
        if missing and here:
            segments.append(Segment(tuple(receives), tuple(here)))
            here, receives = [], []
        receives += missing
        known |= set(missing)
        here.append(node)
    if here:
        segments.append(Segment(tuple(receives), tuple(here)))
    return segments


class Credit:
    """How many batches each iteration has: the arithmetic of `Stage.insert` and `Stage.sample`, without the items.

    It is a function of the iterations alone, so that all workers of a cut component agree on it without a word.
    """

    def __init__(self, component: Component):
        self.component = component
        self.inserted = {node.name: 0 for node in component.replays}
        self.credit = {node.name: np.float32(0) for node in component.replays}

    def insert(self) -> int:
        """An iteration's items come in; how many batches may now be drawn."""
        costs = {}
        for node in self.component.replays:
            settings, name = node.sampling, node.name
            after = self.inserted[name] + settings.replay.count(node.inputs[0].type)
            fresh = max(after - max(self.inserted[name], settings.min_size), 0)
            self.inserted[name] = min(after, settings.min_size)
            self.credit[name] = np.float32(
                self.credit[name] + np.float32(fresh) * np.float32(settings.samples_per_insert)
            )
            costs[name] = np.float32(settings.replay.cost(settings.batch))
        batches = 0
        while all(self.credit[name] >= cost for name, cost in costs.items()):
            for name, cost in costs.items():
                self.credit[name] = np.float32(self.credit[name] - cost)
            batches += 1
        return batches

    def restore(self, inserted: dict[str, int], credit: dict[str, float]) -> None:
        self.inserted, self.credit = dict(inserted), {name: np.float32(value) for name, value in credit.items()}
