"""Acting for environments that other workers step.

Under synchronous distributions a server acts for fixed, complete sets of environments in the order of their
indices, so that the same numbers are in the same batch every time; under asynchronous ones it acts for the requests
that have arrived, in batches padded to a few sizes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.graph.nodes import Graph
from runnel.ops import random
from runnel.planning import channels
from runnel.planning.channels import group_types
from runnel.planning.schemas import as_observation, each, empty, leaves, parts, reply_fields, request_fields
from runnel.runtime.programs import row_packing
from runnel.runtime.programs.acting import Given, LocalPolicies, ParameterSource
from runnel.runtime.programs.episode_counter import EpisodeCounter
from runnel.runtime.programs.loop import Loop, group_key
from runnel.runtime.programs.versions import ParameterStamp
from runnel.runtime.workers.lanes import LocalPolicyLane
from runnel.runtime.workers.player import count
from runnel.runtime.workers.ports import InPort, OutPort, WorkerContext
from runnel.runtime.workers.stream_headers import StepHeader
from runnel.transport.stream import Field, Message
from runnel.types import Array, PyTree


class InferenceClient:
    """A block of environments as its server sees it, for one group.

    With `kept`, the server assembles the block's trajectories; without, the environments' worker does, and the server's
    replies include the extras of acting that trajectories contain.
    """

    def __init__(
        self,
        graph: Graph,
        group: str,
        block: channels.EnvBlock,
        request: InPort,
        reply: OutPort,
        kept: LocalPolicyLane | None,
    ):
        self.block, self.group, self.request, self.reply, self.kept = block, group, request, reply, kept
        self.types, self.steps = group_types(graph)[group], graph.unroll
        envs = len(block.envs)
        self._asked = request_fields(self.types, envs, results=kept is not None)
        replied = reply_fields(self.types, envs, extras=kept is None)
        self._replies = [parts(replied, arrays) for arrays in reply.slots]
        self.first = np.ones((self.steps + 1, envs), np.bool_)
        self.terminated = np.zeros((self.steps, envs), np.bool_)
        self.truncated = np.zeros((self.steps, envs), np.bool_)
        self.counter = EpisodeCounter(
            envs, {group: self.types.agents.agents} if kept is not None else {}, self.types.real
        )
        self.unrolls = 0
        self.header = StepHeader(0)  # of the block's last request, and of its reply
        self._message: Message | None = None

    def receive(self, t: int) -> list[np.ndarray]:
        """The leaves of what the block shows at step `t`; `t = T` is the first of the next unroll."""
        message = self.request.receive()
        self.header = StepHeader.unpack(message.header)
        named = parts(self._asked, message.arrays)
        self.first[t] = named["first"][0]
        if self.kept is None:
            self._message = message  # read until the reply is made
            return named["observation"]
        seen = leaves(self.kept.seen(t))
        for to, value in zip(seen, named["observation"], strict=True):
            to[...] = value
        if t > 0:
            slot = self.kept.slot
            self.terminated[t - 1], self.truncated[t - 1] = named["terminated"][0], named["truncated"][0]
            slot.named["reward"][0][t - 1] = named["reward"][0]
            if "last_observation" in named:
                for to, value in zip(slot.named["last_observation"], named["last_observation"], strict=True):
                    to[t - 1] = value
        self.request.release(message)
        return seen

    def announce(self, stamp: ParameterStamp) -> None:
        """An unroll begins, with the parameters of a stamp or newer ones."""
        if self.kept is not None:
            self.first[0] = self.first[-1]
            self.kept.begin(self.unrolls, stamp)

    def begin(self, stamp: ParameterStamp, memory: Sequence[Any]) -> None:
        """It has begun with these."""
        if self.kept is not None:
            self.kept.acted_by(stamp)
            self.kept.remember(memory)

    def answer(self, t: int, action: np.ndarray, extras: Sequence[np.ndarray], memory: Sequence[np.ndarray]) -> None:
        """Replies to step `t`; `memory` is that before the step, and sent with an unroll's first step."""
        named = self._replies[self.reply.claim()]
        named["action"][0][...] = action
        if self.kept is not None:
            self.kept.slot.action[t][...] = action
            rows = self.kept.slot.extras[t]
        else:
            rows = named.get("extras", [])
            if t == 0 and "memory" in named:
                for to, value in zip(named["memory"], memory, strict=True):
                    to[...] = value
        for to, value in zip(rows, extras if rows else (), strict=True):
            to[...] = value
        self.reply.commit(self.header)
        if self._message is not None:
            self.request.release(self._message)
            self._message = None

    def finish(self, discounts: dict[str, float | None]) -> None:
        """The unroll is complete."""
        if self.kept is not None:
            lanes = {self.group: self.kept}
            self.kept.finish(count(lanes, self.counter, discounts, self.terminated, self.truncated, self.first))
        self.unrolls += 1


