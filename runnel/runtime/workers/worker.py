"""A worker: one replica of a fragment. What it does follows from its nodes and the streams it holds.

There are three things a worker can do, and it does those that its nodes ask for: play environments, act for
environments that others play, and run the nodes after the rollout. Nothing here knows a distribution.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.runtime.programs import row_packing, totals
from runnel.runtime.programs.versions import Acted, Staleness, Version, in_time, told
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.workers import assembly
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.batch_collector import Collected
from runnel.runtime.workers.compiled_player import CompiledPlayer
from runnel.runtime.workers.inference import AsyncInferenceServer, InferenceServer
from runnel.runtime.workers.player import BlockState, Player
from runnel.runtime.workers.ports import REPORT_S, InPort, first_of, gate
from runnel.runtime.workers.trainer import TrainerBatch
from runnel.transport.stream import schema_of
from runnel.types import PyTree


class Worker:
    """One replica of a fragment, at work."""

    def __init__(self, assignment: Assignment):
        a = self.a = assignment
        self.context, self.ends = a.context, a.ends
        self.held: dict[str, PyTree] = {}  # by group: params to act with, as read from a store
        self.read_at: dict[str, int] = {}  # by group: the iteration of what was read last, and its version
        self.versions: dict[str, int] = {}
        self.until, self.target, self.reached = 0, float("inf"), False
        self.env_steps, self.episodes = int(a.start.saved.get(names.ENV_STEPS, 0)), 0
        self.staleness = Staleness()
        self.stores = {group: reader for group, (_, reader) in a.ends.readers.items()}
        self.read: list[Callable[[], None]] = []  # unrolls that were learnt from, to be released
        self.ahead: TrainerBatch | None = None  # the next batch, where it was taken while the device was at work
        self.copies = jax.default_backend() != "cpu"  # what goes to the device is copied; the CPU reads slots in place
        self.trainer = assembly.make_trainer(a) if a.training_nodes else None
        self.intake, self.sources = assembly.make_unroll_intake(a)
        self.gradients, self.gradient_nodes = assembly.make_gradient_intake(a)
        self.servers = assembly.make_servers(a, self._parameters)
        self.player: Player | CompiledPlayer | None = None
        if a.steps_envs:
            self.player = assembly.make_compiled_player(a, self._parameters, self._enter) or Player(
                assembly.make_blocks(a, self._parameters), self._gate, self._early, self._started,
                asks_count=a.free and bool(a.groups("rollout")),
                compiled=partial(a.context.enter, "working"), beat=a.context.bell.beat_at, tell=a.context.tell,
            )  # fmt: skip
            if self.trainer is not None and a.start.rejoins:
                self.trainer.go_on(min(block.unrolls for block in self.player.blocks))
        if self.trainer is not None:
            self.trainer.copied = self.copies
            self.updates = {group: int(count) for group, count in self.trainer.carry.updates.items()}
            self._tell_versions()
        self._any, self._mean = jax.jit(jnp.any), jax.jit(totals.window_mean_of)
        self._reported = 0.0

    # Parameters

    def _parameters(self, unroll: int) -> tuple[Version, dict[str, PyTree]]:
        """The parameters to act with: those of the iteration, or the newest where staleness is allowed."""
        if self.trainer is not None and (self.a.learns or self.a.remote_groups):
            params = {g: state.params for g, state in self.trainer.carry.states.items()}
            return Version(self.trainer.iteration, {**self.updates, **self.versions}), params
        for group in self.ends.readers:
            state = self._newest(group, self._wanted(unroll))
            if state is not None:
                self.held[group] = state.params
        return Version(min(self.read_at.values()), dict(self.versions)), self.held

    def _wanted(self, iteration: int) -> int:
        """The iteration whose parameters what is made for another one must have at least."""
        return 0 if self.a.lead is None else max(0, iteration - self.a.lead)

    def _newest(self, group: str, wanted: int) -> PyTree | None:
        """A learner's state where it is newer than what was read last; waits for that of iteration `wanted`."""
        _, reader = self.ends.readers[group]
        if reader.iteration() < wanted:
            self.context.wait(lambda: reader.iteration() >= wanted or None, "parameters")
        if self.read_at.get(group) == reader.iteration():
            return None
        newest = reader.read()
        self.read_at[group], self.versions[group] = newest.iteration, newest.version
        return jax.tree.unflatten(jax.tree.structure(self.a.known(group)), jax.device_put(newest.arrays))

    def _prepare(self) -> None:
        """Takes the newest state of what is learnt elsewhere, having told which that is."""
        trainer = self.trainer
        assert trainer is not None
        for group in self.a.remote_groups:
            board, reader = self.ends.readers[group]
            # At a barrier each gradient leads to a new state; others are one an iteration.
            wanted = self._wanted(trainer.told if board.whole and not self.a.free else trainer.iteration)
            if reader.iteration() < wanted:
                self.context.wait(lambda r=reader, w=wanted: r.iteration() >= w or None, "parameters")
            if board.whole or self.a.gathered:
                for port in (port for valve in trainer.outgoing for port in valve.ports):
                    port.claim(reader.iteration())
            state = self._newest(group, 0)
            if state is not None:  # else the carry has it, and nobody else: programs take the carry's memory over
                trainer.carry.states[group] = state
                trainer.carry.updates[group] = np.int32(self.versions[group])
            trainer.version_told = self.read_at[group]

    def _publish(self) -> None:
        if self.a.spmd is not None and self.a.spec.replica:
            return  # all learners have the same
        assert self.trainer is not None
        carry = self.trainer.carry
        for group, (board, writer) in self.ends.writers.items():
            state = carry.states[group]
            leaves = jax.device_get(jax.tree.leaves(state if board.whole else state.params))
            writer.publish(leaves, int(carry.updates[group]), self.trainer.iteration)

    # Whether a block may begin an unroll

    def _started(self) -> None:
        """From here on the state is no more that between two unrolls."""
        self.context.between = False

    def _enter(self, ready: Callable[[], bool], unroll: int) -> Version:
        """Waits until an unroll may begin; gives what it is acted with, or something newer is."""
        gate(self.context, ready, self.stores, unroll, self.a.lead)
        return self._told()

    def _gate(self, block: BlockState) -> Version:
        return self._enter(block.ready, block.unrolls)

    def _early(self, block: BlockState) -> Version | None:
        """A block that asks others for its actions may begin while its neighbours still play."""
        asks = self.a.free and self.trainer is None and block.acting is None and bool(block.kept)
        may = asks and not self.context.pausing and block.ready() and in_time(self.stores, block.unrolls, self.a.lead)
        return self._told() if may else None

    def _told(self) -> Version:
        return told(self.stores, self.updates if self.trainer is not None else None)

    # Work

    def run(self) -> None:
        """Works until it is told to stop."""
        context = self.context
        context.save, context.on_go = self.save, self._on_go
        if self.a.learns and self.a.free and not self.a.pauses:
            context.drain = self._drain
        if self.trainer is not None:
            context.on_pause = self._report
            if self.a.learns:
                context.iteration = self._iteration
            if self.a.remote_groups:
                self.trainer.prepare = self._prepare
        context.enter("compiling")
        for server in self.servers:
            if isinstance(server, InferenceServer):
                server.open()
            else:
                server.compile()
        turn = self._turn()
        self._boundary()
        turn()  # the first compiles what it needs
        context.enter("working")
        context.restart()
        while True:
            self._boundary()
            turn()

    def _turn(self) -> Callable[[], None]:
        """What it does between two boundaries."""
        if self.trainer is not None:
            return self._train if self.gradients is None else self._gather
        if self.player is not None:
            return self._play
        free = len(self._free_servers()) == len(self.servers)
        return self._serve_free if free else self._serve

    def _play(self) -> None:
        assert self.player is not None
        self.player.unroll()
        self.context.counts["env_steps"] += self.a.graph.unroll * sum(len(place.envs) for place in self.a.blocks)

    def _serve(self) -> None:
        """One unroll of everybody, in step."""
        servers = [server for server in self.servers if isinstance(server, InferenceServer)]
        unroll = servers[0].clients[0].unrolls
        for server in servers:
            server.begin(unroll)
        self._started()
        for t in range(self.a.run_graph.unroll):
            for split in range(len(servers[0].sets)):
                for server in servers:
                    server.turn(t, split)
        for server in servers:
            server.end()

    def _serve_free(self) -> None:
        """Acts once for whoever has asked."""
        servers = self._free_servers()
        if not any(server.flight for server in servers):
            first_of(self.context, [client.request for server in servers for client in server.clients], "observations")
        self._started()
        for server in servers:
            server.serve()

    def _free_servers(self) -> list[AsyncInferenceServer]:
        return [server for server in self.servers if isinstance(server, AsyncInferenceServer)]

    def _train(self) -> None:
        """One iteration."""
        trainer, graph = self.trainer, self.a.graph
        assert trainer is not None
        trainer.prepare()
        if self.player is not None:
            self._play()
            self.context.between |= self.a.pauses and self.player.between_unrolls
        if self.servers:
            self._serve()
        batch, self.ahead = self.ahead or self._batch(), None
        trainer.iterate(batch, graph.steps_per_iteration)
        self._measure()
        if graph is self.a.run_graph:
            self.env_steps = trainer.iteration * graph.steps_per_iteration
        else:
            self.env_steps += graph.steps_per_iteration
        self._learnt()
        if self.a.free and self.copies and self.intake is not None and self.intake.ready(trainer.iteration):
            # The device is still at work: the next batch goes to it meanwhile.
            self.ahead = self._batch()

    def _gather(self) -> None:
        """One gradient, or the mean of everybody's."""
        trainer, intake = self.trainer, self.gradients
        assert trainer is not None
        assert intake is not None
        taken = intake.collect(trainer.iteration)
        self._started()
        messages = [each.messages[0] for each in taken]
        valve = trainer.incoming[self.gradient_nodes[taken[0].source]]
        for message in messages:
            if message.rows:
                self.staleness.add(self.updates[valve.node.group], Acted(*message.arrays[0].tolist()))
        trainer.gathered(valve, messages)
        self.env_steps += sum(message.tag for message in messages)
        self.read.append(lambda: intake.release(taken))
        self._learnt()

    def _measure(self) -> None:
        """How old the unrolls of an iteration were: at each update from them or, of a replay, as they came into it."""
        trainer = self.trainer
        assert trainer is not None
        learners = [node for node in trainer.stage.nodes if node.kind in ("learn", "apply")]
        for group in dict.fromkeys(node.group for node in learners):
            updates = sum(node.group == group and not node.loops for node in learners)
            for k in range(max(1, updates)):
                self.staleness.add(self.updates[group] + k, trainer.acted_in(group))

    def _learnt(self) -> None:
        """Keeps count of the versions; of replays' updates only the device knows."""
        trainer = self.trainer
        assert trainer is not None
        learners = [node for node in trainer.stage.nodes if node.kind in ("learn", "apply")]
        if any(node.loops for node in learners) or self.gradients is not None:
            self.updates = {group: int(count) for group, count in trainer.carry.updates.items()}
        else:
            for node in learners:
                self.updates[node.group] += 1
        self._tell_versions()

    def _tell_versions(self) -> None:
        assert self.trainer is not None
        learners = [node for node in self.trainer.stage.nodes if node.kind in ("learn", "apply")]
        self.context.counts["updates"] = sum(self.updates[group] for group in {node.group for node in learners})

    # The unrolls of an iteration

    def _batch(self) -> TrainerBatch | None:
        trainer = self.trainer
        assert trainer is not None
        if self.intake is not None:
            return self._from_streams(self.intake.collect(trainer.iteration))
        # What is played here is played with what is known here.
        now = {**self.updates, **self.versions}
        if isinstance(self.player, CompiledPlayer):
            acted = {group: Acted.of([now[group]]) for group in self.a.consumed_groups}
            return TrainerBatch(None, np.zeros(0), {}, lambda: None, acted, self.player.unrolled())
        return self._made_here(now)

    def _from_streams(self, taken: list[Collected]) -> TrainerBatch:
        intake = self.intake
        assert intake is not None
        blocks = {g: [each.messages[k].arrays for each in taken] for k, g in enumerate(self.a.consumed_groups)}
        starts = np.asarray([self.sources[each.source].start for each in taken], np.int32)
        begun = {g: [each.messages[k].rows for each in taken] for k, g in enumerate(self.a.consumed_groups)}
        versions = {group: np.asarray(updates, np.int32) for group, updates in begun.items()}
        acted = {group: Acted.of(updates) for group, updates in begun.items()}

        def release() -> None:
            if self.a.learns:
                self.read.append(lambda: intake.release(taken))
            else:
                intake.release(taken)

        return TrainerBatch(self._sent(blocks), starts, versions, release, acted)

    def _made_here(self, now: dict[str, int]) -> TrainerBatch | None:
        """Of the environments that this worker plays or acts for."""
        kept: dict[str, list[list[Any]]] = {}
        starts: list[int] = []
        if isinstance(self.player, Player):
            kept = {g: [block.kept[g].slot.arrays for block in self.player.blocks] for g in self.a.consumed_groups}
            starts = [block.envs.start for block in self.player.blocks]
        for server in self.servers:
            for client in server.clients:
                if client.kept is not None and client.group in self.a.consumed_groups:
                    kept.setdefault(client.group, []).append(client.kept.slot.arrays)
            starts = [client.block.start for client in server.clients]
        if not kept:
            return None
        versions = {group: np.full(len(starts), now[group], np.int32) for group in kept}
        acted = {group: Acted.of(updates) for group, updates in versions.items()}
        return TrainerBatch(self._sent(kept), np.asarray(starts, np.int32), versions, lambda: None, acted)

    def _sent(self, blocks: dict[str, list[list[Any]]]) -> dict[str, list[Any]]:
        """Unrolls where the device can read them: copies, unless it is this processor."""
        if not self.copies:
            return blocks
        schemas = {group: schema_of(own[0]) for group, own in blocks.items()}
        whole = {group: [row_packing.whole(arrays, schemas[group]) for arrays in own] for group, own in blocks.items()}
        return jax.block_until_ready(jax.device_put(whole))

    # Between two iterations

    def _boundary(self) -> None:
        """Listens to the launcher; a learner then publishes what it has learnt, or waits to be told to go on."""
        context = self.context
        context.poll()
        if self.trainer is not None and self.a.learns:
            self._learner_boundary()
        else:
            context.between = self.player is None or self.player.between_unrolls
            if context.between and context.pausing:
                for server in self._free_servers():
                    server.land()
                context.pause()
        if self.trainer is not None and time.monotonic() - self._reported > REPORT_S:
            self._report()

    def _learner_boundary(self) -> None:
        # An asynchronous learner may also pause while it waits for unrolls: what it has of them is lost. Several that
        # are one program may not: they pause where they agree to.
        self.context.between = self.a.free and (self.a.spmd is None or self.a.fragment.replicas == 1)
        while True:
            self.reached = self._window_mean() >= self.target
            stop = self.context.pausing or self.env_steps >= self.until or self.reached
            stop = stop and not self.context.too_early()
            if self.a.spmd is not None:
                stop = bool(self._any(self.a.spmd.flags(stop)))
            if not stop:
                break
            self.context.pause()
        self._publish()
        self._release()  # only now: who finds room for an unroll begins it with what was just published

    def _iteration(self) -> int | None:
        """How far a learner is; None where it is at the end, which is the same iteration for all."""
        assert self.trainer is not None
        return self.trainer.iteration if self.env_steps < self.until else None

    def _on_go(self, message: dict[str, Any]) -> None:
        self.until = message["until"]
        self.target = float("inf") if message["target"] is None else float(message["target"])

    def _release(self) -> None:
        for release in self.read:
            release()
        self.read.clear()

    def _drain(self) -> bool:
        """A learner that has stopped keeps nobody from coming to the end of an iteration."""
        self._release()
        values = [port for link, port in self.ends.links.items() if isinstance(port, InPort) and link.kind == "value"]
        intakes = [intake for intake in (self.intake, self.gradients) if intake is not None]
        found = [source.drain() for source in (*intakes, *values)]
        return any(found)

    # What it tells

    def _window_mean(self) -> float:
        """The mean return that is to reach the target; NaN where there is none, or it is not known here."""
        if self.target == float("inf") or not self.a.counted_groups:
            return float("nan")
        assert self.trainer is not None
        return float(self._mean(self.trainer.carry.window))

    def _report(self) -> None:
        """What was done since the last report, as sums that add up."""
        trainer = self.trainer
        assert trainer is not None
        self._reported = time.monotonic()
        summed = totals.summed(jax.device_get(trainer.metrics))
        trainer.metrics.clear()
        self.episodes += summed.episodes
        window = totals.window_json(jax.device_get(trainer.carry.window)) if self.a.counted_groups else None
        progress = {
            "iterations": trainer.iteration,
            "env_steps": self.env_steps,
            "rank": self.a.spec.replica if self.a.spmd is not None else 0,
            "reached": self.reached,
            "versions": int(self.context.counts["updates"]),  # of all that is learnt here
            "times": summed.updates,
            "out": summed.out,
            "broken": dict(summed.broken),
            "episodes": self.episodes,
            "window": window,
            "staleness": self.staleness.json(),
        }
        self.context.send({"progress": progress})

    def save(self) -> worker_checkpoint.Arrays:
        """This worker's part of a checkpoint."""
        saved: worker_checkpoint.Arrays = {}
        if self.trainer is not None:
            saved |= worker_checkpoint.save_learning(self.trainer.carry, self.a.remote_groups)
            saved[names.ENV_STEPS] = np.asarray(self.env_steps)
        if isinstance(self.player, CompiledPlayer):
            saved |= self.player.save()
        elif self.player is not None:
            for block, place in zip(self.player.blocks, self.a.blocks, strict=True):
                saved |= worker_checkpoint.save_block(block, place)
        for server in self.servers:
            saved |= worker_checkpoint.save_server(server)
        return saved
