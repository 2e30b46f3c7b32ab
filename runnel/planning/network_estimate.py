"""What crosses the network in an iteration, as the plan foretells it. Data only.

Bytes are those of messages on an encrypted connection: their arrays, and a header each. What TCP adds is not counted,
nor what compression saves. Two machines may also exchange gradients; that is JAX's own business and told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from runnel.graph.nodes import Graph, tree_bytes
from runnel.planning.channels import ParameterChannel, StreamSpec, Topology
from runnel.planning.plan import Plan, human_bytes, learns
from runnel.transport.stream import Schema, dtype_of
from runnel.transport.wire import alone_bytes, batches_bytes

HEADER_BYTES = alone_bytes()
"""What travels with a message besides its arrays, there and back. Less where several go together."""

FlowKind = Literal["request", "reply", "unroll", "value", "parameters"]


@dataclass(frozen=True)
class NetworkFlow:
    """All messages of a kind from one machine to another, in an iteration on average."""

    kind: FlowKind
    source: str
    target: str
    messages: float
    bytes: float  # with headers


@dataclass(frozen=True)
class NetworkEstimate:
    """All that crosses between machines in an iteration: every environment takes an unroll's steps in it.

    Of parameters it is the most: who runs ahead may skip some.
    """

    flows: tuple[NetworkFlow, ...]
    steps_per_iteration: int
    gradient_bytes: int = 0  # that learners on several machines all-reduce, by JAX itself, each gradient step

    @property
    def bytes_per_iteration(self) -> float:
        return sum(flow.bytes for flow in self.flows)

    @property
    def bytes_per_step(self) -> float:
        """For each step of an environment."""
        return self.bytes_per_iteration / self.steps_per_iteration

    def by_kind(self) -> dict[str, float]:
        """Bytes an iteration."""
        kinds = {kind: sum(flow.bytes for flow in self.flows if flow.kind == kind) for kind in get_args(FlowKind)}
        return {kind: count for kind, count in kinds.items() if count}

    def by_pair(self) -> dict[tuple[str, str], float]:
        """Bytes an iteration, by the machines they go from and to."""
        pairs: dict[tuple[str, str], float] = {}
        for flow in self.flows:
            pair = flow.source, flow.target
            pairs[pair] = pairs.get(pair, 0) + flow.bytes
        return pairs

    def json(self) -> dict[str, Any]:
        return {
            "bytes_per_iteration": self.bytes_per_iteration,
            "bytes_per_step": self.bytes_per_step,
            "gradient_bytes": self.gradient_bytes,
            "by_kind": self.by_kind(),
            "by_pair": [[source, target, count] for (source, target), count in self.by_pair().items()],
        }

    def text(self) -> str:
        """A line for people."""
        parts = [f"{kind} {_told(count / self.steps_per_iteration)}" for kind, count in self.by_kind().items()]
        told = f"{_told(self.bytes_per_step)} per environment step ({', '.join(parts)})" if parts else "nothing"
        if self.gradient_bytes:
            more = f"gradients of {human_bytes(self.gradient_bytes)} each gradient step, by JAX itself"
            told = f"{told}, and {more}" if parts else more
        return f"across machines: {told}"


def estimate_network(plan: Plan, graph: Graph, topology: Topology) -> NetworkEstimate:
    """What crosses between the machines of a plan."""
    totals: dict[tuple[FlowKind, str, str], tuple[float, float]] = {}
    for kind, source, target, messages, size in _flows(plan, graph, topology):
        if source != target:
            before = totals.get((kind, source, target), (0.0, 0.0))
            totals[kind, source, target] = before[0] + messages, before[1] + messages * size
    flows = tuple(NetworkFlow(*key, *total) for key, total in totals.items())
    return NetworkEstimate(flows, plan.steps_per_iteration, _gradient_bytes(plan, graph))


def message_bytes(schema: Schema) -> int:
    """What a message takes on the network."""
    return HEADER_BYTES + sum(math.prod(field.shape) * dtype_of(field).itemsize for field in schema)


def _flows(plan: Plan, graph: Graph, topology: Topology) -> Iterator[tuple[FlowKind, str, str, float, float]]:
    """Kind, machine, machine, messages an iteration and bytes a message."""
    for link in topology.links:
        times, size = _messages(plan, graph, link), float(message_bytes(link.schema))
        if link.kind == "reply" and link.group in plan.in_step:
            # Who is acted for in step is answered together, by machine.
            beside = (other for other in topology.links if (other.kind, other.source) == ("reply", link.source))
            together = sum(plan.host(other.target) == plan.host(link.target) for other in beside)
            size -= batches_bytes() * (1 - 1 / together)
        yield link.kind, plan.host(link.source), plan.host(link.target), times, size
    for board in topology.boards:
        times, size = _publications(plan, graph, topology, board), message_bytes(board.schema)
        for host in dict.fromkeys(plan.host(name) for name in board.targets):  # once, however many read it there
            yield "parameters", plan.host(board.source), host, times, size


def _messages(plan: Plan, graph: Graph, link: StreamSpec) -> float:
    """Messages an iteration. Replicas that take turns have their share of the iterations."""
    if link.kind in ("request", "reply"):
        return graph.unroll
    period = math.lcm(link.turns, link.source_turns)
    due = sum(i % link.turns == link.turn and i % link.source_turns == link.source_turn for i in range(period))
    rounds = _rounds(plan, graph, link) if link.kind == "value" else 1.0
    return rounds * due / period


def _rounds(plan: Plan, graph: Graph, link: StreamSpec) -> float:
    """How often in an iteration a node gives its value: once, or once for each batch of the replays before it."""
    node = graph.nodes[link.node]
    if not node.loops:
        return 1.0
    rate = next(edge.per_iteration for edge in graph.edges if edge.source == node.name and not edge.published)
    plays = plan.home("environment")
    if link.source in plays.workers():  # each from its share of the environments
        rate /= plays.replicas
    taker = next(fragment for fragment in plan.fragments if link.target in fragment.workers())
    samples = any(replay in taker.nodes for replay in node.loops)
    return rate if samples else max(rate, 1.0)  # an iteration without a batch is told too, but to who knows it


def _publications(plan: Plan, graph: Graph, topology: Topology, board: ParameterChannel) -> float:
    """How often in an iteration a learner publishes: once; or for each gradient, or each mean of all workers'."""
    given = [link for link in topology.links if link.target == board.source]
    plays = plan.home("environment")
    gradients = [link for link in given if link.kind == "value" and link.source in plays.workers()]
    if plays.replicas == 1 or not gradients or any(link.kind == "unroll" for link in given):
        return 1.0
    each = _messages(plan, graph, gradients[0])
    return each * len(gradients) if plan.limits[board.group] else each


def _gradient_bytes(plan: Plan, graph: Graph) -> int:
    count = 0
    for fragment in plan.fragments:
        if learns(fragment, graph) and len({plan.host(name) for name in fragment.workers()}) > 1:
            nodes = [graph.nodes[name] for name in fragment.nodes]
            count += sum(tree_bytes(graph.states[n.group].params) for n in nodes if n.traits.learns)
    return count


def _told(count: float) -> str:
    return human_bytes(count) if count >= 10 else f"{count:.2g} B"
