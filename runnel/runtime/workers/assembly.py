"""Making a worker's parts from its place in the topology: what steps environments, what acts and what learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from runnel.environment import HostVector, JaxEnvironment
from runnel.graph.flow import trace
from runnel.graph.nodes import Graph, Node, NodeKind
from runnel.planning.channels import EnvBlock, ParameterChannel, StreamSpec, Topology, WorkerSpec, group_types
from runnel.planning.cuts import PlacedFragment, learns
from runnel.planning.pace import Pace, gathers, paces
from runnel.planning.plan import Plan
from runnel.runtime.programs.acting import LocalPolicies, ParameterSource
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.snapshots import NO_SNAPSHOTS, SnapshotSchedule
from runnel.runtime.programs.spmd import Spmd
from runnel.runtime.programs.versions import Leads, ParameterStamp
from runnel.runtime.recovery import block_checkpoint, worker_checkpoint
from runnel.runtime.recovery.block_checkpoint import BlockStart
from runnel.runtime.recovery.journal import BlockMemory
from runnel.runtime.workers.compiled_player import CompiledPlayer
from runnel.runtime.workers.inference import AsyncInferenceServer, InferenceClient, InferenceServer
from runnel.runtime.workers.lanes import LocalPolicyLane, RemotePolicyLane, RemoteRolloutLane
from runnel.runtime.workers.player import BlockState
from runnel.runtime.workers.ports import InPort, OutPort, WorkerContext
from runnel.transport.parameter_store import StoreReader, StoreWriter
from runnel.types import PyTree


@dataclass(frozen=True)
class StreamEnds:
    """A worker's ends of streams and stores."""

    streams: dict[StreamSpec, InPort | OutPort]
    readers: dict[str, tuple[ParameterChannel, StoreReader]]  # by group
    writers: dict[str, tuple[ParameterChannel, StoreWriter]]

    def outs(self, kind: str, **wanted: Any) -> list[OutPort]:
        return [port for spec, port in self.streams.items() if isinstance(port, OutPort) and _is(spec, kind, wanted)]

    def ins(self, kind: str, **wanted: Any) -> list[InPort]:
        return [port for spec, port in self.streams.items() if isinstance(port, InPort) and _is(spec, kind, wanted)]


def _is(stream: StreamSpec, kind: str, wanted: dict[str, Any]) -> bool:
    return stream.kind == kind and all(getattr(stream, name) == value for name, value in wanted.items())


class PublishedParameters(NamedTuple):
    """The part of a learner's state that a store publishes."""

    params: PyTree


