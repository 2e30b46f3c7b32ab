"""The cut edges of a plan: those between fragments, and what carries each. Streams and stores are opened from these.

Edges that travel together are one cut edge: a node's values for the nodes of one other fragment, as often as they go. A
plan shows the cut edges, and `channels.py` opens exactly their channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from runnel.graph.nodes import Edge, Graph, tree_bytes
from runnel.planning.placed import ChannelKind, CutEdge, Pattern, PlacedFragment
from runnel.planning.slacks import Slacks, described, group_of


def learns(fragment: PlacedFragment, graph: Graph) -> bool:
    """Whether a fragment changes parameters."""
    return any(graph.nodes[node].traits.learns for node in fragment.nodes)


def cut_edges(fragments: Sequence[PlacedFragment], slacks: Slacks, graph: Graph) -> tuple[CutEdge, ...]:
    """All cut edges of a graph in fragments."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    together: dict[tuple[str, str, str, str, ChannelKind, float], list[int]] = {}
    for k, edge in enumerate(graph.edges):
        source, target = home[edge.source].name, home[edge.target].name
        if source != target:
            # Values of one node that travel together are sent once: act and rollout share an observation.
            times = 1.0 if edge.published else edge.per_iteration
            key = source, target, edge.source, group_of(edge, graph), _channel(edge, graph), times
            together.setdefault(key, []).append(k)
    whole = {
        group_of(graph.edges[k], graph) for own in together.values() for k in own if graph.edges[k].what == "state"
    }
    by_name = {fragment.name: fragment for fragment in fragments}
    cuts = [
        _cut_edge(by_name[source], by_name[target], channel, places, times, whole, slacks, graph)
        for (source, target, _, _, channel, times), places in together.items()
    ]
    return (*cuts, *(_all_reduced(each, graph) for each in fragments if each.replicas > 1 and learns(each, graph)))


def _cut_edge(
    source: PlacedFragment, target: PlacedFragment, channel: ChannelKind, places: Sequence[int], times: float,
    whole: set[str], slacks: Slacks, graph: Graph,
) -> CutEdge:  # fmt: skip
    edges = [graph.edges[k] for k in places]
    node, group = edges[0].source, group_of(edges[0], graph)
    values = {name: type_ for edge in edges for name, type_ in edge.type.items()}
    if group in whole and values.keys() & {"params", "state"}:
        values = {"state": graph.states[group]}  # a group has one store, and the parameters are in it
    if values.keys() & {"params", "state"}:
        values.pop("version", None)
    pattern = _pattern(source, target, published=channel == "store")
    copies = target.replicas if pattern == "broadcast" else 1
    named = f" of {group}" if len(graph.spec.groups) > 1 else ""
    own = [slacks.by_edge[k] for k in places]
    slack = None if None in own else min(max(filter(None, own), default=0), slacks.staleness_updates[group])
    return CutEdge(
        source.name, target.name, tuple(f"{name}{named}" for name in values), pattern,
        described(places, slack, group, slacks, graph), round(tree_bytes(values) * times * copies),
        channel, group, node, slack,
    )  # fmt: skip


def _channel(edge: Edge, graph: Graph) -> ChannelKind:
    return "store" if edge.published else graph.nodes[edge.source].traits.stream


def _pattern(source: PlacedFragment, target: PlacedFragment, published: bool) -> Pattern:
    if published:
        return "broadcast" if target.replicas > 1 else "send"
    if source.replicas == target.replicas == 1:
        return "send"
    if target.replicas == 1:
        return "gather"
    return "scatter" if source.replicas == 1 else "route"


def _all_reduced(fragment: PlacedFragment, graph: Graph) -> CutEdge:
    """Replicas that learn add up their gradients."""
    learners = [graph.nodes[node] for node in fragment.nodes if graph.nodes[node].traits.learns]
    size = sum(tree_bytes(graph.states[node.group].params) for node in learners) * fragment.replicas
    return CutEdge(
        fragment.name, fragment.name, ("gradients",), "all-reduce", "barrier every gradient step", size, "collective"
    )
