"""Checks of a plan before launch; each error says what was found, what was expected and how to fix it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from runnel.algorithm import algorithm_name
from runnel.errors import UserError
from runnel.graph.nodes import Graph, tree_bytes
from runnel.ops.column_blocks import divisors, learners_in_words
from runnel.planning.cuts import PlacedFragment, learns
from runnel.planning.distribution import Fragment
from runnel.planning.placed import human_bytes, plural, stepping_fragment
from runnel.planning.slacks import Slacks
from runnel.replay import shared_axis


def check_needs(name: str, needs: Sequence[str], graph: Graph) -> None:
    """Refuses an algorithm that lacks node kinds which a distribution needs."""
    kinds = {node.kind for node in graph.nodes.values()}
    missing = [kind for kind in needs if kind not in kinds]
    if missing:
        algorithm = algorithm_name(graph.algorithm)
        wanted = " and ".join(f"`{kind}`" for kind in missing)
        raise UserError(
            f"distribution {name} needs {wanted}, which {algorithm} does not have"
            "; choose another distribution or algorithm: `runnel list` shows which go together",
            page="command-line#list",
        )


def check_compiled(name: str, fragments: Sequence[Fragment]) -> None:
    """Refuses a compiled fragment that is not the whole plan in one process: workers loop around compiled parts."""
    workers = sum(fragment.replicas for fragment in fragments)
    for fragment in fragments:
        if fragment.compiled and workers > 1:
            many = f"has {fragment.replicas} replicas" if fragment.replicas > 1 else f"is 1 of {workers} workers"
            raise UserError(
                f"distribution {name}: fragment '{fragment.name}' {many}, found compiled=True, expected one worker "
                "for the whole plan: only a run of one process is one XLA program; leave out compiled=True, as workers "
                "compile what they can, or use one fragment with 1 replica and devices='all'",
                page="write-a-distribution",
            )


def check_unrolling(name: str, fragments: Sequence[PlacedFragment], graph: Graph) -> None:
    """A rollout must be with the environment or with its actor: single steps are sent to no other fragment."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    stepping = stepping_fragment(fragments)
    for rollout in graph.of_kind("rollout"):
        act = graph.only("act", rollout.group)
        acts, rolls = home[act.name], home[rollout.name]
        if rolls is not stepping and (rolls is not acts or acts is stepping):
            where = f"'{stepping.name}'" if acts is stepping else f"'{stepping.name}' or '{acts.name}'"
            raise UserError(
                f"distribution {name} puts '{rollout.name}' into fragment '{rolls.name}'; a rollout is "
                f"assembled with the environment or with `act`: put it into {where}"
            )
        if acts.replicas > stepping.replicas:
            raise UserError(
                f"{acts.replicas} {acts.name} workers serve {stepping.replicas} {stepping.name} workers; "
                f"use at most {stepping.replicas} of them",
                page="performance#what-the-distributions-do",
            )
        if rolls is acts and acts is not stepping and stepping.replicas % acts.replicas:
            raise UserError(
                f"{stepping.replicas} {stepping.name} workers do not divide over {acts.replicas} {acts.name} workers; "
                f"use a multiple of {acts.replicas}",
                page="performance#what-the-distributions-do",
            )


