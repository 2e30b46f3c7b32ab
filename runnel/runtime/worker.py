"""A worker: one replica of a fragment. What it does follows from its nodes and the streams it holds.

There are three things a worker can do, and it does those that its nodes ask for: play environments, act for
environments that others play, and run the nodes after the rollout. Nothing here knows a distribution.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import HostVector, JaxEnvironment
from runnel.flow import trace
from runnel.graph import Graph, Kind
from runnel.ops import episodes as ops_episodes
from runnel.plan import Placed, Plan, learns
from runnel.runtime import parts, totals
from runnel.runtime.acting import Policies
from runnel.runtime.blocks import group_types
from runnel.runtime.carry import Carry
from runnel.runtime.compiled_player import CompiledPlayer
from runnel.runtime.intake import Intake, Taken
from runnel.runtime.loop import Loop
from runnel.runtime.player import Asked, Block, Kept, Player, Served
from runnel.runtime.ports import REPORT_S, In, Out, Station, first_of
from runnel.runtime.serving import Client, FreeServer, Server
from runnel.runtime.spmd import Spmd
from runnel.runtime.stage import Stage, after_rollout
from runnel.runtime.topology import Board, Link, Post, Topology, staleness_in_iterations
from runnel.runtime.trainer import Batch, Trainer, Valve
from runnel.transport.store import StoreReader, StoreWriter
from runnel.types import PyTree


class Published(NamedTuple):
    """A learner's state as far as it is known here."""

    params: PyTree


@dataclass(frozen=True)
class Ends:
    """A worker's ends of streams and stores."""

    links: dict[Link, In | Out]
    readers: dict[str, tuple[Board, StoreReader]]  # by group
    writers: dict[str, tuple[Board, StoreWriter]]

    def outs(self, kind: str, **wanted: Any) -> list[Out]:
        return [port for link, port in self.links.items() if isinstance(port, Out) and _is(link, kind, wanted)]

    def ins(self, kind: str, **wanted: Any) -> list[In]:
        return [port for link, port in self.links.items() if isinstance(port, In) and _is(link, kind, wanted)]


def _is(link: Link, kind: str, wanted: dict[str, Any]) -> bool:
    return link.kind == kind and all(getattr(link, name) == value for name, value in wanted.items())