class InferenceServer:
    """The policy of one group, for fixed sets of blocks: the first of every worker, then the second of every one."""

    def __init__(self, graph: Graph, clients: Sequence[InferenceClient], parameters: ParameterSource, seed: int):
        self.clients, self.steps = list(clients), graph.unroll
        self.discounts = {node.group: node.rollout.discount for node in graph.of_kind("rollout")}
        splits = sorted({client.block.split for client in clients})
        self.sets = [_Set(graph, [c for c in clients if c.block.split == split], parameters, seed) for split in splits]
        self.keeps = self.clients[0].kept is not None

    def open(self) -> None:
        """Receives what every block observes before the first step, where trajectories are assembled here."""
        if self.keeps:
            for client in self.clients:
                client.receive(self.steps)

    def begin(self, unroll: int) -> None:
        for blocks in self.sets:
            blocks.begin(unroll)

    def act_split(self, t: int, split: int) -> None:
        """Acts for one set at step `t`."""
        self.sets[split].act(t)

    def end(self) -> None:
        """Takes the results of the last step, and completes the unroll."""
        for client in self.clients:
            if self.keeps:
                client.receive(self.steps)
            client.finish(self.discounts)

    def memories(self) -> list[tuple[InferenceClient, PyTree]]:
        """Every client with its rows of the recurrent memory."""
        return [pair for blocks in self.sets for pair in blocks.memories()]

    def restore(self, memories: Sequence[PyTree]) -> None:
        """Takes memories in the order of `memories()`."""
        rest = iter(memories)
        for blocks in self.sets:
            blocks.restore([next(rest) for _ in blocks.clients])


class _Set:
    """Blocks that are acted for together."""

    def __init__(self, graph: Graph, clients: Sequence[InferenceClient], parameters: ParameterSource, seed: int):
        self.clients = list(clients)
        self.group = clients[0].group
        self.agents = graph.spec.groups[self.group].agents
        envs = [index for client in clients for index in client.block.envs]
        self.policies = LocalPolicies(Loop(graph, share=tuple(envs)), [self.group], parameters, seed)
        types, space = clients[0].types, graph.spec.groups[self.group].observation
        self._buffer = empty(each(types.observation, len(envs) * self.agents))
        self._seen = self.policies.adopt({self.group: as_observation(space, self._buffer)})
        self._first = np.zeros(len(envs), np.bool_)
        sizes = np.cumsum([0, *(len(client.block.envs) for client in clients)])
        self._envs = [slice(a, b) for a, b in pairwise(sizes)]
        self.rows = [slice(a * self.agents, b * self.agents) for a, b in pairwise(sizes)]

    def begin(self, unroll: int) -> None:
        for client in self.clients:
            client.announce(self.policies.stamp)
        self.policies.begin(unroll)
        memory = [np.asarray(leaf) for leaf in self.policies.memory()[self.group]]
        for client, rows in zip(self.clients, self.rows, strict=True):
            client.begin(self.policies.stamp, [leaf[rows] for leaf in memory])

    def act(self, t: int) -> None:
        for client, rows, envs in zip(self.clients, self.rows, self._envs, strict=True):
            if client.kept is not None and t == 0:
                seen = leaves(client.kept.seen(0))
            else:
                seen = client.receive(t)
            for to, value in zip(self._buffer, seen, strict=True):
                to[rows] = value
            self._first[envs] = client.first[t]
        memory = [np.asarray(leaf) for leaf in self.policies.memory()[self.group]] if t == 0 else []
        action, *extras = self.policies.act(t, self._seen, self._first)
        for client, rows in zip(self.clients, self.rows, strict=True):
            client.answer(t, action[rows], [leaf[rows] for leaf in extras], [leaf[rows] for leaf in memory])

    def memories(self) -> list[tuple[InferenceClient, PyTree]]:
        memory = self.policies.memories[self.group]
        return [(client, _rows_of(memory, rows)) for client, rows in zip(self.clients, self.rows, strict=True)]

    def restore(self, memories: Sequence[PyTree]) -> None:
        memory = self.policies.memories[self.group]
        self.policies.memories = {self.group: _with_rows(memory, zip(self.rows, memories, strict=True))}


