"""Runs a fragment's nodes after the rollout: receives their inputs, runs them, and sends values to other workers.

It is one file because an iteration is followed through it from top to bottom: what it is given, its segments and
batches in their order, the programs that run them, and what is received and sent between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.graph.nodes import Graph, Node
from runnel.ops.episodes import Finished
from runnel.planning.channels import sent
from runnel.runtime.programs import replay_shards
from runnel.runtime.programs.carry import Carry, IterationMetrics
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.schedule import Credit, CutComponent, Segment, schedule
from runnel.runtime.programs.spmd import Spmd
from runnel.runtime.programs.stage import Stage, Values
from runnel.runtime.programs.unrolls import assemble_all
from runnel.runtime.programs.versions import Acted, together
from runnel.runtime.workers.ports import WorkerContext
from runnel.runtime.workers.stream_headers import ValueHeader
from runnel.transport.stream import Message
from runnel.types import PyTree, Trajectory

if TYPE_CHECKING:
    from runnel.runtime.workers.parameters import RemoteStates


class TrainerBatch(NamedTuple):
    """The unrolls of one iteration as received: one message for each block, or trajectories of a compiled unroll."""

    blocks: dict[str, list[Any]] | None  # by group: each block's `row_packing.PackedMessage`
    starts: np.ndarray  # [K] the first environment of each block
    versions: dict[str, np.ndarray]  # by group: [K] updates of the parameters that acted
    release: Callable[[], None]  # the blocks have been read
    acted: dict[str, Acted]  # by group: the versions of all of them
    unrolled: tuple[dict[str, Trajectory], Finished] | None = None  # in place of blocks
    begun: int = 0  # the oldest iteration whose parameters acted in them, by the learner's clock
    give_back: Callable[[], None] | None = None  # the blocks have not been read, and wait again
    fresh: np.bool_ | None = None  # whether it is learnt from for the first time; None: for the only time


@dataclass(frozen=True)
class TrainerSettings:
    """How a trainer synchronises with other workers, derived from the plan."""

    counts_episodes: bool = False  # this worker is the first to receive trajectories, and counts episodes
    awaits_priorities: bool = True  # at a barrier: the priorities of a batch must arrive before the next is drawn
    pauses_in_waits: bool = False  # it may pause wherever it waits, and continues there: no message is dropped
    taken_singly: bool = False  # its values are received one message at a time, in order of arrival
    in_rotation: int = 1  # how many workers take whole iterations in rotation, this one included
    copies_unrolls: bool = False  # to the device: slots are free while it works


class ValuePort(NamedTuple):
    """The ports by which values of one node are sent to, or received from, the workers of another fragment."""

    node: Node
    taker: Any  # PlacedFragment: the fragment that receives
    ports: Sequence[Any]  # InPort or OutPort


class Trainer:
    """The nodes after the rollout that one worker holds.

    It is one class because each of its steps reads and replaces the same carry, and counts the same iterations, batches
    and messages: they must agree, whichever node comes first and whatever has not arrived.
    """

    def __init__(
        self,
        context: WorkerContext,
        graph: Graph,
        stage: Stage,
        loop: Loop,
        carry: Carry,
        incoming: Sequence[ValuePort],
        outgoing: Sequence[ValuePort],
        settings: TrainerSettings,
        remote_states: RemoteStates | None = None,
        spmd: Spmd | None = None,
    ):
        self.context, self.graph, self.stage, self.loop = context, graph, stage, loop
        self.incoming = {value_port.node.name: value_port for value_port in incoming}
        self.outgoing = list(outgoing)
        self.settings, self.remote_states, self.spmd = settings, remote_states, spmd
        self.carry = carry
        self.schedule = schedule(graph, stage)
        self.credits = [Credit(cut.component) for cut in self.schedule.cut_components]
        self.iteration = int(carry.iteration)
        self.acted: dict[str, Acted] = {}  # by remote node, or rollout: versions behind this iteration's inputs
        self.metrics: list[IterationMetrics] = []  # of every program that ran since they were last read
        self.batches_left = 0  # of the present iteration, the present batch included
        self.messages_sent = self.iteration  # of gradients: each leads to a version of the state
        self.params_iteration = 0  # of the remote states that sent values were computed with
        self.covered = 0  # environment steps that the next message accounts for
        self._programs: dict[Any, Any] = {}
        self._late: list[tuple[CutComponent, Values]] = []  # batches whose priorities have not arrived

    def go_on(self, iteration: int) -> None:
        """Continues the work of a worker that has died, at an iteration."""
        self.iteration = iteration
        self.carry = self.carry._replace(iteration=np.int32(iteration))

    # One iteration

    def iterate(self, batch: TrainerBatch | None, steps: int) -> None:
        """Runs every node once, and those of replays as often as they may."""
        self.covered += steps
        values = self._once(batch)
        for cut, credit in zip(self.schedule.cut_components, self.credits, strict=True):
            self._run_batches(cut, credit, values)
        self.iteration += self.settings.in_rotation
        self.carry = self.carry._replace(iteration=np.int32(self.iteration))

    def repeat(self, batch: TrainerBatch) -> None:
        """Learns once more from the unrolls of the last iteration, without counting another. Needs all nodes here."""
        self._once(batch)

    def _once(self, batch: TrainerBatch | None) -> Values:
        """Runs the nodes that run once in an iteration; returns their values."""
        values: Values = {}
        self.batches_left = 1
        rollouts = {node.group: node.name for node in self.graph.of_kind("rollout")}
        self.acted = {rollouts[group]: acted for group, acted in batch.acted.items()} if batch is not None else {}
        if self.spmd is not None:
            assert batch is not None
            batch = self._spread(batch)
        for k, segment in enumerate(self.schedule.segments):
            values |= self._receive(segment)
            values |= self._run(segment, values, batch if k == 0 else None, k)
            self._send(segment, values)
        if batch is not None:
            self._read(batch)
        return values

    def refresh(self) -> None:
        """Reads the newest states of groups whose learner is another worker."""
        if self.remote_states is not None:
            ports = [port for values in self.outgoing for port in values.ports]
            self.params_iteration = self.remote_states.refresh(self.carry, self.iteration, self.messages_sent, ports)

    def at_work(self) -> bool:
        """Whether the device still computes the last iteration."""
        leaves: list[Any] = jax.tree.leaves(self.carry.states)
        return not all(leaf.is_ready() for leaf in leaves if hasattr(leaf, "is_ready"))

    def acted_in(self, group: str) -> Acted:
        """The versions of the unrolls that the present iteration is made from."""
        own = [acted for name, acted in self.acted.items() if self.graph.nodes[name].group == group]
        return together(own or self.acted.values())

    def _work(self) -> None:
        """Marks that the state is no longer that between two iterations."""
        if not self.settings.pauses_in_waits:
            self.context.between = False

    def apply_gathered(self, value_port: ValuePort, messages: Sequence[Message]) -> None:
        """Runs the nodes that receive values of several workers: one message, or the mean of several."""
        real = [message.arrays[1:] for message in messages if ValueHeader.unpack(message.header).has_value]
        if real:
            mean = real[0] if len(real) == 1 else [np.mean(leaves, axis=0) for leaves in zip(*real, strict=True)]
            values = {value_port.node.name: self.unpack(value_port, mean)}
            for k, segment in enumerate(self.schedule.all_segments):
                values |= self._run(segment, values, None, ("gathered", k))
                self._send(segment, values)
        self.iteration += 1
        self.carry = self.carry._replace(iteration=np.int32(self.iteration))

    def _run_batches(self, cut: CutComponent, credit: Credit, outside: Values) -> None:
        """All batches of an iteration. The worker that samples sends with each how many are left; 0: there is none."""
        if not cut.samples:
            self.batches_left = 2
            while self.batches_left > 1:
                self._run_batch(cut, outside)
            return
        self.batches_left = credit.insert()
        if not self.batches_left:
            self._pass(cut)
        while self.batches_left:
            self._run_batch(cut, outside)
            self.batches_left -= 1

    def _pass(self, cut: CutComponent) -> None:
        """An iteration without a batch: an empty message is sent nonetheless, so that no worker runs ahead."""
        replays = {replay.name for replay in cut.component.replays}
        for value_port in self.outgoing:
            # The worker that samples knows it.
            if value_port.node.name in cut.component.names and not replays & {*value_port.taker.nodes}:
                for port in value_port.ports:
                    if port.takes(self.iteration):
                        port.slots[port.claim(self.params_iteration)][0][...] = self.acted_in(value_port.node.group)
                        port.commit(ValueHeader(0, self.covered))
                self.covered = 0
                self.messages_sent += 1

    def _run_batch(self, cut: CutComponent, outside: Values) -> None:
        """One batch of a component that is cut."""
        self.refresh()
        if self.settings.taken_singly:  # the batch is as old as the parameters that are known when it is drawn
            self.acted = {n.name: Acted.of([self.carry.updates[n.group]]) for n in self.graph.of_kind("rollout")}
        values = dict(outside)
        if cut.samples:
            program = self._program(("sample", id(cut)), lambda: partial(self._sampled, cut))
            self._work()
            self.carry, drawn = program(self.carry)
            values |= drawn
            for replay in cut.component.replays:
                self._out(replay, values)
        for segment in cut.segments:
            values |= self._receive(segment)
            if not self.batches_left:
                self._pass(cut)
                return
            values |= self._run(segment, values, None, (id(cut), id(segment)))
            self._send(segment, values)
        if cut.awaits_priorities:
            self._late.append((cut, values))
            if self.settings.awaits_priorities:
                self._prioritise(*self._late.pop(0))
            else:
                self.take_late_priorities()
        if not self._learnt() and self.remote_states is None:
            # Versions are counted here too: keys derive from them, and must be those of a worker that also learns.
            self.carry = self.carry._replace(
                updates={group: np.int32(count + 1) for group, count in self.carry.updates.items()}
            )

    def take_late_priorities(self) -> bool:
        """Applies priorities that have arrived for earlier batches, in order; returns whether there were any."""
        before = len(self._late)
        while self._late_came():
            self._prioritise(*self._late.pop(0))
        return len(self._late) < before

    def await_input(self, ready: Callable[[], bool], cause: str) -> None:
        """Waits for an input; meanwhile takes priorities, which a learner must get rid of before it learns more.

        The input may never arrive: where another group's training has ended, actors step no more.
        """
        while self._late and not ready():
            self.context.wait(lambda: ready() or self._late_came() or None, cause)
            self.take_late_priorities()

    def _learnt(self) -> set[str]:
        return {node.group for node in self.stage.nodes if node.traits.learns}

    def _sampled(self, cut: CutComponent, carry: Carry) -> tuple[Carry, Values]:
        carry, values = self.stage.sample(carry, cut.component)
        return self._in_place(carry), values

    def _in_place(self, carry: Carry) -> Carry:
        """The replays, each of several learners with its own part."""
        if self.spmd is None or not carry.replays:
            return carry
        places = replay_shards.shardings(carry.replays, self.spmd.mesh)
        return carry._replace(replays=jax.lax.with_sharding_constraint(carry.replays, places))

    def _late_came(self) -> bool:
        """Whether the priorities of the oldest batch that waits for them have arrived."""
        if not self._late:
            return False
        cut, _ = self._late[0]
        return all(port.peek() for node in cut.awaits_priorities for port in self.incoming[node].ports)

    def _prioritise(self, cut: CutComponent, values: Values) -> None:
        for node in cut.awaits_priorities:
            values = {**values, node: self._take(self.incoming[node])[0]}
        program = self._program(
            ("priorities", id(cut)),
            lambda: lambda carry, v: self._in_place(self.stage.prioritise(carry, cut.component, v)),
        )
        needed = {*cut.awaits_priorities, *(replay.name for replay in cut.component.replays)}
        self.carry = program(self.carry, {name: values[name] for name in needed})

    # Programs

    def _program(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._programs:
            self._programs[key] = compiled = jax.jit(make(), donate_argnums=0)
            return partial(self._first_call, compiled)
        self.context.bell.beat()
        return self._programs[key]

    def _first_call(self, program: Callable[..., Any], *arguments: Any) -> Any:
        """Reports that it compiles: that may take far longer than any iteration."""
        with self.context.compiling():
            return program(*arguments)

    def _run(self, segment: Segment, values: Values, batch: TrainerBatch | None, key: Any) -> Values:
        """Runs a segment; returns the values of its nodes that are used later."""
        given = {name: values[name] for name in segment.inputs if name in values}
        wanted = self._wanted(segment)
        arguments: list[Any] = [given]
        if batch is not None:
            arguments += [batch.blocks, batch.starts, batch.versions, batch.unrolled, batch.fresh]
        else:
            arguments += [None] * 5
        program = self._program(("run", key), lambda: partial(self._segment, segment, wanted))
        self._work()
        self.carry, found, metrics = program(self.carry, *arguments)
        self.metrics.append(metrics)
        return found

    def _segment(
        self, segment: Segment, wanted: set[str], carry: Carry, values: Values, blocks: Any, starts: Any,
        versions: Any, unrolled: Any, fresh: Any,
    ) -> tuple[Carry, Values, IterationMetrics]:  # fmt: skip
        metrics = IterationMetrics(jnp.zeros((), jnp.int32), {}, {})
        if blocks is not None or unrolled is not None:
            if unrolled is None:
                unrolled = assemble_all(self.loop, blocks, starts, versions)  # type: ignore[arg-type]
            trajectories, finished = unrolled
            values = {**values, **self._by_rollout(trajectories)}
            if fresh is not None:  # the episodes of unrolls that were learnt from before are counted already
                finished = jax.tree.map(lambda x: jnp.where(fresh, x, jnp.zeros_like(x)), finished)
            if self.settings.counts_episodes and self.spmd is None:
                carry, metrics = self.stage.count(carry, finished)
        carry, values, metrics = self.stage.run(carry, segment.nodes, values, metrics)
        for component in segment.components:
            carry, metrics = self.stage.replayed(carry, component, values, metrics)
        return self._in_place(carry), {name: value for name, value in values.items() if name in wanted}, metrics

    def _by_rollout(self, trajectories: dict[str, Trajectory]) -> Values:
        names = {node.group: node.name for node in self.graph.of_kind("rollout")}
        return {names[group]: trajectory for group, trajectory in trajectories.items()}

    def _wanted(self, segment: Segment) -> set[str]:
        """The nodes of a segment whose values leave it."""
        own = {node.name for node in segment.nodes} | {node.name for node in self.graph.of_kind("rollout")}
        later = [other for other in self.schedule.all_segments if other is not segment]
        wanted = {value_port.node.name for value_port in self.outgoing}.union(*(other.inputs for other in later))
        for cut in self.schedule.cut_components:
            wanted |= {r.priorities.node for r in cut.component.replays if r.priorities is not None}
        return own & wanted

    # Learners in several processes

    def _spread(self, batch: TrainerBatch) -> TrainerBatch:
        """The unrolls of this worker as its shard of the arrays of all learners."""
        assert self.spmd is not None
        if batch.unrolled is None:
            program = self._program("assemble", lambda: self._assembled)
            unrolled = program(None, batch.blocks, batch.starts, batch.versions)
        else:
            unrolled = batch.unrolled
        trajectories, finished = unrolled
        spread = self.spmd.columns(trajectories), self.spmd.time_major(finished)
        if self.settings.counts_episodes:
            self._count_spread(spread[1])
        return batch._replace(blocks=None, unrolled=spread)

    def _assembled(self, _: None, blocks: Any, starts: Any, versions: Any) -> Any:
        return assemble_all(self.loop, blocks, starts, versions)

    def _count_spread(self, finished: Finished) -> None:
        """In a separate program: the learning program then exchanges only gradients."""
        program = self._program("count", lambda: self.stage.count)
        self.carry, metrics = program(self.carry, finished)
        self.metrics.append(metrics)

    def _read(self, batch: TrainerBatch) -> None:
        """The unrolls have been read: their memory may be written again."""
        if not self.settings.copies_unrolls and (batch.blocks is not None or self.spmd is not None):
            jax.block_until_ready(self.carry)
        batch.release()

    # Values from and to other workers

    def _receive(self, segment: Segment) -> Values:
        values: Values = {}
        for name in segment.receives:
            values[name], self.acted[name] = self._take(self.incoming[name])
        return values

    def _take(self, value_port: ValuePort) -> tuple[PyTree, Acted]:
        """The value of a remote node, or the parts of it that are used here; and the versions that it was made from."""
        (port,) = [port for port in value_port.ports if port.takes(self.iteration)]
        if not self._samples(value_port.node):
            self.await_input(port.peek, port.name)
        message = port.receive()
        self._work()
        if not self._samples(value_port.node):
            self.batches_left = ValueHeader.unpack(message.header).batches_left
        acted, *arrays = message.arrays
        value, made_from = self.unpack(value_port, arrays), Acted(*acted.tolist())
        port.release(message)
        return value, made_from

    def _samples(self, node: Node) -> bool:
        """Whether a node runs for batches that are drawn here."""
        return any(cut.samples and node.name in cut.component.names for cut in self.schedule.cut_components)

    def unpack(self, value_port: ValuePort, arrays: Sequence[np.ndarray]) -> PyTree:
        """A node's value with the parts that were sent; copies, because the slot is released."""
        refs = sent(self.graph, value_port.node, value_port.taker)
        rest, whole = list(arrays), TrainerParts()
        for ref in refs:
            leaves, structure = jax.tree.flatten(ref.type)
            part = jax.tree.unflatten(structure, [np.array(rest.pop(0)) for _ in leaves])
            if not ref.path:
                return part
            whole = whole.put(ref.path, part)
        return whole.tree

    def _send(self, segment: Segment, values: Values) -> None:
        for node in segment.nodes:
            if not node.traits.draws_batches:  # an iteration's segment only inserts into it
                self._out(node, values)

    def _out(self, node: Node, values: Values) -> None:
        for value_port in self.outgoing:
            if value_port.node.name != node.name:
                continue
            refs = sent(self.graph, node, value_port.taker)
            arrays = jax.tree.leaves([ref.take(values[node.name]) for ref in refs])
            for port in value_port.ports:
                if port.takes(self.iteration):
                    header = ValueHeader(self.batches_left, self.covered)
                    port.send(header, [self.acted_in(node.group), *jax.device_get(arrays)], self.params_iteration)
            self.covered = 0
            self.messages_sent += 1


class TrainerParts(NamedTuple):
    """Nested dicts that grow by paths: a node's value of which only some parts were sent."""

    tree: Any = {}  # noqa: RUF012  (never changed: `put` returns a new one)

    def put(self, path: tuple[str | int, ...], part: PyTree) -> TrainerParts:
        if not path:
            return TrainerParts(part)
        inner = TrainerParts(self.tree.get(path[0], {})).put(path[1:], part).tree
        return TrainerParts({**self.tree, path[0]: inner})