@dataclass(frozen=True)
class Assignment:
    """A worker's task, and the channels, environments and state that it has for it.

    Its fields are one list because each worker takes from it what its nodes need.
    """

    context: WorkerContext
    run_graph: Graph  # of the run
    plan: Plan
    topology: Topology
    spec: WorkerSpec
    ends: StreamEnds
    seed: int
    environment: JaxEnvironment | None  # None: a host environment
    open_vector: Callable[[Sequence[int]], HostVector]
    memory: BlockMemory  # of its journals
    start: BlockStart
    spmd: Spmd | None = None  # where it is one of several learners
    snapshots: SnapshotSchedule = NO_SNAPSHOTS  # of learners

    @cached_property
    def fragment(self) -> PlacedFragment:
        return next(f for f in self.plan.fragments if f.name == self.spec.fragment)

    @cached_property
    def paces(self) -> dict[str, Pace]:
        """How the actors of each group of the run keep up with its learner."""
        return paces(self.plan, self.run_graph)

    @property
    def leads(self) -> Leads:
        return {group: pace.lead for group, pace in self.paces.items()}

    @cached_property
    def _pace(self) -> Pace:
        """The pace of the groups that are trained here, which have the same; or of the slowest group of the run."""
        groups = {node.group for node in self.training_nodes} or set(self.paces)
        return min((self.paces[group] for group in groups), key=lambda pace: pace.limit_iterations)

    @property
    def limit_iterations(self) -> int:
        """How many iterations an unroll may be behind; with 0, actors and learner wait for each other."""
        return self._pace.limit_iterations

    @property
    def free(self) -> bool:
        return self._pace.free

    @property
    def in_order(self) -> bool:
        """Whether iteration `i` is made of unroll `i` of every block."""
        return self._pace.in_order

    @cached_property
    def reuses(self) -> int:
        """How often the unrolls that are learnt from here may be; groups that are trained together share the lowest."""
        groups = {node.group for node in self.training_nodes if node.traits.learns}
        return min((self.plan.reuses[group] for group in groups), default=1)

    @property
    def pauses(self) -> bool:
        """Whether it may pause wherever it waits: of unrolls that are taken in order nothing is thrown away."""
        return self.free and self.in_order

    @property
    def catches_up(self) -> bool:
        """Whether it is asynchronous beside a synchronous group. When asked to pause, it first catches up with that
        group's learner."""
        return self.free and self.plan.mixed

    @property
    def asks_early(self) -> bool:
        """Whether a block may ask for its first actions while its neighbours still step: they are acted for on request,
        not in step with others."""
        return not self.plan.step_synchronous

    @property
    def gathered(self) -> bool:
        """Whether the values that this worker computes from its own unrolls are taken as they arrive."""
        return self.free and bool(self.training_nodes) and gathers(self.fragment) and not self.learns

    @cached_property
    def learns(self) -> bool:
        return learns(self.fragment, self.run_graph)

    @property
    def steps_envs(self) -> bool:
        return self.fragment.steps_envs

    @property
    def serves_actions(self) -> bool:
        """It acts for environments that other workers step."""
        return bool(self.groups("act")) and not self.steps_envs

    @cached_property
    def training_nodes(self) -> list[Node]:
        """Its nodes after the rollout."""
        return [node for node in self.run_graph.after_rollout() if node.name in self.fragment.nodes]

    @cached_property
    def graph(self) -> Graph:
        """That of the run; or, of workers that each compute from their own environments, that of their share."""
        if not (self.training_nodes and self.steps_envs and self.fragment.replicas > 1) or self.learns:
            return self.run_graph
        start, stop = self.fragment.environments[self.spec.replica]
        graph = self.run_graph
        return trace(graph.algorithm, graph.spec, stop - start, graph.frozen, graph.precision)

    @cached_property
    def blocks(self) -> list[EnvBlock]:
        return [block for block in self.topology.blocks if block.worker == self.spec.name]

    def groups(self, kind: NodeKind) -> list[str]:
        """The groups whose node of a kind is here."""
        return [node.group for node in self.run_graph.of_kind(kind) if node.name in self.fragment.nodes]

    @cached_property
    def consumed_groups(self) -> list[str]:
        """The groups whose trajectories nodes here take."""
        rollouts = {node.name: node.group for node in self.run_graph.of_kind("rollout")}
        refs = [ref for name in self.fragment.nodes for ref in self.run_graph.nodes[name].inputs]
        return list(dict.fromkeys(rollouts[ref.node] for ref in refs if ref.node in rollouts))

    @cached_property
    def counted_groups(self) -> list[str]:
        """The groups whose episodes are counted here: those that learn, where their trajectories are taken first."""
        first = {}
        for node in self.run_graph.nodes.values():
            for ref in node.inputs:
                first.setdefault(ref.node, node.name)
        rollouts = {node.group: node.name for node in self.run_graph.of_kind("rollout")}
        counted = [group for group in self.consumed_groups if group in self.run_graph.learning_groups]
        return [group for group in counted if first[rollouts[group]] in self.fragment.nodes]

    @cached_property
    def remote_groups(self) -> list[str]:
        """The groups that nodes here compute with and that are learnt elsewhere."""
        return [
            group for group in dict.fromkeys(node.group for node in self.training_nodes) if group in self.ends.readers
        ]

    def published_state(self, group: str) -> PyTree:
        """The types of a learner's state, as much of it as its parameter store holds."""
        state = self.run_graph.states[group]
        whole = group in self.ends.readers and self.ends.readers[group][0].whole
        return state if whole else PublishedParameters(state.params)


