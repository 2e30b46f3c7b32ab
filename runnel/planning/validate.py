"""What a plan must hold: said before anything starts, with what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runnel.errors import UserError
from runnel.graph.nodes import Graph
from runnel.ops.blocks import BLOCKS, block_count
from runnel.planning.distribution import BoundedStaleness, Synchronisation

if TYPE_CHECKING:
    from runnel.planning.plan import PlacedFragment


def learns(fragment: PlacedFragment, graph: Graph) -> bool:
    """Whether a fragment changes parameters."""
    return any(graph.nodes[node].kind in ("learn", "apply") for node in fragment.nodes)


def check_needs(name: str, needs: Sequence[str], graph: Graph) -> None:
    """Refuses an algorithm without the nodes that a distribution is about."""
    kinds = {node.kind for node in graph.nodes.values()}
    missing = [kind for kind in needs if kind not in kinds]
    if missing:
        algorithm = type(graph.algorithm).__name__
        wanted = " and ".join(f"`{kind}`" for kind in missing)
        raise UserError(
            f"distribution {name} needs {wanted}, which {algorithm} does not have"
            "; choose another distribution or algorithm: `runnel list` tells which go together"
        )


def check_unrolling(name: str, fragments: Sequence[PlacedFragment], graph: Graph) -> None:
    """Steps travel between an environment and its actors, and nowhere else."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    plays = home["environment"]
    for rollout in graph.of_kind("rollout"):
        act = next(node for node in graph.of_kind("act") if node.group == rollout.group)
        acts, rolls = home[act.name], home[rollout.name]
        if rolls is not plays and (rolls is not acts or acts is plays):
            where = f"'{plays.name}'" if acts is plays else f"'{plays.name}' or '{acts.name}'"
            raise UserError(
                f"distribution {name} puts '{rollout.name}' into fragment '{rolls.name}'; a rollout is put together "
                f"with the environment or with what acts: put it into {where}"
            )
        if acts.replicas > plays.replicas:
            raise UserError(
                f"{acts.replicas} {acts.name} workers serve {plays.replicas} {plays.name} workers; "
                f"use at most {plays.replicas} of them"
            )
        if rolls is acts and acts is not plays and plays.replicas % acts.replicas:
            raise UserError(
                f"{plays.replicas} {plays.name} workers do not divide over {acts.replicas} {acts.name} workers; "
                f"use a multiple of {acts.replicas}"
            )


def check_parts(name: str, fragments: Sequence[PlacedFragment], synchronisation: Synchronisation, graph: Graph) -> None:
    """Of what several workers make of a part of the environments each, trajectories alone are put together again."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    parted = {home[rollout.name].name for rollout in graph.of_kind("rollout") if home[rollout.name].replicas > 1}
    for taker in graph.nodes.values():
        for ref in taker.inputs:
            node, gives, takes = graph.nodes[ref.node], home[ref.node], home[taker.name]
            if gives is takes or gives.name not in parted:
                continue
            shared = f"fragment '{gives.name}', whose {gives.replicas} workers have a part of the environments each"
            if node.kind == "map":
                raise UserError(
                    f"distribution {name} puts '{node.name}' into {shared}, and '{taker.name}' into '{takes.name}'; "
                    f"only trajectories are put together from parts: put '{node.name}' into '{takes.name}' or into a "
                    f"fragment of its own, or use 1 {gives.name} worker"
                )
            if node.kind == "replay" and not isinstance(synchronisation, BoundedStaleness):
                raise UserError(
                    f"distribution {name} puts '{node.name}' into {shared}, and has a barrier; whoever waits for all "
                    f"of them samples from one replay: use BoundedStaleness, put '{node.name}' elsewhere, or use 1 "
                    f"{gives.name} worker"
                )


def check_learning(
    name: str, fragments: Sequence[PlacedFragment], synchronisation: Synchronisation, graph: Graph
) -> None:
    """Refuses learners that cannot share the work, and what must not be apart."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    plays = home["environment"]
    for fragment in fragments:
        kinds = {graph.nodes[node].kind for node in fragment.nodes}
        if learns(fragment, graph) and fragment.replicas > 1:
            blocks = block_count(graph.envs)
            if blocks % fragment.replicas:
                wanted = " or ".join(str(k) for k in range(2, blocks + 1) if blocks % k == 0) or "1"
                most = max(BLOCKS)
                raise UserError(
                    f"{fragment.replicas} {fragment.name}s: a batch of {graph.envs} environments is cut into {blocks} "
                    "equal parts, so that training is the same however many share them, and each learner takes as "
                    f"many as the others; use {wanted} {fragment.name}s"
                    + (f", or envs= a multiple of {most}" if most % fragment.replicas == 0 else ""),
                    keywords=("envs",),
                )
            if plays is not fragment and plays.replicas * plays.env_splits % fragment.replicas:
                raise UserError(
                    f"{plays.replicas} {plays.name} workers do not divide over {fragment.replicas} {fragment.name}s; "
                    f"use a multiple of {fragment.replicas}"
                )
            outside = {"replay", "map"} & {graph.nodes[n].kind for n in home if home[n] is not fragment}
            if outside:
                raise UserError(
                    f"distribution {name} has {fragment.replicas} {fragment.name}s and {' and '.join(sorted(outside))} "
                    "elsewhere; several learners take trajectories only: put the node with them, or use 1"
                )
        if "gradient" in kinds and "apply" not in kinds and isinstance(synchronisation, BoundedStaleness):
            stale = fragment.replicas - 1
            if stale > synchronisation.max_staleness > 0:  # with 0, gradients are averaged at a barrier
                raise UserError(
                    f"{fragment.replicas} {fragment.name}s compute gradients side by side: while one is made, {stale} "
                    f"versions may pass; {type(graph.algorithm).__name__} bears {synchronisation.max_staleness}: "
                    f"use at most {synchronisation.max_staleness + 1}, or an algorithm that bears more"
                )
    for node in graph.nodes.values():
        if len({home[replay].name for replay in node.loops}) > 1:
            raise UserError(
                f"distribution {name} spreads the replays that feed '{node.name}' over several fragments; "
                "put them into one"
            )