class InferenceFlight(NamedTuple):
    """A batch that is being acted for."""

    clients: list[InferenceClient]
    given: Given
    row: Array  # of bytes
    memory: list[Array]  # before the step


class AsyncInferenceServer:
    """The policy of one group, for whichever blocks have asked.

    Where another device than this processor acts, the next batch is put together and sent there before the last one
    is waited for. With a deadline, a batch departs when all blocks have asked whose last request is answered, or so
    long after the first of its requests was seen.
    """

    def __init__(
        self,
        context: WorkerContext,
        graph: Graph,
        clients: Sequence[InferenceClient],
        parameters: ParameterSource,
        seed: int,
        deadline_us: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.context, self.graph, self.clients, self.parameters = context, graph, list(clients), parameters
        self._deadline_s = None if deadline_us is None else deadline_us / 1e6
        self._clock = clock
        self._asked_at: float | None = None  # when the first request of the next batch was seen
        self.group = clients[0].group
        self.loop = Loop(graph)
        self.envs, self.agents = len(clients[0].block.envs), graph.spec.groups[self.group].agents
        self.rows = self.envs * self.agents  # of a block
        self.flight: InferenceFlight | None = None
        self._places = {id(client): place for place, client in enumerate(clients)}
        self._starts = np.asarray([client.block.start * self.agents for client in clients] + [0], np.int32)
        self._base = group_key(graph, jnp.uint32(seed), random.ACT, self.group)
        # A row more than there are columns: padding reads and writes it.
        one = graph.algorithm.for_group(self.group).initial_memory(graph.spec.groups[self.group])
        total = len(clients) * self.rows + 1
        self.memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (total, *jnp.shape(x))), one)
        self.sizes = sorted({min(1 << k, len(clients)) for k in range(len(clients).bit_length() + 1)})
        self._given = {size: Given(self.loop, {self.group: size * self.rows}) for size in self.sizes}
        # Two of each: one is filled while the other is still being sent.
        self._buffers = [{size: self._buffer(size) for size in self.sizes} for _ in range(2)]
        self.ahead = jax.default_backend() != "cpu"
        self._act = jax.jit(self._act_rows, donate_argnums=2)

    def _buffer(self, size: int) -> tuple[row_packing.PackedMessage, np.ndarray, list[np.ndarray]]:
        """Memory for the requests of `size` blocks: all of it; place, step and episode starts; and observations."""
        schema = (Field((size, 2 + self.envs), "<i4"), *each(self.clients[0].types.observation, size * self.rows))
        asked, *shown = arrays = empty(schema)
        return row_packing.whole(arrays, schema), asked, shown

    def _spans(self) -> list[slice]:
        """Each client's rows of the memory."""
        return [slice(k * self.rows, (k + 1) * self.rows) for k in range(len(self.clients))]

    def memories(self) -> list[tuple[InferenceClient, PyTree]]:
        """Every client with its rows of the recurrent memory."""
        return [(c, _rows_of(self.memory, rows)) for c, rows in zip(self.clients, self._spans(), strict=True)]

    def restore(self, memories: Sequence[PyTree]) -> None:
        """Takes memories in the order of `memories()`."""
        self.memory = _with_rows(self.memory, zip(self._spans(), memories, strict=True))

    def compile(self) -> None:
        """Compiles all sizes, before the first request."""
        _, params = self.parameters(0)
        for size in self.sizes:
            question, asked, _ = self._buffer(size)
            asked[:, 0] = len(self.clients)
            _, _, self.memory = self._act(self._base, params[self.group], self.memory, question)

    def serve(self) -> None:
        """Acts for those that have asked, if their batch is due, and answers those acted for before."""
        flight = None
        if self.due():
            asking = self._asking()
            full, self._asked_at = self._is_full(asking), None
            self.context.counts["full_batches" if full else "partial_batches"] += 1
            flight = self._depart(asking)
        self.land()
        self.flight = flight
        if not self.ahead:
            self.land()

    def due(self) -> bool:
        """Whether a batch departs now."""
        asking = self._asking()
        if not asking:
            self._asked_at = None
            return False
        if self._asked_at is None:
            self._asked_at = self._clock()
        return self._deadline_s is None or self._is_full(asking) or self.left_s() <= 0

    def left_s(self) -> float:
        """The seconds until the batch of those that have asked departs anyhow; infinite where none has."""
        if self._deadline_s is None or self._asked_at is None:
            return math.inf
        return self._asked_at + self._deadline_s - self._clock()

    def _asking(self) -> list[InferenceClient]:
        return [client for client in self.clients if client.request.peek()]

    def _is_full(self, asking: Sequence[InferenceClient]) -> bool:
        """Whether no other block can ask: a block asks again once it was answered."""
        waiting = 0 if self.flight is None else len(self.flight.clients)
        return len(asking) + waiting == len(self.clients)

    def land(self) -> None:
        """Answers those that have been acted for."""
        if self.flight is None:
            return
        clients, given, row, before = self.flight
        self.flight = None
        action, *extras = given.arrays(np.asarray(row))
        steps = [client.header.step % self.graph.unroll for client in clients]
        memory = [np.asarray(leaf) for leaf in before] if 0 in steps else []
        for k, (client, t) in enumerate(zip(clients, steps, strict=True)):
            span = slice(k * self.rows, (k + 1) * self.rows)
            client.answer(t, action[span], [leaf[span] for leaf in extras], [leaf[span] for leaf in memory])
        self.context.counts["env_steps"] += len(clients) * self.envs
        self.context.counts["batches"] += 1

    def _depart(self, clients: list[InferenceClient]) -> InferenceFlight:
        """Begins to act for some blocks."""
        size = next(size for size in self.sizes if size >= len(clients))
        self._buffers.reverse()
        question, asked, shown = self._buffers[0][size]
        asked[:, 0] = len(self.clients)
        for k, client in enumerate(clients):
            seen, span = client.receive(0), slice(k * self.rows, (k + 1) * self.rows)
            for to, value in zip(shown, seen, strict=True):
                to[span] = value
            asked[k, 0], asked[k, 1], asked[k, 2:] = self._places[id(client)], client.header.step, client.first[0]
        _, params = self.parameters(0)
        row, before, self.memory = self._act(self._base, params[self.group], self.memory, question)
        row.copy_to_host_async()
        return InferenceFlight(clients, self._given[size], row, before)

    def _act_rows(
        self, base: Array, params: PyTree, memory: PyTree, question: row_packing.PackedMessage
    ) -> tuple[Array, list[Array], PyTree]:
        asked, *seen = row_packing.apart(question)
        place, step, first = asked[:, 0], jnp.repeat(asked[:, 1], self.rows), asked[:, 2:].astype(jnp.bool_)
        each_row = jnp.arange(self.rows, dtype=jnp.int32)
        rows = jnp.minimum(place[:, None] * self.rows + each_row, len(self.clients) * self.rows).ravel()
        index = (jnp.asarray(self._starts)[place][:, None] + each_row).ravel()
        keys = jax.vmap(lambda s, i: random.column_keys(base, s, i[None])[0])(step, index)
        observation = as_observation(self.graph.spec.groups[self.group].observation, seen)
        own = jax.tree.map(lambda x: x[rows], memory)
        began = jnp.repeat(first, self.agents, axis=1).ravel()
        act = self.loop.act(self.group, params, observation, own, began, keys, index)
        memory = jax.tree.map(lambda x, new: x.at[rows].set(new), memory, act.memory)
        return row_packing.packed([act.action, *jax.tree.leaves(act.extras)]), jax.tree.leaves(own), memory


def _rows_of(memory: PyTree, rows: slice) -> PyTree:
    return jax.tree.map(lambda x: x[rows], memory)


def _with_rows(memory: PyTree, parts: Iterable[tuple[slice, PyTree]]) -> PyTree:
    for rows, part in parts:
        memory = jax.tree.map(lambda x, new, rows=rows: x.at[rows].set(new), memory, part)
    return memory