# Stepping environments


def make_blocks(a: Assignment, parameters: ParameterSource) -> list[BlockState]:
    """The worker's environments, stepped from the host."""
    types, steps, acted, rolled = group_types(a.run_graph), a.run_graph.unroll, a.groups("act"), a.groups("rollout")
    discounts = {node.group: node.rollout.discount for node in a.run_graph.of_kind("rollout")}
    blocks = []
    for place in a.blocks:
        lanes: dict[str, Any] = {}
        envs = len(place.envs)
        for group in a.run_graph.spec.groups:
            outs = a.ends.outs("unroll", group=group, block=place.number)
            if group in acted:
                lanes[group] = LocalPolicyLane(types[group], group, steps, envs, outs)
                continue
            (request,) = a.ends.outs("request", group=group, block=place.number)
            (reply,) = a.ends.ins("reply", group=group, block=place.number)
            if group in rolled:
                lanes[group] = RemotePolicyLane(types[group], group, steps, envs, outs, request, reply)
            else:
                lanes[group] = RemoteRolloutLane(types[group], group, steps, envs, request, reply)
        # What acting gives is copied to the lanes in their order, which need not be that of the nodes.
        local = [group for group in lanes if group in acted]
        acting = LocalPolicies(Loop(a.graph, share=place.envs), local, parameters, a.seed) if local else None
        block = BlockState(a.open_vector(place.envs), place.envs, steps, lanes, acting, discounts)
        if not block.replays:
            block.show()  # only then it is known what its state consists of
        journal = block_checkpoint.open_journal(
            block, a.memory, partial(worker_checkpoint.block_entry, block), new=not a.start.rejoins
        )
        if a.start.rejoins:
            block_checkpoint.rejoin(
                block, place.number, a.start.suspect, partial(worker_checkpoint.load_block, block, place)
            )
        else:
            worker_checkpoint.load_block(block, place, a.start.saved)
            journal.write(block.entry())
        blocks.append(block)
    block_checkpoint.report_cut_episodes(blocks, a.context.report_event)
    return blocks


def make_compiled_player(
    a: Assignment, parameters: ParameterSource, gate: Callable[[Callable[[], bool], int], ParameterStamp]
) -> CompiledPlayer | None:
    """The player of whole compiled unrolls; None unless environments and all policies are here and can be traced."""
    groups = list(a.run_graph.spec.groups)
    if a.environment is None or a.groups("act") != groups or a.groups("rollout") != groups:
        return None
    outs = {place.number: {g: a.ends.outs("unroll", group=g, block=place.number) for g in groups} for place in a.blocks}
    return CompiledPlayer(
        a.graph, a.environment, a.blocks, outs, parameters, a.seed, gate, a.context.bell.beat, a.memory, a.start,
    )  # fmt: skip


# Acting for others


def make_servers(a: Assignment, parameters: ParameterSource) -> list[InferenceServer | AsyncInferenceServer]:
    """One for each group whose policy is here. The environments are not."""
    servers: list[InferenceServer | AsyncInferenceServer] = []
    for group in a.groups("act"):
        rolled, types = group in a.groups("rollout"), group_types(a.run_graph)[group]
        clients = []
        for place in a.topology.blocks:
            for request in a.ends.ins("request", group=group, block=place.number):
                (reply,) = a.ends.outs("reply", group=group, block=place.number)
                outs = a.ends.outs("unroll", group=group, block=place.number)
                kept = LocalPolicyLane(types, group, a.run_graph.unroll, len(place.envs), outs) if rolled else None
                client = InferenceClient(a.run_graph, group, place, request, reply, kept)
                worker_checkpoint.load_client(client, a.start.saved)
                clients.append(client)
        if group not in a.plan.step_synchronous:
            deadline_us = a.fragment.deadline_us
            servers.append(AsyncInferenceServer(a.context, a.run_graph, clients, parameters, a.seed, deadline_us))
        else:
            servers.append(InferenceServer(a.run_graph, clients, parameters, a.seed))
        worker_checkpoint.load_server(servers[-1], a.start.saved)
    return servers
