"""How the workers of a plan are connected: every stream and every parameter store, said in one function.

It is data, the same for every launcher and transport, and follows from the plan and the graph alone. Workers are
made from it (`runnel.runtime.workers.worker`); nothing else knows who talks to whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithm import asks_for
from runnel.graph.nodes import Graph, Node, Ref
from runnel.planning.pace import staleness_in_iterations
from runnel.planning.plan import BoundedStaleness, PlacedFragment, Plan, learns
from runnel.planning.schemas import ACTED, GroupTypes, reply_fields, request_fields, schema, unroll_fields
from runnel.transport.stream import Field, Schema, schema_of

MOST_SLOTS = 4
"""How many unrolls of a block may be on their way at most, however stale they may be."""


def group_types(graph: Graph) -> dict[str, GroupTypes]:
    """What the columns of each group see, do and tell."""
    types = {}
    for node in graph.of_kind("act"):
        act = node.output

        def column(tree: Any) -> tuple[Field, ...]:
            return tuple(Field(field.shape[1:], field.dtype) for field in schema_of(jax.tree.leaves(tree)))

        (action,) = column(act.action)
        real = np.dtype(jnp.result_type(float)).str
        types[node.group] = GroupTypes(
            graph.spec.groups[node.group], action, column(act.extras), column(act.memory), real
        )
    return types


@dataclass(frozen=True)
class EnvBlock:
    """A range of environments that one worker steps together."""

    number: int
    worker: str
    start: int
    stop: int
    split: int  # its place among the blocks of its worker

    @property
    def envs(self) -> range:
        return range(self.start, self.stop)


@dataclass(frozen=True)
class StreamSpec:
    """A stream from one worker to another."""

    kind: Literal["unroll", "request", "reply", "value"]
    source: str
    target: str
    schema: Schema
    slots: int
    group: str = ""
    block: int = -1  # of unroll, request and reply
    node: str = ""  # of value: whose
    turn: int = 0  # a target that takes turns takes part in iterations i with i % turns == turn
    turns: int = 1
    source_turn: int = 0  # and a source likewise
    source_turns: int = 1

    @property
    def name(self) -> str:
        what = f"{self.kind} {self.group}{self.node}".strip()
        number = f" {self.block}" if self.block >= 0 else ""
        return f"{self.source} -> {self.target}: {what}{number}"


@dataclass(frozen=True)
class ParameterChannel:
    """A parameter store: what a group has learnt, for all who act or map with it."""

    group: str
    whole: bool  # the learner's state, for who computes gradients; else its `params`
    schema: Schema
    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class WorkerSpec:
    """A worker's place."""

    name: str
    fragment: str
    replica: int
    light: bool  # plays host environments and nothing else: needs no JAX
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """All workers and what connects them."""

    posts: tuple[WorkerSpec, ...]
    blocks: tuple[EnvBlock, ...]
    links: tuple[StreamSpec, ...]
    boards: tuple[ParameterChannel, ...]

    def of(self, worker: str) -> tuple[list[StreamSpec], list[ParameterChannel]]:
        """What a worker holds an end of."""
        links = [link for link in self.links if worker in (link.source, link.target)]
        return links, [board for board in self.boards if worker == board.source or worker in board.targets]


def derive_channels(plan: Plan, graph: Graph, host: bool) -> Topology:
    """The topology of a plan. `host`: the environments are host environments."""
    homes = {node: fragment for fragment in plan.fragments for node in fragment.nodes}
    plays = homes["environment"]
    blocks = tuple(_blocks(plays))
    posts = tuple(
        WorkerSpec(name, fragment.name, i, host and _only_plays(fragment, graph), fragment.devices[i])
        for fragment in plan.fragments
        for i, name in enumerate(fragment.workers())
    )
    links = [
        *_exchanges(graph, homes, blocks),
        *_unrolls(plan, graph, homes, blocks),
        *_values(plan, graph, homes),
    ]
    return Topology(posts, blocks, tuple(links), tuple(_boards(graph, homes)))


def _only_plays(fragment: PlacedFragment, graph: Graph) -> bool:
    return all(graph.nodes[node].kind in ("environment", "rollout") for node in fragment.nodes)


def _blocks(plays: PlacedFragment) -> Iterator[EnvBlock]:
    number = 0
    for worker, (start, stop) in zip(plays.workers(), plays.environments, strict=True):
        size = (stop - start) // plays.env_splits
        for k in range(plays.env_splits):
            yield EnvBlock(number, worker, start + k * size, start + (k + 1) * size, k)
            number += 1


def _share(i: int, sources: int, targets: int) -> int:
    """Which target source i belongs to, where sources are spread evenly and in order."""
    return i * targets // sources


def server_of(acts: PlacedFragment, plays: PlacedFragment, block: EnvBlock) -> str:
    """Who acts for a block."""
    return acts.workers()[_share(plays.workers().index(block.worker), plays.replicas, acts.replicas)]


