"""How far actors may be ahead of each group's learner, as a plan says it. Data only.

Where the slacks of a group's cycle add up to `n`, what an update learns from may be `n` updates old. An iteration may
make several updates, so the limit is kept in iterations, in one of two ways:

- Where unrolls go to their learner directly, it takes the oldest that have come, whichever worker made them
  (`batch_collector.py`).
- Where other workers are in between, or where another group waits at a barrier, unrolls are taken in order: iteration
  `i` is made of unroll `i` of every block, wherever it passes. A block begins unroll `u` once the learner has published
  the parameters of iteration `u - limit` (`unroll_gate.py`). So what is learnt from is `limit` iterations old at most,
  whatever is in between and however long it takes there; and values that different workers make of the same unrolls
  belong together. A barrier is the same rule with limit 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runnel.graph.nodes import Graph
from runnel.planning.cuts import PlacedFragment
from runnel.planning.plan import Plan


class Pace(NamedTuple):
    """How a group's actors keep up with its learner."""

    limit: int
    """How many iterations an unroll may be behind; with 0, actors and learner wait for each other."""

    lead: int | None
    """By how many iterations unrolls that are taken in order may be ahead of what their learner has published; None
    where they are not taken in order."""

    @property
    def free(self) -> bool:
        """Whether actors run ahead of the learner."""
        return self.limit > 0


def paces(plan: Plan, graph: Graph) -> dict[str, Pace]:
    """The pace of every group."""
    ordered = _works_between(plan, graph) or min(plan.limits.values()) == 0
    return {group: Pace(limit, limit if ordered or not limit else None) for group, limit in plan.limits.items()}


def all_free(paces: Mapping[str, Pace], groups: Iterable[str] | None = None) -> bool:
    """Whether actors run ahead of the learners of all these groups, or of every group."""
    return all(paces[group].free for group in (paces if groups is None else groups))


def gathers(fragment: PlacedFragment) -> bool:
    """Whether what workers that step environments make of their own unrolls is taken one by one, as it comes."""
    return bool(fragment.environments) and fragment.replicas > 1


def _works_between(plan: Plan, graph: Graph) -> bool:
    """Whether workers between actors and learners make something of unrolls that others wait for."""
    homes = {node: fragment for fragment in plan.fragments for node in fragment.nodes}
    made = {node.name for node in graph.after_rollout()}
    return any(
        ref.node in made and homes[ref.node] is not homes[node.name] and not gathers(homes[ref.node])
        for node in graph.nodes.values()
        for ref in node.inputs
    )
