"""Acting for environments that other workers play.

Under synchronous distributions a server acts for fixed, complete sets of environments in the order of their
indices, so that the same numbers meet in the same batch every time; under asynchronous ones it acts for whoever
has asked, in batches padded to a few sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.graph import Graph
from runnel.ops import random
from runnel.runtime import topology
from runnel.runtime.acting import Parameters, Policies
from runnel.runtime.blocks import group_types
from runnel.runtime.counting import Counter
from runnel.runtime.lanes import Kept
from runnel.runtime.loop import Loop, group_key
from runnel.runtime.messages import as_observation, leaves, parts, reply_fields, request_fields
from runnel.runtime.player import count
from runnel.runtime.ports import In, Out, Station, first_of
from runnel.transport.stream import Message, dtype_of
from runnel.types import Array, PyTree


class Client:
    """A block of environments as its server sees it, for one group.

    With `kept`, the server puts the block's trajectories together; without, the environments' worker does, and the
    server's replies tell it what learning wants to know.
    """

    def __init__(self, graph: Graph, group: str, block: topology.Block, request: In, reply: Out, kept: Kept | None):
        self.block, self.group, self.request, self.reply, self.kept = block, group, request, reply, kept
        self.types, self.steps = group_types(graph)[group], graph.unroll
        envs = len(block.envs)
        self._asked = request_fields(self.types, envs, results=kept is not None)
        told = reply_fields(self.types, envs, extras=kept is None)
        self._replies = [parts(told, arrays) for arrays in reply.slots]
        self.first = np.ones((self.steps + 1, envs), np.bool_)
        self.terminated = np.zeros((self.steps, envs), np.bool_)
        self.truncated = np.zeros((self.steps, envs), np.bool_)
        self.counter = Counter(envs, {group: self.types.agents.agents} if kept is not None else {}, self.types.real)
        self.unrolls = 0
        self.step = 0  # of the run, which the block shows
        self._message: Message | None = None

    def receive(self, t: int) -> list[np.ndarray]:
        """The leaves of what the block shows at step `t`; `t = T` is the first of the next unroll."""
        message = self.request.receive()
        self.step = message.tag
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
            for to, value in zip(slot.named["last_observation"], named["last_observation"], strict=True):
                to[t - 1] = value
        self.request.release(message)
        return seen

    def begin(self, version: int, memory: Sequence[Any]) -> None:
        """An unroll begins, of those that are put together here."""
        assert self.kept is not None
        self.first[0] = self.first[-1]
        self.kept.begin(self.unrolls, version)
        self.kept.remember(memory)

    def answer(self, t: int, action: np.ndarray, extras: Sequence[np.ndarray], memory: Sequence[np.ndarray]) -> None:
        """Replies to step `t`; `memory` is that before the step, and told with an unroll's first."""
        named = self._replies[self.reply.claim()]
        named["action"][0][...] = action
        if self.kept is not None:
            self.kept.slot.action[t][...] = action
            rows = self.kept.slot.extras[t]
        else:
            rows = named["extras"]
            if t == 0:
                for to, value in zip(named["memory"], memory, strict=True):
                    to[...] = value
        for to, value in zip(rows, extras, strict=True):
            to[...] = value
        self.reply.commit(tag=self.step)
        if self._message is not None:
            self.request.release(self._message)
            self._message = None

    def finish(self, discounts: dict[str, float | None]) -> None:
        """The unroll is complete."""
        if self.kept is not None:
            lanes = {self.group: self.kept}
            self.kept.finish(count(lanes, self.counter, discounts, self.terminated, self.truncated, self.first))
        self.unrolls += 1


class Server:
    """The policy of one group, for fixed sets of blocks: the first of every worker, then the second of every one."""

    def __init__(self, graph: Graph, clients: Sequence[Client], parameters: Parameters, seed: int):
        self.clients, self.steps = list(clients), graph.unroll
        self.discounts = {node.group: node.rollout.discount for node in graph.of_kind("rollout")}
        rings = sorted({client.block.ring for client in clients})
        self.sets = [_Set(graph, [c for c in clients if c.block.ring == ring], parameters, seed) for ring in rings]
        self.keeps = self.clients[0].kept is not None

    def open(self) -> None:
        """What every block shows before the first step, where trajectories are put together here."""
        if self.keeps:
            for client in self.clients:
                client.receive(self.steps)

    def begin(self, unroll: int) -> None:
        for each in self.sets:
            each.begin(unroll)

    def turn(self, t: int, ring: int) -> None:
        """Acts for one set at step `t`."""
        self.sets[ring].act(t)

    def end(self) -> None:
        """Takes what the last step gave, and completes the unroll."""
        for client in self.clients:
            if self.keeps:
                client.receive(self.steps)
            client.finish(self.discounts)