def check_parts(name: str, fragments: Sequence[PlacedFragment], staleness: Mapping[str, int], graph: Graph) -> None:
    """Each worker that steps environments owns a shard of them; only trajectories can be concatenated across shards."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    parted = {home[rollout.name].name for rollout in graph.of_kind("rollout") if home[rollout.name].replicas > 1}
    for taker in graph.nodes.values():
        for ref in taker.inputs:
            node, gives, takes = graph.nodes[ref.node], home[ref.node], home[taker.name]
            if gives is takes or gives.name not in parted or not node.traits.feeds_one_learner:
                continue
            shared = f"fragment '{gives.name}', whose {gives.replicas} workers each have a part of the environments"
            if not node.traits.draws_batches:
                raise UserError(
                    f"distribution {name} puts '{node.name}' into {shared}, and '{taker.name}' into '{takes.name}'; "
                    f"only trajectories can be joined from parts: put '{node.name}' into '{takes.name}' or into a "
                    f"fragment of its own, or use 1 {gives.name} worker"
                )
            if not staleness[node.group]:
                raise UserError(
                    f"distribution {name} puts '{node.name}' into {shared}, and synchronises at a barrier, where the "
                    f"learner samples from one replay: use BoundedStaleness, put '{node.name}' elsewhere, or use 1 "
                    f"{gives.name} worker"
                )


def check_joined(name: str, fragments: Sequence[PlacedFragment], graph: Graph) -> None:
    """A node that takes another group's value is in one worker with what else is made of it: both groups' unrolls then
    arrive together, of the same environments and iteration."""
    home = {node: fragment.name for fragment in fragments for node in fragment.nodes}
    nodes = graph.after_rollout()
    for taker in nodes:
        for source in (graph.nodes[ref.node] for ref in taker.inputs):
            if source.group == taker.group:
                continue
            if source.kind == "rollout":  # its trajectories come to where the nodes of its own group take them
                own = [node for node in nodes if node.group == source.group]
                beside = [node.name for node in own if any(ref.node == source.name for ref in node.inputs)]
            else:
                beside = []
            apart = [node for node in beside or [source.name] if home[node] != home[taker.name]]
            if apart:
                raise UserError(
                    f"distribution {name} puts '{taker.name}', which takes a value of group '{source.group}', into "
                    f"fragment '{home[taker.name]}', and '{apart[0]}' into '{home[apart[0]]}'; expected them in one "
                    "fragment, where both groups' unrolls arrive together: use another distribution, such as coarse",
                    page="write-an-algorithm#several-policies",
                )


def check_learning(name: str, fragments: Sequence[PlacedFragment], staleness: Mapping[str, int], graph: Graph) -> None:
    """Refuses learners that cannot share a batch, and nodes in different fragments that must be in one."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    stepping = stepping_fragment(fragments)
    for fragment in fragments:
        nodes = [graph.nodes[node] for node in fragment.nodes]
        if learns(fragment, graph):
            _check_blocks(fragment, graph)
            _check_replays(fragment, graph)
        if learns(fragment, graph) and fragment.replicas > 1:
            if stepping is not fragment and stepping.replicas * stepping.env_splits % fragment.replicas:
                raise UserError(
                    f"{stepping.replicas} {stepping.name} workers do not divide over {fragment.replicas} "
                    f"{fragment.name}s; use a multiple of {fragment.replicas}",
                    page="performance#what-the-distributions-do",
                )
            outside = _fed_by(fragment, home, graph)
            if outside:
                raise UserError(
                    f"distribution {name} has {fragment.replicas} {fragment.name}s and {' and '.join(sorted(outside))} "
                    "elsewhere; several learners take trajectories only: put the node with them, or use 1"
                )
        applied = {node.group for node in nodes if node.traits.learns and not node.traits.takes_samples}
        computed = {node.group for node in nodes if node.traits.takes_samples and not node.traits.learns}
        if len(applied) > 1 and not computed:
            raise UserError(
                f"distribution {name}: '{fragment.name}' applies gradients of {' and '.join(sorted(applied))} that are "
                "computed elsewhere, expected those of one group; use another distribution, such as async"
            )
        if computed and not applied:
            bound = min(staleness[node.group] for node in nodes if node.group)
            stale = fragment.replicas - 1
            if stale > bound > 0:  # with 0, gradients are averaged at a barrier
                raise UserError(
                    f"{fragment.replicas} {fragment.name}s compute gradients side by side: while one is made, {stale} "
                    f"updates may pass; {algorithm_name(graph.algorithm)} tolerates {bound}: use at most {bound + 1} "
                    f"{fragment.name}s, or an algorithm with a higher max_staleness"
                )
    for node in graph.nodes.values():
        if len({home[replay].name for replay in node.replays}) > 1:
            raise UserError(
                f"distribution {name} spreads the replays that feed '{node.name}' over several fragments; "
                "put them into one"
            )
    for group in graph.spec.groups:
        homes = dict.fromkeys(home[node.name].name for node in graph.learners(group))
        if len(homes) > 1:
            raise UserError(
                f"distribution {name} spreads the nodes that learn for group '{group}' over fragments "
                f"{' and '.join(homes)}; they change one state: put them into one"
            )


def _check_blocks(fragment: PlacedFragment, graph: Graph) -> None:
    """Refuses a number of learners, or of their devices, that cannot take equally many column blocks."""
    found, blocks = sum(map(len, fragment.devices)), graph.column_blocks(fragment.nodes)
    if blocks % found:
        those = "devices" if fragment.replicas == 1 else f"{fragment.name}s"
        raise UserError(
            f"{found} {those}: every minibatch takes an equal share of {blocks} column blocks of "
            f"{plural(graph.envs // blocks, 'environment')}, and {those} take equally many; "
            f"use {learners_in_words(divisors(blocks), found)} {those}, "
            f"or envs= a multiple of {graph.envs_for(found, fragment.nodes)}",
            keywords=("envs",),
            page="performance#what-the-distributions-do",
        )


