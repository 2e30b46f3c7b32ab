"""How the workers of a plan are connected: the streams and parameter stores of its cut edges.

Each cut edge of the plan has a channel; this module says which workers are at its ends, what its messages are and how
many are on their way. It is data, the same for every launcher and transport. Workers are made from it
(`runnel.runtime.workers.worker`); no other module decides which workers are connected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.graph.kinds import StreamKind
from runnel.graph.nodes import Graph, Node, Ref
from runnel.planning.cuts import CutEdge, PlacedFragment, learns
from runnel.planning.placement import served_by
from runnel.planning.plan import Plan
from runnel.planning.rotation import EVERY, Rotation
from runnel.planning.schemas import ACTED, GroupTypes, reply_fields, request_fields, schema, unroll_fields
from runnel.transport.stream import Field, Schema, schema_of

MOST_SLOTS = 4
"""How many unrolls of a block may be on their way at most, however stale they may be."""


def group_types(graph: Graph) -> dict[str, GroupTypes]:
    """The array types of each group's columns: observations, actions, extras and memory."""
    types = {}
    for node in graph.of_kind("act"):
        act = node.output

        def column(tree: Any) -> tuple[Field, ...]:
            return tuple(Field(field.shape[1:], field.dtype) for field in schema_of(jax.tree.leaves(tree)))

        (action,) = column(act.action)
        real = np.dtype(jnp.result_type(float)).str
        types[node.group] = GroupTypes(
            graph.spec.groups[node.group], action, column(act.extras), column(act.memory), real,
            graph.only("rollout", node.group).rollout.omits,
        )  # fmt: skip
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

    kind: StreamKind
    source: str
    target: str
    schema: Schema
    slots: int
    group: str = ""
    block: int = -1  # of unroll, request and reply
    node: str = ""  # of value: whose
    source_rotation: Rotation = EVERY  # the iterations that the source takes
    target_rotation: Rotation = EVERY

    @property
    def name(self) -> str:
        what = f"{self.kind} {self.group}{self.node}".strip()
        number = f" {self.block}" if self.block >= 0 else ""
        return f"{self.source} -> {self.target}: {what}{number}"


@dataclass(frozen=True)
class ParameterChannel:
    """A parameter store: the parameters of a group, for all workers that act or map with them."""

    group: str
    whole: bool  # the learner's whole state, for workers that compute gradients; else its `params`
    schema: Schema
    source: str
    targets: tuple[str, ...]


@dataclass(frozen=True)
class WorkerSpec:
    """A worker, and where it runs."""

    name: str
    fragment: str
    replica: int
    env_only: bool  # steps host environments and nothing else: needs no JAX
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """All workers and what connects them."""

    workers: tuple[WorkerSpec, ...]
    blocks: tuple[EnvBlock, ...]
    streams: tuple[StreamSpec, ...]
    stores: tuple[ParameterChannel, ...]

    def of(self, worker: str) -> tuple[list[StreamSpec], list[ParameterChannel]]:
        """The streams and stores that a worker holds an end of."""
        streams = [stream for stream in self.streams if worker in (stream.source, stream.target)]
        return streams, [store for store in self.stores if worker == store.source or worker in store.targets]


def derive_channels(plan: Plan, graph: Graph, host: bool) -> Topology:
    """The topology of a plan. `host`: the environments are host environments."""
    blocks = tuple(_blocks(plan.stepping))
    workers = tuple(
        WorkerSpec(name, fragment.name, i, host and _only_steps_environments(fragment, graph), fragment.devices[i])
        for fragment in plan.fragments
        for i, name in enumerate(fragment.workers())
    )
    opened = _Opening(plan, graph, blocks)
    # Several cut edges may share a channel: an unroll's memory travels with its first action.
    unique = {(cut.channel, cut.source, cut.target, cut.group, _whose(cut)): cut for cut in reversed(plan.cuts)}
    cuts = list(reversed(unique.values()))
    streams = [stream for cut in cuts for stream in opened.streams(cut)]
    return Topology(workers, blocks, tuple(streams), tuple(opened.stores(cuts)))


def _whose(cut: CutEdge) -> str:
    return cut.node if cut.channel == "value" else ""


def _only_steps_environments(fragment: PlacedFragment, graph: Graph) -> bool:
    return all(graph.nodes[node].kind in ("environment", "rollout") for node in fragment.nodes)


