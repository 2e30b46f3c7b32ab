"""How the workers of a plan are connected: the streams and parameter stores of its cut edges.

Each cut edge of the plan has a channel; this module says which workers are at its ends, what its messages are and how
many are on their way. It is data, the same for every launcher and transport. Workers are made from it
(`runnel.runtime.workers.worker`); nothing else knows who talks to whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from runnel.graph.nodes import Graph, Node, Ref
from runnel.planning.cuts import CutEdge, PlacedFragment, learns
from runnel.planning.placement import served_by
from runnel.planning.plan import Plan
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


StreamKind = Literal["unroll", "request", "reply", "value"]


@dataclass(frozen=True)
class StreamSpec:
    """A stream from one worker to another."""

    kind: StreamKind
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
    blocks = tuple(_blocks(plan.home("environment")))
    posts = tuple(
        WorkerSpec(name, fragment.name, i, host and _only_plays(fragment, graph), fragment.devices[i])
        for fragment in plan.fragments
        for i, name in enumerate(fragment.workers())
    )
    opened = _Opening(plan, graph, blocks)
    # Several cut edges may share a channel: an unroll's memory travels with its first action.
    unique = {(cut.channel, cut.source, cut.target, cut.group, _whose(cut)): cut for cut in reversed(plan.cuts)}
    cuts = list(reversed(unique.values()))
    links = [link for cut in cuts for link in opened.streams(cut)]
    return Topology(posts, blocks, tuple(links), tuple(opened.stores(cuts)))


def _whose(cut: CutEdge) -> str:
    return cut.node if cut.channel == "value" else ""


def _only_plays(fragment: PlacedFragment, graph: Graph) -> bool:
    return all(graph.nodes[node].kind in ("environment", "rollout") for node in fragment.nodes)


def _blocks(plays: PlacedFragment) -> Iterator[EnvBlock]:
    number = 0
    for worker, (start, stop) in zip(plays.workers(), plays.environments, strict=True):
        size = (stop - start) // plays.env_splits
        for k in range(plays.env_splits):
            yield EnvBlock(number, worker, start + k * size, start + (k + 1) * size, k)
            number += 1


def server_of(acts: PlacedFragment, plays: PlacedFragment, block: EnvBlock) -> str:
    """The worker that acts for a block."""
    return acts.workers()[served_by(plays.workers().index(block.worker), plays.replicas, acts.replicas)]


def sent(graph: Graph, node: Node, taker: PlacedFragment) -> list[Ref]:
    """The parts of a node's value that the nodes of another fragment take, each once."""
    refs: dict[tuple[str | int, ...], Ref] = {}
    for name in taker.nodes:
        other = graph.nodes[name]
        refs |= {ref.path: ref for ref in other.sources if ref.node == node.name}
    return [refs[path] for path in sorted(refs, key=str)]


class _Opening:
    """Makes the streams of a cut edge, by its channel."""

    def __init__(self, plan: Plan, graph: Graph, blocks: tuple[EnvBlock, ...]):
        self.plan, self.graph, self.blocks = plan, graph, blocks
        self.types, self.plays = group_types(graph), plan.home("environment")
        self._streams = {"request": self._requests, "reply": self._replies, "unroll": self._unrolls,
                         "value": self._values}  # fmt: skip

    def streams(self, cut: CutEdge) -> Iterator[StreamSpec]:
        make = self._streams.get(cut.channel)
        return iter(()) if make is None else make(cut)

    def _requests(self, cut: CutEdge) -> Iterator[StreamSpec]:
        """Observations, to what acts for a block; with every step's results where its trajectory is put together."""
        acts, rolled = self.plan.fragment(cut.target), self._rolls(cut.group)
        for block in self.blocks:
            fields = request_fields(self.types[cut.group], len(block.envs), results=rolled == acts.name)
            to = server_of(acts, self.plays, block)
            yield StreamSpec("request", block.worker, to, schema(fields), 2, cut.group, block.number)

    def _replies(self, cut: CutEdge) -> Iterator[StreamSpec]:
        """Actions, back to the environments of a block; with extras where its trajectory is put together there."""
        acts, rolled = self.plan.fragment(cut.source), self._rolls(cut.group)
        for block in self.blocks:
            fields = reply_fields(self.types[cut.group], len(block.envs), extras=rolled != acts.name)
            server = server_of(acts, self.plays, block)
            yield StreamSpec("reply", server, block.worker, schema(fields), 2, cut.group, block.number)

    def _rolls(self, group: str) -> str:
        """The fragment that puts a group's trajectories together."""
        return self.plan.home(next(n.name for n in self.graph.of_kind("rollout") if n.group == group)).name

    def _unrolls(self, cut: CutEdge) -> Iterator[StreamSpec]:
        """Trajectories, block by block, from where they are put together."""
        rolls, taker = self.plan.fragment(cut.source), self.plan.fragment(cut.target)
        slots = min(self.plan.limits[cut.group] + 1, MOST_SLOTS)
        for block in self.blocks:
            source = block.worker if rolls is self.plays else server_of(rolls, self.plays, block)
            message = schema(unroll_fields(self.types[cut.group], self.graph.unroll, len(block.envs)))
            workers = taker.workers()
            if learns(taker, self.graph):  # learners share the columns
                to = workers[served_by(block.number, len(self.blocks), taker.replicas)]
                yield StreamSpec("unroll", source, to, message, slots, cut.group, block.number)
                continue
            for turn, to in enumerate(workers):
                yield StreamSpec(
                    "unroll", source, to, message, slots, cut.group, block.number, turn=turn, turns=len(workers)
                )

    def _values(self, cut: CutEdge) -> Iterator[StreamSpec]:
        """What other nodes give to nodes elsewhere."""
        gives, taker = self.plan.fragment(cut.source), self.plan.fragment(cut.target)
        refs = sent(self.graph, self.graph.nodes[cut.node], taker)
        message = (ACTED, *schema_of(jax.tree.leaves([ref.type for ref in refs])))
        slots = 2 if self.plan.limits[cut.group] else 1
        for i, source in enumerate(gives.workers()):
            for j, target in enumerate(taker.workers()):
                # Workers that step environments each have their own values, and begin the next once the last is taken.
                turns, room = (1, 1) if gives.environments else (gives.replicas, slots)
                yield StreamSpec(
                    "value", source, target, message, room, node=cut.node, turn=j, turns=taker.replicas,
                    source_turn=i % turns, source_turns=turns,
                )  # fmt: skip

    def stores(self, cuts: Sequence[CutEdge]) -> Iterator[ParameterChannel]:
        """One for each group that is learnt from elsewhere, with all workers that read it."""
        published = [cut for cut in cuts if cut.channel == "store"]
        for group in dict.fromkeys(cut.group for cut in published):
            own = [cut for cut in published if cut.group == group]
            readers = {cut.target for cut in own}
            whole = any(cut.what[0].startswith("state") for cut in own)
            state = self.graph.states[group]
            message = schema_of(jax.tree.leaves(state if whole else state.params))
            targets = [name for each in self.plan.fragments if each.name in readers for name in each.workers()]
            source = self.plan.fragment(own[0].source).workers()[0]
            yield ParameterChannel(group, whole, message, source, tuple(targets))