class _Set:
    """Blocks that are acted for together."""

    def __init__(self, graph: Graph, clients: Sequence[Client], parameters: Parameters, seed: int):
        self.clients = list(clients)
        self.group = clients[0].group
        self.agents = graph.spec.groups[self.group].agents
        envs = [index for client in clients for index in client.block.envs]
        self.policies = Policies(Loop(graph, share=tuple(envs)), [self.group], parameters, seed)
        types, space = clients[0].types, graph.spec.groups[self.group].observation
        self._buffer = [np.zeros((len(envs) * self.agents, *f.shape), dtype_of(f)) for f in types.observation]
        self._seen = self.policies.adopt({self.group: as_observation(space, self._buffer)})
        self._first = np.zeros(len(envs), np.bool_)
        sizes = np.cumsum([0, *(len(client.block.envs) for client in clients)])
        self._envs = [slice(a, b) for a, b in pairwise(sizes)]
        self.rows = [slice(a * self.agents, b * self.agents) for a, b in pairwise(sizes)]

    def begin(self, unroll: int) -> None:
        self.policies.begin(unroll)
        memory = [np.asarray(leaf) for leaf in self.policies.memory()[self.group]]
        for client, rows in zip(self.clients, self.rows, strict=True):
            if client.kept is not None:
                client.begin(self.policies.version, [leaf[rows] for leaf in memory])

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


class FreeServer:
    """The policy of one group, for whichever blocks have asked."""

    def __init__(self, station: Station, graph: Graph, clients: Sequence[Client], parameters: Parameters, seed: int):
        self.station, self.graph, self.clients, self.parameters = station, graph, list(clients), parameters
        self.group = clients[0].group
        self.loop = Loop(graph)
        self.envs, self.agents = len(clients[0].block.envs), graph.spec.groups[self.group].agents
        self.rows = self.envs * self.agents  # of a block
        self.by_port = {id(client.request): client for client in clients}
        self.places = {id(client): k for k, client in enumerate(clients)}
        self._seed = jnp.uint32(seed)
        # A row more than there are columns: padding reads and writes it.
        one = graph.algorithm.initial_memory(graph.spec.groups[self.group])
        total = len(clients) * self.rows + 1
        self.memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (total, *jnp.shape(x))), one)
        self.sizes = sorted({min(1 << k, len(clients)) for k in range(len(clients).bit_length() + 1)})
        self._buffers = {
            size: [np.zeros((size * self.rows, *f.shape), dtype_of(f)) for f in clients[0].types.observation]
            for size in self.sizes
        }
        self._act = jax.jit(self._act_rows, donate_argnums=2)

    def compile(self) -> None:
        """All sizes, before anybody waits."""
        _, params = self.parameters(0)
        for size in self.sizes:
            rows = np.full(size * self.rows, len(self.clients) * self.rows, np.int32)
            zeros = np.zeros(size * self.rows, np.int32)
            first = np.zeros(size * self.rows, np.bool_)
            _, _, self.memory = self._act(
                self._seed, params[self.group], self.memory, self._buffers[size], first, rows, zeros, zeros
            )

    def serve(self) -> None:
        """Acts once, for those that have asked."""
        ready = first_of(self.station, [client.request for client in self.clients], "observations")
        asking = [self.by_port[id(port)] for port in ready]
        size = next(size for size in self.sizes if size >= len(asking))
        buffer = self._buffers[size]
        rows = np.full((size, self.rows), len(self.clients) * self.rows, np.int32)
        index, step = np.zeros((size, self.rows), np.int32), np.zeros((size, self.rows), np.int32)
        first = np.zeros((size, self.rows), np.bool_)
        for k, client in enumerate(asking):
            place = self.places[id(client)]
            seen, span = client.receive(0), slice(k * self.rows, (k + 1) * self.rows)
            for to, value in zip(buffer, seen, strict=True):
                to[span] = value
            first[k] = client.first[0].repeat(self.agents)
            rows[k] = place * self.rows + np.arange(self.rows)
            index[k] = client.block.start * self.agents + np.arange(self.rows)
            step[k] = client.step
        _, params = self.parameters(0)
        acts, before, self.memory = self._act(
            self._seed, params[self.group], self.memory, buffer, first.ravel(), rows.ravel(), index.ravel(),
            step.ravel(),
        )  # fmt: skip
        action, *extras = [np.asarray(leaf) for leaf in acts]
        memory = [np.asarray(leaf) for leaf in before]
        for k, client in enumerate(asking):
            span, t = slice(k * self.rows, (k + 1) * self.rows), client.step % self.graph.unroll
            client.answer(t, action[span], [leaf[span] for leaf in extras], [leaf[span] for leaf in memory])
        self.station.counts["env_steps"] += len(asking) * self.envs
        self.station.counts["batches"] += 1

    def _act_rows(
        self, seed: Array, params: PyTree, memory: PyTree, seen: list[Array], first: Array, rows: Array,
        index: Array, step: Array,
    ) -> tuple[list[Array], list[Array], PyTree]:  # fmt: skip
        base = group_key(self.graph, seed, random.ACT, self.group)
        keys = jax.vmap(lambda s, i: random.column_keys(base, s, i[None])[0])(step, index)
        observation = as_observation(self.graph.spec.groups[self.group].observation, seen)
        own = jax.tree.map(lambda x: x[rows], memory)
        act = self.loop.act(self.group, params, observation, own, first, keys, index)
        memory = jax.tree.map(lambda x, new: x.at[rows].set(new), memory, act.memory)
        return [act.action, *jax.tree.leaves(act.extras)], jax.tree.leaves(own), memory