def _check_replays(fragment: PlacedFragment, graph: Graph) -> None:
    """Refuses replays that do not divide over learners, or their devices: each would need memory for the whole."""
    found, those = sum(map(len, fragment.devices)), "devices" if fragment.replicas == 1 else f"{fragment.name}s"
    for node in (graph.nodes[name] for name in fragment.nodes):
        if not node.traits.draws_batches:
            continue
        replay = node.sampling.replay
        if shared_axis(node.keeps, found) is None:
            below, above = replay.capacity // found * found, -(-replay.capacity // found) * found
            raise UserError(
                f"{found} {those}: '{node.name}' has capacity={replay.capacity}, of which {those} cannot have equal "
                f"parts, and each would need {human_bytes(tree_bytes(node.keeps))} for the whole; "
                f"use capacity={f'{below} or {above}' if below else above}",
                page="performance#what-the-distributions-do",
            )


def learner_counts(fragments: Sequence[PlacedFragment], graph: Graph) -> dict[str, tuple[int, ...]]:
    """By fragment that learns from what environments made: how many learners, or devices, could share it."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    stepping, found = stepping_fragment(fragments), dict[str, tuple[int, ...]]()
    for fragment in fragments:
        takes_samples = any(graph.nodes[node].traits.takes_samples for node in fragment.nodes)
        if learns(fragment, graph) and takes_samples and not _fed_by(fragment, home, graph):
            shares = fragment.compiled or stepping is fragment
            most = graph.envs if shares else stepping.replicas * stepping.env_splits
            found[fragment.name] = tuple(divisors(math.gcd(graph.column_blocks(fragment.nodes), most)))
    return found


def _fed_by(fragment: PlacedFragment, home: Mapping[str, PlacedFragment], graph: Graph) -> set[str]:
    """Kinds of node elsewhere that make one value, which several learners cannot share."""
    outside = [graph.nodes[node] for node, other in home.items() if other is not fragment]
    return {node.kind for node in outside if node.traits.feeds_one_learner}


def check_synchronisation(name: str, fragments: Sequence[PlacedFragment], slacks: Slacks, graph: Graph) -> None:
    """Refuses groups that synchronise differently in one worker, and servers that could not pause together."""
    waits = {group: "is asynchronous" if bound else "waits at a barrier" for group, bound in slacks.sums.items()}
    mixed = len({bool(limit) for limit in slacks.limit_iterations.values()}) > 1
    for fragment in fragments:
        nodes = [graph.nodes[node] for node in fragment.nodes]
        trained = dict.fromkeys(node.group for node in nodes if node.traits.trains)
        if len({waits[group] for group in trained}) > 1:
            differ = " and ".join(f"'{group}' {waits[group]}" for group in trained)
            raise UserError(
                f"distribution {name}: fragment '{fragment.name}' trains groups of which {differ}; one worker takes "
                "the same iterations of all its groups: put each group into its own fragment, or synchronise them alike"
            )
        if mixed and trained and fragment.steps_envs:
            raise UserError(
                f"distribution {name}: fragment '{fragment.name}' steps environments of all groups and trains "
                f"{' and '.join(trained)}, but groups synchronise differently; put the nodes that train elsewhere"
            )
    free_in_step = {group for group in slacks.step_synchronous if slacks.limit_iterations[group]}
    acted_for = {
        fragment.name: {node.group for node in graph.of_kind("act") if node.name in fragment.nodes}
        for fragment in fragments
        if not fragment.steps_envs
    }
    step_servers = [server for server, groups in acted_for.items() if groups & free_in_step]
    waiting = [group for group, limit in slacks.limit_iterations.items() if not limit]
    for server in step_servers:
        # Only a server that waits for the parameters of a synchronous group stops where the environments stop.
        if waiting and not acted_for[server] & {*waiting}:
            raise UserError(
                f"distribution {name}: fragment '{server}' acts in step for {' and '.join(acted_for[server])}, which "
                f"is asynchronous, while {' and '.join(waiting)} waits at a barrier; it could not pause with the "
                "environments: let it act for all groups, put rollouts with the environments, or leave out "
                "Barrier('step')"
            )
    if len(step_servers) > 1:
        raise UserError(
            f"distribution {name}: fragments {' and '.join(step_servers)} act for asynchronous groups in step with the "
            "same environments, and could not pause together; put them into one fragment, or leave out "
            "Barrier('step')"
        )
