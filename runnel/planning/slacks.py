"""How each cut edge synchronises, and the staleness bound of each group that follows.

Every cut edge has a slack: the number of updates by which its source may run ahead of its target; a barrier has 0.
Data flows from a rollout to its learner, and parameters flow back: a cycle. The staleness bound of a group is the
largest sum of slacks along such a cycle, and at most the algorithm's `max_staleness`.

A layout names the synchronisation of single edges, and one for all others. Along a cycle, the first cut edge that is
not named has the slack of the others, and later ones have 0. Parameters that are not named also have 0: the newest are
read.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from runnel.errors import UserError, nearest
from runnel.graph.nodes import Edge, Graph, Node
from runnel.planning.distribution import REST, Layout
from runnel.planning.synchronisation import Barrier, BoundedStaleness, Synchronisation, is_whole

EXCHANGED = frozenset({"observation", "step", "action", "act", "memory"})
"""Values that go between environments and what acts for them. Environments step only once their actions have come."""


@dataclass(frozen=True)
class Slacks:
    """How the cut edges of a graph synchronise, and what follows for each group."""

    by_edge: Mapping[int, int | None]
    """By place in `graph.edges`. None: the target takes what has come and never waits, as for priorities."""

    synchronisations: Mapping[int, Synchronisation]
    """By place in `graph.edges`: what the layout says of a cut edge, by its name or for the rest."""

    sums: Mapping[str, int]
    """By group: the largest sum of slacks along one of its cycles, and at most the algorithm's `max_staleness`."""

    limit_iterations: Mapping[str, int]
    """By group: how many iterations, each of one or more updates, an unroll may be behind within that sum."""

    step_synchronous: frozenset[str]
    """The groups whose environments and actions wait for each other at every step."""

    @property
    def staleness_updates(self) -> dict[str, int]:
        """By group: the most updates that what is learnt from may be old. 0: actors and learner wait for each other."""
        return {group: self.sums[group] if limit else 0 for group, limit in self.limit_iterations.items()}


def matches(pattern: str, node: Node) -> bool:
    """Whether a name in a layout means a node: its kind, its name, or its group and `/*`."""
    return pattern in (node.kind, node.name, f"{node.group}/*")


def slacks(name: str, layout: Layout, homes: Mapping[str, str], graph: Graph) -> Slacks:
    """The slack of every cut edge under a layout. `homes`: each node's fragment."""
    named = _named(name, layout, homes, graph)
    cut = [k for k, edge in enumerate(graph.edges) if homes[edge.source] != homes[edge.target]]
    found: dict[int, int | None] = {k: _named_slack(name, graph.edges[k], named[k]) for k in cut if k in named}
    sums = {}
    for group in graph.spec.groups:
        found |= _first_unnamed(group, cut, found, _whole_slack(name, layout.synchronisation), graph)
        sums[group] = min(_longest(group, cut, found, graph), graph.algorithm.for_group(group).max_staleness)
    for group in graph.spec.groups:
        if not graph.learners(group):  # no learner: it never waits
            sums[group] = max(sums.values())
    limits = limits_in_iterations(sums, homes, graph)
    for k in cut:
        takes_any = graph.edges[k].what == "priorities" and limits[group_of(graph.edges[k], graph)] > 0
        found.setdefault(k, None if takes_any else 0)
    barriers = {group_of(graph.edges[k], graph) for k, each in named.items() if each.every_step}
    if layout.synchronisation.every_step:
        barriers |= {*graph.spec.groups}
    synchronous = {group for group, limit in limits.items() if not limit}
    said = {k: named.get(k, layout.synchronisation) for k in cut}
    return Slacks(found, said, sums, limits, _step_synchronous(barriers | synchronous, homes, graph))


def group_of(edge: Edge, graph: Graph) -> str:
    """The group that an edge belongs to; of an environment, which all groups share, that of its other end."""
    return graph.nodes[edge.source].group or graph.nodes[edge.target].group