def _exchanges(graph: Graph, homes: dict[str, PlacedFragment], blocks: tuple[EnvBlock, ...]) -> Iterator[StreamSpec]:
    """Observations to who acts, and actions back, where that is another worker."""
    plays, types = homes["environment"], group_types(graph)
    for act in graph.of_kind("act"):
        acts, group = homes[act.name], act.group
        if acts is plays:
            continue
        served = homes[_rollout(graph, group).name] is acts
        for block in blocks:
            server, envs = server_of(acts, plays, block), len(block.envs)
            asked = schema(request_fields(types[group], envs, results=served))
            told = schema(reply_fields(types[group], envs, extras=not served))
            yield StreamSpec("request", block.worker, server, asked, 2, group, block.number)
            yield StreamSpec("reply", server, block.worker, told, 2, group, block.number)


def _unrolls(
    plan: Plan, graph: Graph, homes: dict[str, PlacedFragment], blocks: tuple[EnvBlock, ...]
) -> Iterator[StreamSpec]:
    """Trajectories, block by block, from where they are put together to all who take them."""
    plays, types = homes["environment"], group_types(graph)
    slots = min(staleness_in_iterations(plan, graph) + 1, MOST_SLOTS)
    for rollout in graph.of_kind("rollout"):
        rolls = homes[rollout.name]
        for taker in _takers(graph, homes, rollout):
            if taker is rolls:
                continue
            for block in blocks:
                source = block.worker if rolls is plays else server_of(rolls, plays, block)
                message = schema(unroll_fields(types[rollout.group], graph.unroll, len(block.envs)))
                workers = taker.workers()
                if learns(taker, graph):  # learners share the columns
                    to = workers[_share(block.number, len(blocks), taker.replicas)]
                    yield StreamSpec("unroll", source, to, message, slots, rollout.group, block.number)
                    continue
                for turn, to in enumerate(workers):
                    yield StreamSpec(
                        "unroll", source, to, message, slots, rollout.group, block.number, turn=turn,
                        turns=len(workers),
                    )  # fmt: skip


def sent(graph: Graph, node: Node, taker: PlacedFragment) -> list[Ref]:
    """The parts of a node's value that the nodes of another fragment take, each once."""
    refs: dict[tuple[str | int, ...], Ref] = {}
    for name in taker.nodes:
        other = graph.nodes[name]
        inputs = [*other.inputs, *([other.priorities] if other.priorities is not None else [])]
        refs |= {ref.path: ref for ref in inputs if ref.node == node.name}
    return [refs[path] for path in sorted(refs, key=str)]


def _values(plan: Plan, graph: Graph, homes: dict[str, PlacedFragment]) -> Iterator[StreamSpec]:
    """What other nodes give to nodes elsewhere."""
    slots = 2 if isinstance(plan.synchronisation, BoundedStaleness) else 1
    for node in graph.after_rollout():
        gives = homes[node.name]
        for taker in _takers(graph, homes, node):
            if taker is gives:
                continue
            message = (ACTED, *schema_of(jax.tree.leaves([ref.type for ref in sent(graph, node, taker)])))
            for i, source in enumerate(gives.workers()):
                for j, target in enumerate(taker.workers()):
                    # Workers that play have each their own, and begin the next when the last was taken.
                    turns, room = (1, 1) if gives.environments else (gives.replicas, slots)
                    yield StreamSpec(
                        "value", source, target, message, room, node=node.name, turn=j, turns=taker.replicas,
                        source_turn=i % turns, source_turns=turns,
                    )  # fmt: skip


def _boards(graph: Graph, homes: dict[str, PlacedFragment]) -> Iterator[ParameterChannel]:
    for learner in graph.of_kind("learn", "apply"):
        learns_, group = homes[learner.name], learner.group
        readers: dict[str, bool] = {}  # fragment: whether it needs the whole state
        for node in graph.nodes.values():
            home = homes[node.name]
            if node.group != group or home is learns_:
                continue
            if node.kind == "act" or (
                node.kind == "map" and any(asks_for(node.function, name) for name in ("params", "key"))
            ):
                readers.setdefault(home.name, False)
            elif node.kind == "gradient":
                readers[home.name] = True
            elif node.kind == "rollout" and homes[_act(graph, group).name] is not home:
                readers.setdefault(home.name, False)  # tells the version that its unrolls begin with
        if readers:
            whole = any(readers.values())
            state = graph.states[group]
            targets = [name for fragment in {id(h): h for h in homes.values()}.values() if fragment.name in readers
                       for name in fragment.workers()]  # fmt: skip
            message = schema_of(jax.tree.leaves(state if whole else state.params))
            yield ParameterChannel(group, whole, message, learns_.workers()[0], tuple(targets))


def _takers(graph: Graph, homes: dict[str, PlacedFragment], node: Node) -> list[PlacedFragment]:
    """The fragments whose nodes take what a node gives, the first first."""
    found: dict[str, PlacedFragment] = {}
    for other in graph.nodes.values():
        inputs = [*other.inputs, *([other.priorities] if other.priorities is not None else [])]
        if any(ref.node == node.name for ref in inputs):
            found.setdefault(homes[other.name].name, homes[other.name])
    return list(found.values())


def _act(graph: Graph, group: str) -> Node:
    return next(node for node in graph.of_kind("act") if node.group == group)


def _rollout(graph: Graph, group: str) -> Node:
    return next(node for node in graph.of_kind("rollout") if node.group == group)