class Worker:
    """One replica of a fragment, at work."""

    def __init__(
        self,
        station: Station,
        graph: Graph,
        plan: Plan,
        topology: Topology,
        post: Post,
        ends: Ends,
        seed: int,
        environment: JaxEnvironment | None,
        open_vector: Callable[[Sequence[int]], HostVector],
        saved: parts.Arrays | None = None,
        spmd: Spmd | None = None,
    ):
        self.station, self.plan, self.topology, self.post, self.ends = station, plan, topology, post, ends
        self.fragment: Placed = next(f for f in plan.fragments if f.name == post.fragment)
        self.seed, self.environment, self.open_vector, self.spmd = seed, environment, open_vector, spmd
        self.saved = saved or {}
        self.limit = staleness_in_iterations(plan, graph)
        self.free = self.limit > 0  # nobody may be behind: everybody waits for everybody
        self.whole = graph  # of the run; `graph` is of this worker's share where it learns from that alone
        after = [node for node in after_rollout(graph) if node.name in self.fragment.nodes]
        self.learning = learns(self.fragment, graph)
        self.plays = "environment" in self.fragment.nodes
        if after and self.plays and self.fragment.replicas > 1 and not self.learning:
            start, stop = self.fragment.environments[post.replica]
            graph = trace(graph.algorithm, graph.spec, stop - start)
        self.graph = graph
        self.blocks = [block for block in topology.blocks if block.worker == post.name]
        self.held: dict[str, PyTree] = {}  # by group: params to act with, as read from a store
        self.read_at: dict[str, int] = {}  # by group: the iteration of what was read last, and its version
        self.versions: dict[str, int] = {}
        self.updates_at: dict[int, dict[str, int]] = {}  # by iteration: the versions then
        self.until, self.target, self.reached = 0, float("inf"), False
        self.env_steps, self.staleness = int(self.saved.get("env_steps", 0)), _Staleness()
        self.episodes = 0
        self.read: list[Callable[[], None]] = []  # unrolls that were learnt from, to be released
        self.ahead: Batch | None = None  # the next batch, where it was taken while the device was at work
        self.copies = jax.default_backend() != "cpu"  # what goes to the device is copied; the CPU reads slots in place
        self.trainer = self._trainer() if after else None
        self.servers = self._servers()
        self.player = self._player() if self.plays else None
        self._reported = 0.0

    # Making the parts

    def _groups(self, kind: Kind) -> list[str]:
        return [node.group for node in self.whole.of_kind(kind) if node.name in self.fragment.nodes]

    def _discounts(self) -> dict[str, float | None]:
        return {node.group: node.rollout.discount for node in self.whole.of_kind("rollout")}

    def _player(self) -> Player | CompiledPlayer:
        acted, rolled = self._groups("act"), self._groups("rollout")
        groups = list(self.whole.spec.groups)
        if self.environment is not None and acted == groups == rolled:
            outs = {b.number: {g: self._unroll_outs(g, b.number) for g in groups} for b in self.blocks}
            return CompiledPlayer(
                self.graph, self.environment, self.blocks, outs, self._parameters, self.seed, self._ready, self.saved
            )
        types, steps = group_types(self.whole), self.graph.unroll
        blocks = []
        for own in self.blocks:
            lanes: dict[str, Any] = {}
            for group in groups:
                outs, envs = self._unroll_outs(group, own.number), len(own.envs)
                if group in acted:
                    lanes[group] = Kept(types[group], group, steps, envs, outs)
                    continue
                (request,) = self.ends.outs("request", group=group, block=own.number)
                (reply,) = self.ends.ins("reply", group=group, block=own.number)
                if group in rolled:
                    lanes[group] = Asked(types[group], group, steps, envs, outs, request, reply)
                else:
                    lanes[group] = Served(types[group], group, steps, envs, request, reply)
            acting = None
            if acted:
                acting = Policies(Loop(self.graph, share=own.envs), acted, self._parameters, self.seed)
            block = Block(self.open_vector(own.envs), own.envs, steps, lanes, acting, self._discounts())
            parts.load_block(block, own, self.saved)
            blocks.append(block)
        return Player(blocks, self._gate, self._early, self._started, asks_count=self.free)

    def _unroll_outs(self, group: str, block: int) -> list[Out]:
        return self.ends.outs("unroll", group=group, block=block)

    def _servers(self) -> list[Server | FreeServer]:
        servers: list[Server | FreeServer] = []
        for group in self._groups("act"):
            if self.plays:
                continue
            rolled, clients = group in self._groups("rollout"), []
            types, steps = group_types(self.whole)[group], self.whole.unroll
            for block in self.topology.blocks:
                requests = self.ends.ins("request", group=group, block=block.number)
                if not requests:
                    continue
                (reply,) = self.ends.outs("reply", group=group, block=block.number)
                outs = self._unroll_outs(group, block.number)
                kept = Kept(types, group, steps, len(block.envs), outs) if rolled else None
                client = Client(self.whole, group, block, requests[0], reply, kept)
                parts.load_client(client, self.saved)
                clients.append(client)
            if self.free and not rolled:
                server: Server | FreeServer = FreeServer(self.station, self.whole, clients, self._parameters, self.seed)
            else:
                server = Server(self.whole, clients, self._parameters, self.seed)
            parts.load_server(server, self.saved)
            servers.append(server)
        return servers

    def _trainer(self) -> Trainer:
        graph = self.graph
        offset = self.fragment.environments[self.post.replica][0] if graph is not self.whole else 0
        stage = Stage(graph, self.fragment.nodes, key_offset=offset)
        groups = list(dict.fromkeys(node.group for node in stage.nodes))
        taken = self._taken_groups()
        self.counts = [group for group in taken if self._first_taker(group)]
        learnt = {node.group for node in stage.nodes if node.kind in ("learn", "apply")}
        self.foreign = [group for group in groups if group in self.ends.readers]
        loop = Loop(graph)

        def begin(seed: Any) -> Carry:
            return Carry(
                seed=seed,
                iteration=jnp.int32(0),
                updates={group: jnp.int32(0) for group in groups},
                states={group: loop.init_state(seed, group) for group in groups if group in learnt},
                replays={node.name: loop.empty_replay(node) for node in stage.nodes if node.kind == "replay"},
                window=ops_episodes.empty_window(self.counts) if self.counts else (),
                actors=(),
                running=(),
                environments=(),
            )

        carry: Carry = jax.jit(begin)(jnp.uint32(self.seed))
        carry = parts.load_learning(carry, self.saved)
        carry = carry._replace(iteration=np.int32(carry.iteration))
        if not self.learning and self.fragment.replicas > 1 and not self.plays:
            first = int(carry.iteration) + (self.post.replica - int(carry.iteration)) % self.fragment.replicas
            carry = carry._replace(iteration=np.int32(first))
        if self.spmd is not None:
            carry = self.spmd.everywhere(carry)._replace(iteration=carry.iteration)
        for group in groups:
            if group not in learnt:
                state = graph.states[group]
                carry.states[group] = jax.tree.map(
                    lambda x: np.zeros(x.shape, x.dtype), _known(state, self.ends, group)
                )
        incoming, outgoing = self._valves()
        self.intake = self._intake(taken)
        trainer = Trainer(
            self.station, graph, stage, loop, carry, incoming, outgoing, counts=bool(self.counts),
            strict=not self.free, spmd=self.spmd,
        )  # fmt: skip
        for credit, rounds in zip(trainer.credits, trainer.plan.rounds, strict=True):
            parts.load_credit(credit, rounds.component, self.saved)
        self.updates = {group: int(count) for group, count in carry.updates.items()}
        trainer.copied = self.copies
        trainer.foreign, trainer.told = bool(self.foreign), trainer.iteration
        if self.foreign:
            trainer.prepare = self._prepare
        if not self.learning and not self.plays:
            trainer.turns = self.fragment.replicas
        return trainer

    def _taken_groups(self) -> list[str]:
        """The groups whose trajectories nodes here take."""
        rollouts = {node.name: node.group for node in self.whole.of_kind("rollout")}
        found = [
            rollouts[ref.node]
            for name in self.fragment.nodes for ref in self.whole.nodes[name].inputs if ref.node in rollouts
        ]  # fmt: skip
        return list(dict.fromkeys(found))

    def _first_taker(self, group: str) -> bool:
        """Whether this fragment is the one that counts the group's episodes."""
        rollout = next(node.name for node in self.whole.of_kind("rollout") if node.group == group)
        takers = [n.name for n in self.whole.nodes.values() if any(ref.node == rollout for ref in n.inputs)]
        return takers[0] in self.fragment.nodes

    def _valves(self) -> tuple[list[Valve], list[Valve]]:
        placed = {name: fragment for fragment in self.plan.fragments for name in fragment.workers()}
        incoming: dict[str, list[In]] = {}
        outgoing: dict[tuple[str, str], list[Out]] = {}
        for link, port in self.ends.links.items():
            if link.kind != "value":
                continue
            if isinstance(port, In):
                incoming.setdefault(link.node, []).append(port)
            else:
                outgoing.setdefault((link.node, placed[link.target].name), []).append(port)
        by_name = {fragment.name: fragment for fragment in self.plan.fragments}
        return (
            [Valve(self.graph.nodes[node], self.fragment, ports) for node, ports in incoming.items()],
            [Valve(self.graph.nodes[node], by_name[taker], ports) for (node, taker), ports in outgoing.items()],
        )

    def _intake(self, taken: list[str]) -> Intake | None:
        """Where unrolls come from, or gradients of workers that have each their own."""
        limit = self.limit if self.free else None
        sources: list[list[In]] = []
        numbers: list[int] = []
        for block in self.topology.blocks:
            ports = [port for group in taken for port in self.ends.ins("unroll", group=group, block=block.number)]
            if ports:
                sources.append(ports)
                numbers.append(block.number)
        self.sources = [self.topology.blocks[number] for number in numbers]
        if sources:
            return Intake(self.station, sources, len(sources), limit, "unrolls")
        plays = self.plan.home("environment")
        values = [(link, port) for link, port in self.ends.links.items() if link.kind == "value"
                  and isinstance(port, In) and link.source in plays.workers() and plays.replicas > 1]  # fmt: skip
        self.gathers = [link for link, _ in values]
        if values and not taken:
            # One at a time, or at a barrier the mean of all.
            return Intake(self.station, [[port] for _, port in values], 1, limit, "gradients")
        return None

    # Parameters

    def _parameters(self, unroll: int) -> tuple[int, dict[str, PyTree]]:
        """The parameters to act with: those of the iteration, or the newest where staleness is allowed."""
        if self.trainer is not None and (self.learning or self.foreign):
            return self.trainer.iteration, {g: state.params for g, state in self.trainer.carry.states.items()}
        for group, (board, reader) in self.ends.readers.items():
            state = self._read(group, board, reader, 0 if self.free else unroll)
            if state is not None:
                self.held[group] = state.params
        return min(self.read_at.values()), self.held

    def _read(self, group: str, board: Board, reader: StoreReader, wanted: int) -> PyTree | None:
        """The learner's state where it is newer than what was read last; waits for that of iteration `wanted`."""
        if reader.iteration() < wanted:
            self.station.wait(lambda: reader.iteration() >= wanted or None, "parameters")
        if self.read_at.get(group) == reader.iteration():
            return None
        newest = reader.read()
        self.read_at[group], self.versions[group] = newest.iteration, newest.version
        structure = jax.tree.structure(_known(self.whole.states[group], self.ends, group))
        return jax.tree.unflatten(structure, jax.device_put(newest.arrays))

    def _prepare(self) -> None:
        """Takes the newest state for what comes next, having told which that is."""
        trainer = self.trainer
        assert trainer is not None
        for group in self.foreign:
            board, reader = self.ends.readers[group]
            wanted = 0
            if not self.free:  # of gradients, each leads to a new state; others are one an iteration
                wanted = trainer.told if board.whole else trainer.iteration
            if reader.iteration() < wanted:
                self.station.wait(lambda r=reader, w=wanted: r.iteration() >= w or None, "parameters")
            if board.whole:
                for port in (port for valve in trainer.outgoing for port in valve.ports):
                    port.claim(reader.iteration())
            state = self._read(group, board, reader, 0)
            if state is not None:  # else the carry has it, and nobody else: programs take the carry's memory over
                trainer.carry.states[group] = state
                trainer.carry.updates[group] = np.int32(self.versions[group])
            trainer.version_told = self.read_at[group]

    def _started(self) -> None:
        """From here on the state is no more that between two unrolls."""
        self.station.between = False

    def _ready(self, ready: Callable[[], bool]) -> None:
        if not ready():
            self.station.wait(lambda: ready() or None, "room for unrolls")

    def _gate(self, block: Block) -> int:
        """Waits until a block may begin an unroll."""
        self._ready(block.ready)
        return self._told()

    def _early(self, block: Block) -> int | None:
        """A block that asks others for its actions may begin while its neighbours still play."""
        asks = self.free and self.trainer is None and block.acting is None
        return self._told() if asks and not self.station.pausing and block.ready() else None

    def _told(self) -> int:
        """The iteration whose parameters an unroll that begins now is acted with, or newer ones."""
        return max(0, min((reader.iteration() for _, reader in self.ends.readers.values()), default=0))

    # Work

    def run(self) -> None:
        """Works until it is told to stop."""
        station = self.station
        station.save, station.on_go = self.save, self._on_go
        if self.learning and self.free:
            station.drain = self._drain
        station.enter("compiling")
        for server in self.servers:
            if isinstance(server, Server):
                server.open()
            else:
                server.compile()
        turn = self._turn()
        while True:
            self._boundary()
            turn()
            station.enter("working")

    def _release(self) -> None:
        for release in self.read:
            release()
        self.read.clear()

    def _drain(self) -> None:
        """A learner that has stopped keeps nobody from coming to the end of an iteration."""
        self._release()
        if self.intake is not None:
            self.intake.drain()
        for link, port in self.ends.links.items():
            if isinstance(port, In) and link.kind == "value":
                port.drain()

    def _on_go(self, message: dict[str, Any]) -> None:
        self.until = message["until"]
        self.target = float("inf") if message["target"] is None else float(message["target"])

    def _turn(self) -> Callable[[], None]:
        if self.trainer is not None:
            return self._train if self.gathering is None else self._gather
        if self.player is not None:
            return self._play
        if all(isinstance(server, FreeServer) for server in self.servers):
            return self._serve_free
        return self._serve

    @property
    def gathering(self) -> Intake | None:
        return self.intake if self.intake is not None and not self.sources else None

    def _play(self) -> None:
        assert self.player is not None
        self.player.unroll()
        self.station.counts["env_steps"] += self.graph.unroll * sum(len(block.envs) for block in self.blocks)

    def _serve(self) -> None:
        """One unroll of everybody, in step."""
        servers = [server for server in self.servers if isinstance(server, Server)]
        unroll = servers[0].clients[0].unrolls
        for server in servers:
            server.begin(unroll)
        self._started()
        for t in range(self.whole.unroll):
            for ring in range(len(servers[0].sets)):
                for server in servers:
                    server.turn(t, ring)
        for server in servers:
            server.end()

    def _serve_free(self) -> None:
        servers = [server for server in self.servers if isinstance(server, FreeServer)]
        first_of(self.station, [c.request for server in servers for c in server.clients], "observations")
        self._started()
        for server in servers:
            if any(client.request.peek() for client in server.clients):
                server.serve()

    def _train(self) -> None:
        trainer = self.trainer
        assert trainer is not None
        trainer.prepare()
        if self.player is not None:
            self._play()
        if self.servers:
            self._serve()
        batch, self.ahead = self.ahead or self._batch(), None
        envs = len(range(self.whole.envs)) if self.graph is self.whole else self.graph.envs
        steps = self.graph.unroll * envs
        trainer.iterate(batch, steps)
        self.env_steps = trainer.iteration * steps if self.graph is self.whole else self.env_steps + steps
        self._learnt()
        if self.free and self.copies and self.intake is not None and self.intake.ready(trainer.iteration):
            # The device is still at work: the next batch goes to it meanwhile.
            self.ahead = self._batch()

    def _gather(self) -> None:
        assert self.intake is not None
        trainer = self.trainer
        assert trainer is not None
        taken = self.intake.collect(trainer.iteration)
        self._started()
        for each in taken:
            self.staleness.add(trainer.iteration - each.version)
        messages = [each.messages[0] for each in taken]
        trainer.gathered(trainer.incoming[self.gathers[taken[0].source].node], messages)
        self.env_steps += sum(message.tag for message in messages)
        intake = self.intake
        self.read.append(lambda: intake.release(taken))
        self._learnt()

    def _learnt(self) -> None:
        """Keeps count of the versions; of replays' updates only the device knows."""
        trainer = self.trainer
        assert trainer is not None
        learners = [node for node in trainer.stage.nodes if node.kind in ("learn", "apply")]
        if any(node.loops for node in learners) or self.gathering is not None:
            self.updates = {group: int(count) for group, count in trainer.carry.updates.items()}
        else:
            for node in learners:
                self.updates[node.group] += 1
        own = {node.group for node in learners}
        self.station.counts["updates"] = sum(count for group, count in self.updates.items() if group in own)

    def _batch(self) -> Batch | None:
        """The unrolls of this iteration."""
        trainer = self.trainer
        assert trainer is not None
        now = dict(self.updates)
        if self.foreign:
            now |= {group: int(trainer.carry.updates[group]) for group in self.foreign}
        self.updates_at[trainer.iteration] = now
        self.updates_at.pop(trainer.iteration - 1024, None)
        groups = self._taken_groups()
        if self.intake is not None:
            taken = self.intake.collect(trainer.iteration)
            then = [self.updates_at.get(each.version, now) for each in taken]
            for each in then:
                self.staleness.add(max(now[group] - each[group] for group in now))
            return self._from_streams(taken, groups, then)
        if isinstance(self.player, CompiledPlayer):
            return Batch(None, np.zeros(0), {}, lambda: None, self.player.unrolled())
        kept: dict[str, list[list[Any]]] = {}
        starts: list[int] = []
        if self.player is not None:
            kept = {g: [block.kept[g].slot.arrays for block in self.player.blocks] for g in groups}
            starts = [block.envs.start for block in self.player.blocks]
        for server in self.servers:
            own = [c for c in server.clients if c.kept is not None and c.group in groups]
            if own:
                kept[own[0].group] = [client.kept.slot.arrays for client in own]  # type: ignore[union-attr]
                starts = [client.block.start for client in own]
        if not kept:
            return None
        self.staleness.add(0)
        versions = {group: np.full(len(starts), now[group], np.int32) for group in groups}
        return Batch(kept, np.asarray(starts, np.int32), versions, lambda: None)

    def _from_streams(self, taken: list[Taken], groups: list[str], then: list[dict[str, int]]) -> Batch:
        assert self.intake is not None
        intake = self.intake
        blocks = {g: [each.messages[k].arrays for each in taken] for k, g in enumerate(groups)}
        starts = np.asarray([self.sources[each.source].start for each in taken], np.int32)
        versions = {group: np.asarray([each[group] for each in then], np.int32) for group in groups}
        if self.copies:
            blocks = jax.block_until_ready(jax.device_put(blocks))
        if not self.learning:
            return Batch(blocks, starts, versions, lambda: intake.release(taken))
        return Batch(blocks, starts, versions, lambda: self.read.append(lambda: intake.release(taken)))

    # Between two iterations

    def _boundary(self) -> None:
        """Listens to the launcher; a learner then publishes what it has learnt, or waits to be told to go on."""
        station = self.station
        station.poll()
        if self.trainer is not None and self.learning:
            self._learner_boundary()
        else:
            station.between = self.player is None or self.player.between_unrolls
            if station.between and station.pausing:
                station.pause()
        if self.trainer is not None and time.monotonic() - self._reported > REPORT_S:
            self._report()

    def _learner_boundary(self) -> None:
        # An asynchronous learner may also pause while it waits for unrolls: what it has of them is lost. Several that
        # are one program may not: they pause where they agree to.
        self.station.between = self.free and self.spmd is None
        while True:
            mean = self._window_mean() if self.target < float("inf") else float("nan")
            self.reached = mean >= self.target
            stop = self.station.pausing or self.env_steps >= self.until or self.reached
            if self.spmd is not None:
                stop = self._agree(stop)
            if not stop:
                break
            self._report()
            self.station.pause()
        self._publish()
        self._release()  # only now: who finds room for an unroll begins it with what was just published

    def _agree(self, stop: bool) -> bool:
        """All learners stop at the same iteration."""
        assert self.spmd is not None
        if not hasattr(self, "_any"):
            self._any = jax.jit(jnp.any)
        return bool(self._any(self.spmd.flags(stop)))

    def _publish(self) -> None:
        assert self.trainer is not None
        if self.spmd is not None and self.post.replica:
            return
        carry = self.trainer.carry
        for group, (board, writer) in self.ends.writers.items():
            state = carry.states[group]
            leaves = jax.device_get(jax.tree.leaves(state if board.whole else state.params))
            writer.publish(leaves, int(carry.updates[group]), self.trainer.iteration)

    def _window_mean(self) -> float:
        assert self.trainer is not None
        if not self.counts:
            return float("nan")
        if not hasattr(self, "_mean"):
            self._mean = jax.jit(totals.window_mean_of)
        return float(self._mean(self.trainer.carry.window))

    def _report(self) -> None:
        """What was done since the last report, as sums that add up."""
        trainer = self.trainer
        assert trainer is not None
        self._reported = time.monotonic()
        summed = totals.summed(jax.device_get(trainer.metrics))
        trainer.metrics.clear()
        self.episodes += summed.episodes
        window = None
        if self.counts:
            window = totals.window_json(jax.device_get(trainer.carry.window))
        self.station.line.send(
            {
                "progress": {
                    "iterations": trainer.iteration,
                    "env_steps": self.env_steps,
                    "learns": self.learning,
                    "rank": self.post.replica if self.spmd is not None else 0,
                    "reached": self.reached,
                    "updates": summed.updates,
                    "out": summed.out,
                    "episodes": self.episodes,
                    "window": window,
                    "staleness": self.staleness.json(),
                }
            }
        )

    def save(self) -> parts.Arrays:
        """This worker's part of a checkpoint."""
        saved: parts.Arrays = {}
        if self.trainer is not None:
            saved |= parts.save_learning(self.trainer.carry, self.foreign)
            saved["env_steps"] = np.asarray(self.env_steps)
        if isinstance(self.player, CompiledPlayer):
            saved |= self.player.save()
        elif self.player is not None:
            for block, own in zip(self.player.blocks, self.blocks, strict=True):
                saved |= parts.save_block(block, own)
        for server in self.servers:
            saved |= parts.save_server(server)
        return saved


class _Staleness:
    """How many versions behind what was learnt from was."""

    def __init__(self) -> None:
        self.total, self.count, self.most = 0, 0, 0

    def add(self, versions: int) -> None:
        self.total, self.count, self.most = self.total + versions, self.count + 1, max(self.most, versions)

    def json(self) -> list[int]:
        return [self.total, self.count, self.most]


def _known(state: PyTree, ends: Ends, group: str) -> PyTree:
    """As much of a learner's state as a store tells."""
    whole = group in ends.readers and ends.readers[group][0].whole
    return state if whole else Published(state.params)
