"""An estimate, from the plan, of the network traffic of an iteration. Data only.

Bytes are those of messages on an encrypted connection: their arrays, and a header each. What TCP adds is not counted,
nor what compression saves. Gradients that JAX exchanges between learners are estimated separately.
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
"""The bytes that a message adds to its arrays, in both directions. Fewer if several messages share a batch."""

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
    """All traffic between machines in an iteration, in which every environment takes an unroll's steps.

    For parameters it is an upper bound: asynchronous actors may skip versions.
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
        """One line for the user."""
        parts = [f"{kind} {_bytes_text(count / self.steps_per_iteration)}" for kind, count in self.by_kind().items()]
        text = f"{_bytes_text(self.bytes_per_step)} per environment step ({', '.join(parts)})" if parts else "nothing"
        if self.gradient_bytes:
            more = f"gradients of {human_bytes(self.gradient_bytes)} each gradient step, by JAX itself"
            text = f"{text}, and {more}" if parts else more
        return f"across machines: {text}"


def estimate_network(plan: Plan, graph: Graph, topology: Topology) -> NetworkEstimate:
    """The traffic between the machines of a plan."""
    totals: dict[tuple[FlowKind, str, str], tuple[float, float]] = {}
    for kind, source, target, messages, size in _flows(plan, graph, topology):
        if source != target:
            before = totals.get((kind, source, target), (0.0, 0.0))
            totals[kind, source, target] = before[0] + messages, before[1] + messages * size
    flows = tuple(NetworkFlow(*key, *total) for key, total in totals.items())
    return NetworkEstimate(flows, plan.steps_per_iteration, _gradient_bytes(plan, graph))


def message_bytes(schema: Schema) -> int:
    """The size of a message on the network."""
    return HEADER_BYTES + sum(math.prod(field.shape) * dtype_of(field).itemsize for field in schema)


def _flows(plan: Plan, graph: Graph, topology: Topology) -> Iterator[tuple[FlowKind, str, str, float, float]]:
    """Kind, machine, machine, messages an iteration and bytes a message."""
    for stream in topology.streams:
        times, size = _messages(plan, graph, stream), float(message_bytes(stream.schema))
        if stream.kind == "reply" and stream.group in plan.step_synchronous:
            # Replies to workers of one machine that step together share a batch.
            beside = (other for other in topology.streams if (other.kind, other.source) == ("reply", stream.source))
            together = sum(plan.host(other.target) == plan.host(stream.target) for other in beside)
            size -= batches_bytes() * (1 - 1 / together)
        yield stream.kind, plan.host(stream.source), plan.host(stream.target), times, size
    for store in topology.stores:
        times, size = _publications(plan, graph, topology, store), message_bytes(store.schema)
        for host in dict.fromkeys(plan.host(name) for name in store.targets):  # once, however many read it there
            yield "parameters", plan.host(store.source), host, times, size


def _messages(plan: Plan, graph: Graph, stream: StreamSpec) -> float:
    """Messages an iteration. Replicas in rotation each handle a share of the iterations."""
    if stream.kind in ("request", "reply"):
        return graph.unroll
    period = math.lcm(stream.source_rotation.size, stream.target_rotation.size)
    due = sum(stream.source_rotation.takes(i) and stream.target_rotation.takes(i) for i in range(period))
    times = _times_sent(plan, graph, stream) if stream.kind == "value" else 1.0
    return times * due / period


def _times_sent(plan: Plan, graph: Graph, stream: StreamSpec) -> float:
    """How often in an iteration a node sends its value: once, or once for each batch of the replays before it."""
    node = graph.nodes[stream.node]
    if not node.replays:
        return 1.0
    rate = next(edge.per_iteration for edge in graph.edges if edge.source == node.name and not edge.published)
    stepping = plan.stepping
    if stream.source in stepping.workers():  # each from its share of the environments
        rate /= stepping.replicas
    taker = next(fragment for fragment in plan.fragments if stream.target in fragment.workers())
    samples = any(replay in taker.nodes for replay in node.replays)
    return rate if samples else max(rate, 1.0)  # an iteration without a batch sends a message, unless the taker samples


def _publications(plan: Plan, graph: Graph, topology: Topology, store: ParameterChannel) -> float:
    """How often in an iteration a learner publishes: once; or for each gradient, or each mean of all workers'."""
    given = [stream for stream in topology.streams if stream.target == store.source]
    stepping = plan.stepping
    gradients = [stream for stream in given if stream.kind == "value" and stream.source in stepping.workers()]
    if stepping.replicas == 1 or not gradients or any(stream.kind == "unroll" for stream in given):
        return 1.0
    each = _messages(plan, graph, gradients[0])
    return each * len(gradients) if plan.limit_iterations[store.group] else each


def _gradient_bytes(plan: Plan, graph: Graph) -> int:
    count = 0
    for fragment in plan.fragments:
        if learns(fragment, graph) and len({plan.host(name) for name in fragment.workers()}) > 1:
            nodes = [graph.nodes[name] for name in fragment.nodes]
            count += sum(tree_bytes(graph.states[n.group].params) for n in nodes if n.traits.learns)
    return count


def _bytes_text(count: float) -> str:
    return human_bytes(count) if count >= 10 else f"{count:.2g} B"