def limits_in_iterations(sums: Mapping[str, int], homes: Mapping[str, str], graph: Graph) -> dict[str, int]:
    """By group, how many iterations an unroll may be behind. Groups that one fragment trains, or that one
    node joins, share the lowest."""
    limits = {}
    for group, bound in sums.items():
        learners = graph.learners(group)
        # The last update from the unrolls themselves, not from a replay, comes after the others of its iteration.
        last = max(0, sum(not node.replays for node in learners) - 1)
        limits[group] = max(0, (bound - last) // updates_per_iteration(graph, group))
    shared = [
        {n.group for n in graph.after_rollout() if homes[n.name] == each} for each in dict.fromkeys(homes.values())
    ]
    shared += joined_groups(graph)
    for _ in limits:  # a group may share with another, which shares with a third
        for trained in shared:
            limits |= dict.fromkeys(trained, min((limits[group] for group in trained), default=0))
    return limits


def joined_groups(graph: Graph) -> list[set[str]]:
    """The sets of groups whose values one node takes together."""
    found = [{node.group, *(graph.nodes[ref.node].group for ref in node.inputs)} for node in graph.after_rollout()]
    return [groups for groups in found if len(groups) > 1]


def updates_per_iteration(graph: Graph, group: str) -> int:
    """At most, over any number of iterations: what a replay has left of one, less than an update, is in the ceiling."""
    rates = [
        max((e.per_iteration for e in graph.edges if e.target == node.name and not e.feedback), default=1.0)
        for node in graph.learners(group)
    ]
    return max(1, sum(math.ceil(rate) for rate in rates))


def _step_synchronous(groups: Collection[str], homes: Mapping[str, str], graph: Graph) -> frozenset[str]:
    """All groups that are acted for in step: those that are to be, those whose trajectories are put together where they
    are acted for, and others that the same workers act for."""
    away = {node.group for node in graph.of_kind("rollout") if homes[node.name] != homes["environment"]}
    acts = {node.group: homes[node.name] for node in graph.of_kind("act")}
    servers = {acts[group] for group in {*groups, *away}}
    return frozenset(group for group, server in acts.items() if server in servers)


# What a layout names


def _named(name: str, layout: Layout, homes: Mapping[str, str], graph: Graph) -> dict[int, Synchronisation]:
    """By place in `graph.edges`: what the layout says of an edge. Every name must mean a cut edge."""
    if not isinstance(layout.edges, Mapping):
        raise UserError(
            f"distribution {name}: found edges={layout.edges!r}, expected a mapping such as "
            "{('rollout', 'learn'): BoundedStaleness(2)}"
        )
    found: dict[int, Synchronisation] = {}
    for ends, synchronisation in layout.edges.items():
        if not (isinstance(ends, tuple) and len(ends) == 2 and isinstance(synchronisation, Synchronisation)):
            raise UserError(
                f"distribution {name}: found {ends!r}: {synchronisation!r} among its edges, expected two nodes and a "
                "synchronisation: ('rollout', 'learn'): BoundedStaleness(2)"
            )
        for k in _meant(name, ends, homes, graph):
            if found.setdefault(k, synchronisation) != synchronisation:
                edge = graph.edges[k]
                raise UserError(
                    f"distribution {name} names the edge from '{edge.source}' to '{edge.target}' twice, with "
                    f"{found[k]} and {synchronisation}; keep one"
                )
    return found


def _meant(name: str, ends: tuple[str, str], homes: Mapping[str, str], graph: Graph) -> list[int]:
    source, target = ends
    called = f"distribution {name} names the edge {source!r} -> {target!r}"
    for pattern in ends:
        if not any(pattern != REST and matches(pattern, node) for node in graph.nodes.values()):
            raise UserError(f"{called}; there is no node {pattern!r}{nearest(str(pattern), graph.nodes)}")
    meant = [
        k for k, edge in enumerate(graph.edges)
        if matches(source, graph.nodes[edge.source]) and matches(target, graph.nodes[edge.target])
    ]  # fmt: skip
    if not meant:
        known = dict.fromkeys(f"{edge.source} -> {edge.target}" for edge in graph.edges)
        raise UserError(f"{called}, which the graph does not have; its edges are {', '.join(known)}")
    cut = [k for k in meant if homes[graph.edges[k].source] != homes[graph.edges[k].target]]
    if not cut:
        within = homes[graph.edges[meant[0]].source]
        raise UserError(
            f"{called}, which is inside fragment '{within}'; only edges between fragments synchronise: leave it out, "
            "or put its ends into two fragments"
        )
    return cut


def _named_slack(name: str, edge: Edge, synchronisation: Synchronisation) -> int:
    """The slack of an edge that a layout names; refuses what the edge cannot do."""
    called = f"distribution {name} sets {synchronisation} on the edge from '{edge.source}' to '{edge.target}'"
    if edge.what in EXCHANGED:
        if not synchronisation.every_step:
            raise UserError(
                f"{called}; environments wait for their actions at every step: use Barrier('step'), or leave it out"
            )
        return 0
    if edge.what == "priorities":
        raise UserError(f"{called}; priorities follow the batches that they belong to: leave it out")
    if synchronisation.every_step:
        raise UserError(f"{called}, but it carries {edge.what}, which is made once an unroll: use Barrier('unroll')")
    return _whole_slack(name, synchronisation)


def _whole_slack(name: str, synchronisation: Synchronisation) -> int:
    """A slack may come from a user's own class."""
    if not is_whole(synchronisation.slack, 0):
        raise UserError(
            f"distribution {name}: found slack {synchronisation.slack!r} of {type(synchronisation).__name__}, expected "
            "a whole number of updates, 0 or more"
        )
    return synchronisation.slack


# Cycles


def _data_edges(group: str, graph: Graph) -> list[int]:
    """The edges from the group's rollout to its learner, in the loop's order."""
    return [
        k for k, edge in enumerate(graph.edges)
        if group_of(edge, graph) == group and not edge.feedback and edge.what not in EXCHANGED
    ]  # fmt: skip


def _first_unnamed(
    group: str, cut: Sequence[int], named: Mapping[int, int | None], slack: int, graph: Graph
) -> dict[int, int]:
    """The group's unnamed data edges: the first cut one of a path has the slack of the rest, later ones have 0."""
    found: dict[int, int] = {}
    spent = dict.fromkeys(graph.nodes, False)  # whether a path to the node has an unnamed cut edge
    for name in graph.nodes:
        before = [k for k in _data_edges(group, graph) if graph.edges[k].target == name]
        used = []
        for k in before:
            already, unnamed = spent[graph.edges[k].source], k in cut and k not in named
            if unnamed:
                found[k] = 0 if already else slack
            used.append(already or unnamed)
        spent[name] = any(used)
    return found


def _longest(group: str, cut: Sequence[int], slack: Mapping[int, int | None], graph: Graph) -> int:
    """The largest sum of slacks along a cycle of the group."""
    reached = dict.fromkeys(graph.nodes, 0)
    for name in graph.nodes:
        for k in _data_edges(group, graph):
            edge = graph.edges[k]
            if edge.target == name:
                own = (slack.get(k) or 0) if k in cut else 0
                reached[name] = max(reached[name], reached[edge.source] + own)
    back = [slack.get(k) or 0 for k in cut if graph.edges[k].published and group_of(graph.edges[k], graph) == group]
    learners = [reached[node.name] for node in graph.learners(group)]
    return max(learners, default=0) + max(back, default=0)


# In words


def described(places: Collection[int], slack: int | None, group: str, slacks: Slacks, graph: Graph) -> str:
    """How edges that travel together synchronise, by their places in `graph.edges`."""
    edges = [graph.edges[k] for k in places]
    carried = {edge.what for edge in edges}
    said = [slacks.synchronisations[k] for k in places]
    free = slacks.staleness_updates[group] > 0
    if carried & EXCHANGED:
        return _called(said, Barrier("step")) if group in slacks.step_synchronous else "request and reply every step"
    if free and slack:  # less than the layout says where the algorithm tolerates less
        return _called(said, BoundedStaleness(slack))
    if free and any(edge.published for edge in edges):
        return "asynchronous, newest version"
    if free:
        return "asynchronous, as they arrive" if slack is None else "asynchronous, in order"
    if carried & {"gradients", "state"}:
        return "barrier every gradient step"
    # Parameters are written with every batch, and read with every unroll.
    replayed = not any(edge.published for edge in edges) and any(graph.nodes[edge.source].replays for edge in edges)
    return "barrier every batch" if replayed else _called(said, Barrier("unroll"))


def _called(said: Collection[Synchronisation], meant: Synchronisation) -> str:
    """What an edge's synchronisation is called: as the layout calls it, if that is what the edge does."""
    does = (meant.slack, meant.asynchronous, meant.every_step)
    return str(next((each for each in said if (each.slack, each.asynchronous, each.every_step) == does), meant))
