"""How often a learner may learn from the same unrolls: as often as the algorithm asks, where samples may be old.

The learner keeps the newest unrolls as actors sent them. So it must take unrolls directly and in any order, and be one
worker on one device; other plans are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from runnel.algorithm import algorithm_name
from runnel.errors import UserError
from runnel.graph.nodes import Graph
from runnel.planning.cuts import PlacedFragment
from runnel.planning.slacks import Slacks


def reuses(name: str, fragments: Sequence[PlacedFragment], slacks: Slacks, graph: Graph) -> dict[str, int]:
    """By group: how often its unrolls may be learnt from; 1 where no sample may be old."""
    found = {}
    for group in graph.spec.groups:
        asked = graph.algorithm.for_group(group).reuses
        wanted = asked > 1 and group in graph.learning_groups
        if wanted:
            _check_replay(group, asked, graph)
        found[group] = asked if wanted and slacks.limit_iterations[group] else 1
        if found[group] > 1:
            _check_learner(name, group, asked, fragments, slacks, graph)
    return found


def _check_replay(group: str, asked: int, graph: Graph) -> None:
    if any(node.replays for node in graph.learners(group)):
        raise UserError(
            f"{algorithm_name(graph.algorithm)}: found reuses={asked} and a replay; samples_per_insert says how often "
            "items of a replay are learnt from: use reuses=1"
        )


def _check_learner(
    name: str, group: str, asked: int, fragments: Sequence[PlacedFragment], slacks: Slacks, graph: Graph
) -> None:
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    trains = [node for node in graph.after_rollout() if node.group == group]
    learner = home[graph.learners(group)[0].name]
    called = f"distribution {name}: found reuses={asked}, but"
    for node in trains:
        between = home[node.name]
        if between is not learner:
            raise UserError(
                f"{called} unrolls reach '{learner.name}' through '{between.name}', which has '{node.name}' "
                "and keeps none; use reuses=1, or a distribution whose learner takes unrolls directly, such as async"
            )
    if learner.steps_envs:
        raise UserError(
            f"{called} '{learner.name}' steps its environments itself and never waits for unrolls; use reuses=1"
        )
    devices = sum(map(len, learner.devices))
    if devices > 1:
        raise UserError(
            f"{called} {learner.replicas} {learner.name}s on {devices} devices learn together, and could only repeat a "
            f"batch while none of them has new unrolls; use reuses=1, or 1 {learner.name} on one device"
        )
    waiting = [each for each, limit in slacks.limit_iterations.items() if not limit]
    if waiting:
        raise UserError(
            f"{called} group {' and '.join(waiting)} waits for its learner at every unroll, so that unrolls are taken "
            "in order, each once; use reuses=1, or synchronise all groups alike"
        )
