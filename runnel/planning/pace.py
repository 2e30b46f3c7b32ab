"""How far actors may be ahead of the learner, as a plan says it. Data only.

Under `BoundedStaleness(n)`, what an update learns from may be `n` updates old. An iteration may make several updates,
so the limit is kept in iterations, in one of two ways:

- Where unrolls go to their learner directly, it takes the oldest that have come, whoever made them
  (`batch_collector.py`).
- Where other workers stand between, everybody takes the unrolls in order: iteration `i` is made of unroll `i` of every
  block, wherever it passes. A block begins unroll `u` once the learner has published the parameters of iteration
  `u - limit`. So what is learnt from is `limit` iterations old at most, whatever stands between and however long it
  takes there; and values that are made of the same unrolls by different workers belong together.
"""

from __future__ import annotations

import math

from runnel.graph.nodes import Graph, Node
from runnel.planning.plan import BoundedStaleness, PlacedFragment, Plan


def staleness_in_iterations(plan: Plan, graph: Graph) -> int:
    """How many iterations an unroll may be behind; with 0, everybody waits for everybody."""
    if not isinstance(plan.synchronisation, BoundedStaleness):
        return 0
    bound = plan.synchronisation.max_staleness
    learners = [_learners(graph, group) for group in graph.spec.groups]
    return max(0, min((bound - _last(nodes)) // _updates(graph, nodes) for nodes in learners))


def updates_per_iteration(graph: Graph) -> int:
    """Of the group that learns most often."""
    return max(_updates(graph, _learners(graph, group)) for group in graph.spec.groups)


def _learners(graph: Graph, group: str) -> list[Node]:
    return [node for node in graph.of_kind("learn", "apply") if node.group == group]


def _updates(graph: Graph, nodes: list[Node]) -> int:
    """At most, over any number of iterations: what a replay has left of one, less than an update, is in the ceiling."""
    rates = [
        max((e.per_iteration for e in graph.edges if e.target == node.name and not e.feedback), default=1.0)
        for node in nodes
    ]
    return max(1, sum(math.ceil(rate) for rate in rates))


def _last(nodes: list[Node]) -> int:
    """How many updates the last that learns from unrolls themselves, not from a replay, comes after the first."""
    return max(0, sum(not node.loops for node in nodes) - 1)


def gathers(plays: PlacedFragment) -> bool:
    """Whether what workers that play make further of their own unrolls is taken one by one, as it comes."""
    return bool(plays.environments) and plays.replicas > 1


def lead(plan: Plan, graph: Graph) -> int | None:
    """By how many iterations unrolls that are taken in order may be ahead of what their learner has published: 0 at a
    barrier. None where they are not taken in order: by their learner directly, or where gradients are gathered."""
    limit = staleness_in_iterations(plan, graph)
    homes = {node: fragment for fragment in plan.fragments for node in fragment.nodes}
    made = {node.name for node in graph.after_rollout()}
    between = any(
        ref.node in made and homes[ref.node] is not homes[node.name] and not gathers(homes[ref.node])
        for node in graph.nodes.values()
        for ref in node.inputs
    )
    return limit if between or not limit else None
