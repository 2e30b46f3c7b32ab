"""The pace of each group: in which order its unrolls are taken, and how far its actors may be ahead of the learner.

Where the slacks of a group's cycle add up to `n`, what an update learns from may be `n` updates old. An iteration may
make several updates, so a limit in iterations is kept, in one of two ways:

- Where unrolls go to their learner directly, it takes the oldest that have come, whichever worker made them
  (`batch_collector.py`).
- Where other workers are in between, or where another group waits at a barrier, unrolls are taken in order: iteration
  `i` is made of unroll `i` of every block, wherever it passes. A block begins unroll `u` once the learner has published
  the parameters of iteration `u - limit_iterations` (`unroll_gate.py`). So what is learnt from is `limit_iterations`
  old at most, whatever is in between and however long it takes there; and values that different workers make of the
  same unrolls belong together. A barrier is the same rule with limit 0.
"""

from __future__ import annotations

from typing import NamedTuple

from runnel.graph.nodes import Graph
from runnel.planning.cuts import PlacedFragment
from runnel.planning.plan import Plan


class Pace(NamedTuple):
    """How a group's actors keep up with its learner."""

    limit_iterations: int
    """How many iterations an unroll may be behind; with 0, actors and learner wait for each other."""

    in_order: bool
    """Whether iteration `i` is made of unroll `i` of every block. If not, the learner takes the oldest that came."""

    @property
    def lead(self) -> int | None:
        """By how many iterations an unroll may be ahead of what is published; None: the learner keeps the limit."""
        return self.limit_iterations if self.in_order else None

    @property
    def free(self) -> bool:
        """Whether actors run ahead of the learner."""
        return self.limit_iterations > 0


def paces(plan: Plan, graph: Graph) -> dict[str, Pace]:
    """The pace of every group."""
    ordered = _works_between(plan, graph) or min(plan.limit_iterations.values()) == 0
    return {group: Pace(limit, ordered or not limit) for group, limit in plan.limit_iterations.items()}


def gathers(fragment: PlacedFragment) -> bool:
    """Whether what workers that step environments make of their own unrolls is taken one by one, as it comes."""
    return fragment.steps_envs and fragment.replicas > 1


def _works_between(plan: Plan, graph: Graph) -> bool:
    """Whether workers between actors and learners make something of unrolls that others wait for."""
    homes = {node: fragment for fragment in plan.fragments for node in fragment.nodes}
    made = {node.name for node in graph.after_rollout()}
    return any(
        ref.node in made and homes[ref.node] is not homes[node.name] and not gathers(homes[ref.node])
        for node in graph.nodes.values()
        for ref in node.inputs
    )