def _blocks(stepping: PlacedFragment) -> Iterator[EnvBlock]:
    number = 0
    for worker, (start, stop) in zip(stepping.workers(), stepping.environments, strict=True):
        size = (stop - start) // stepping.env_splits
        for k in range(stepping.env_splits):
            yield EnvBlock(number, worker, start + k * size, start + (k + 1) * size, k)
            number += 1


def server_of(acts: PlacedFragment, stepping: PlacedFragment, block: EnvBlock) -> str:
    """The worker that acts for a block."""
    return acts.workers()[served_by(block.number // stepping.env_splits, stepping.replicas, acts.replicas)]


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
        self.types, self.stepping = group_types(graph), plan.stepping
        self._streams = {"request": self._requests, "reply": self._replies, "unroll": self._unrolls,
                         "value": self._values}  # fmt: skip

    def streams(self, cut: CutEdge) -> Iterator[StreamSpec]:
        make = self._streams.get(cut.channel)
        return iter(()) if make is None else make(cut)

    def _requests(self, cut: CutEdge) -> Iterator[StreamSpec]:
        """Observations, to the worker that acts for a block; with every step's results if it builds the trajectory."""
        acts, rolled = self.plan.fragment(cut.target), self._rolls(cut.group)
        for block in self.blocks:
            fields = request_fields(self.types[cut.group], len(block.envs), results=rolled == acts.name)
            to = server_of(acts, self.stepping, block)
            yield StreamSpec("request", block.worker, to, schema(fields), 2, cut.group, block.number)

    def _replies(self, cut: CutEdge) -> Iterator[StreamSpec]:
        """Actions, back to the environments of a block; with extras if the trajectory is built there."""
        acts, rolled = self.plan.fragment(cut.source), self._rolls(cut.group)
        for block in self.blocks:
            fields = reply_fields(self.types[cut.group], len(block.envs), extras=rolled != acts.name)
            server = server_of(acts, self.stepping, block)
            yield StreamSpec("reply", server, block.worker, schema(fields), 2, cut.group, block.number)

    def _rolls(self, group: str) -> str:
        """The fragment that builds a group's trajectories."""
        return self.plan.home(self.graph.only("rollout", group).name).name

    def _unrolls(self, cut: CutEdge) -> Iterator[StreamSpec]:
        """Trajectories, block by block, from the workers that build them."""
        rolls, taker = self.plan.fragment(cut.source), self.plan.fragment(cut.target)
        slots = min(self.plan.limit_iterations[cut.group] + 1, MOST_SLOTS)
        for block in self.blocks:
            source = block.worker if rolls is self.stepping else server_of(rolls, self.stepping, block)
            message = schema(unroll_fields(self.types[cut.group], self.graph.unroll, len(block.envs)))
            workers = taker.workers()
            if learns(taker, self.graph):  # learners share the columns
                to = workers[served_by(block.number, len(self.blocks), taker.replicas)]
                yield StreamSpec("unroll", source, to, message, slots, cut.group, block.number)
                continue
            for place, to in enumerate(workers):
                yield StreamSpec(
                    "unroll", source, to, message, slots, cut.group, block.number,
                    target_rotation=Rotation(place, len(workers)),
                )  # fmt: skip

    def _values(self, cut: CutEdge) -> Iterator[StreamSpec]:
        """Values of other nodes, for nodes of other fragments."""
        gives, taker = self.plan.fragment(cut.source), self.plan.fragment(cut.target)
        refs = sent(self.graph, self.graph.nodes[cut.node], taker)
        message = (ACTED, *schema_of(jax.tree.leaves([ref.type for ref in refs])))
        slots = 2 if self.plan.limit_iterations[cut.group] else 1
        for i, source in enumerate(gives.workers()):
            for j, target in enumerate(taker.workers()):
                # Workers that step environments each have their own values, and begin the next once the last is taken.
                taken, room = (EVERY, 1) if gives.environments else (Rotation(i, gives.replicas), slots)
                yield StreamSpec(
                    "value", source, target, message, room, node=cut.node, source_rotation=taken,
                    target_rotation=Rotation(j, taker.replicas),
                )  # fmt: skip

    def stores(self, cuts: Sequence[CutEdge]) -> Iterator[ParameterChannel]:
        """One for each group whose parameters are read by other fragments, with all workers that read them."""
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
