"""How each cut edge synchronises: a layout says how far workers may run apart, what an edge carries says the rest."""

from __future__ import annotations

from collections.abc import Collection

from runnel.graph.nodes import Edge, Graph
from runnel.planning.distribution import Barrier, BoundedStaleness, Synchronisation

EVERY_STEP = frozenset({"observation", "step", "action", "act"})
"""Environments go on only when their actions have come, under every distribution."""

LEARNT = frozenset({"parameters", "state"})
"""What is read from a parameter store, not from a stream."""

PER_GRADIENT = frozenset({"gradients", "state"})


def exchange(edges: Collection[Edge], synchronisation: Synchronisation, graph: Graph) -> str:
    """In words, how edges that travel together synchronise."""
    carried = {edge.what for edge in edges}
    free = isinstance(synchronisation, BoundedStaleness) and synchronisation.max_staleness > 0
    if carried & EVERY_STEP:
        return "request and reply every step" if isinstance(synchronisation, BoundedStaleness) else str(Barrier("step"))
    if free and carried & LEARNT:
        return "free, the newest wins"
    if free and "priorities" in carried:
        return "free, taken as they come"
    if free or (isinstance(synchronisation, BoundedStaleness) and not carried & PER_GRADIENT):
        return str(synchronisation)
    if carried & PER_GRADIENT:
        return "barrier every gradient step"
    # Parameters are written with every batch, and read with every unroll.
    replayed = "parameters" not in carried and any(graph.nodes[edge.source].loops for edge in edges)
    return "barrier every batch" if replayed else str(Barrier("unroll"))
