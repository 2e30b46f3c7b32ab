"""The whole loop in one process: environments step, `act` runs, and every other node is one compiled update."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import HostVector
from runnel.ops.episodes import Running
from runnel.planning.channels import group_types
from runnel.recording.events import ReportEvent, ignore_event
from runnel.runtime.programs import finite, totals
from runnel.runtime.programs.acting import LocalPolicies
from runnel.runtime.programs.carry import ActorStates, Carry, IterationMetrics, StateChange
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.metric_window import MetricWindow
from runnel.runtime.programs.snapshots import NO_SNAPSHOTS, SnapshotSchedule, SnapshotTaker, TakenSnapshot
from runnel.runtime.programs.stage import Stage
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.programs.unrolls import assemble_all
from runnel.runtime.programs.versions import NO_STAMP, ParameterStamp
from runnel.runtime.recovery import action_history
from runnel.runtime.usage import UsageReport, single_process_usage
from runnel.runtime.workers.lanes import LocalPolicyLane
from runnel.runtime.workers.player import BlockState, Player
from runnel.types import Array, PyTree


class SteppedProgram:
    """The whole loop in one process, on host environments, or on JAX environments unrolled in one call each."""

    def __init__(
        self,
        loop: Loop,
        vector: HostVector | None,
        seed: int,
        name: str = "process",
        report_event: ReportEvent = ignore_event,
        reports_return: bool = False,
        snapshots: SnapshotSchedule = NO_SNAPSHOTS,
    ):
        """`reports_return`: the environments of `vector` report their own score."""
        self.name, self.report_event, self.steps = name, report_event, 0
        self._snapshots, self._env_steps = SnapshotTaker(snapshots), 0
        self.loop, self.stage = loop, Stage(loop.graph)
        self.metric_window = MetricWindow(reports_return)
        self.carry: Carry = jax.jit(loop.init)(jnp.uint32(seed))
        self.player = self._player(vector, seed) if vector is not None else None
        self._unroll_s, self._learn_s = 0.0, 0.0
        self._nothing: Any = None  # what a stretch has done when it begins
        self._unroll = jax.jit(loop.unroll, donate_argnums=0)
        self._update = jax.jit(self._learn, donate_argnums=(0, 1))

    def _player(self, vector: HostVector, seed: int) -> Player:
        graph, types = self.loop.graph, group_types(self.loop.graph)
        lanes: Any = {
            group: LocalPolicyLane(types[group], group, graph.unroll, graph.envs, ()) for group in graph.spec.groups
        }
        discounts = {node.group: node.rollout.discount for node in graph.of_kind("rollout")}
        self.policies = LocalPolicies(self.loop, list(lanes), self._parameters, seed)
        block = BlockState(vector, range(graph.envs), graph.unroll, lanes, self.policies, discounts)
        block.reset()
        player = Player([block], lambda block: NO_STAMP, beat=self._stepped, report_event=self.report_event)
        player.report_failures(block)
        return player

    def _stepped(self, steps: int) -> None:
        self.steps = steps

    def _parameters(self, unroll: int) -> tuple[ParameterStamp, dict[str, PyTree]]:
        return NO_STAMP, {group: state.params for group, state in self.carry.states.items()}

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> ProgressDelta:
        """Trains for at most `iterations` iterations, about `seconds` seconds, or until the target return is
        reached."""
        started, done, reached, refused = time.monotonic(), 0, False, False
        total = None
        self._take_if_due()
        while done < iterations and not reached and not refused:
            total, reached, refused = self._iterate(total, target)
            done += 1
            self._env_steps += self.loop.graph.steps_per_iteration
            if self.player is not None:
                self.metric_window.add(self.player.episode_sums())
            if self.metric_window.scored:
                reached = self.metric_window.reached(target)
            # A snapshot ends the call: what is decided by its evaluation is decided before training continues.
            if self._take_if_due() or stop() or time.monotonic() - started > seconds:
                break
        assert total is not None
        progress, ended = totals.read(done, total, self.carry, reached)
        self.metric_window.add(ended)
        return self.metric_window.apply(progress, target)

    def _take_if_due(self) -> bool:
        return self._snapshots.reached(self._env_steps, self.carry.states, self.carry.updates)  # type: ignore[arg-type]

    def snapshots(self, wait: bool = False) -> list[TakenSnapshot]:
        return self._snapshots.fetch(wait)

    def ask_for_snapshot(self) -> None:
        self._snapshots.ask(self.carry.states, self.carry.updates)  # type: ignore[arg-type]

    def learnt(self) -> tuple[Any, Any]:
        return self.carry.states, self.carry.updates

    def measure(self) -> None:
        self._unroll_s, self._learn_s = 0.0, 0.0
        if self.player is not None:
            self.player.environment_s, self.player.act_s = 0.0, 0.0

    def report(self, recent: bool = False) -> UsageReport:
        """The usage of one process, which never waits; its time is divided into phases."""
        del recent
        if self.player is None:
            return single_process_usage(self.name, {"rollout": self._unroll_s, "learn": self._learn_s})
        stepped = {"environment": self.player.environment_s, "act": self.player.act_s}
        return single_process_usage(self.name, {**stepped, "learn": self._learn_s})

    def save(self) -> dict[str, PyTree]:
        if self.player is None:
            return {"carry": self.carry, "host": {}}
        (block,) = self.player.blocks
        episodes, cut = block.history.episodes(block.vector.episode_numbers().tolist())
        discounted = {group: jnp.asarray(total) for group, total in block.counter.discounted.items()}
        carry = self.carry._replace(
            actors=ActorStates(self.policies.memories, discounted),
            running=Running(
                {group: jnp.asarray(total) for group, total in block.counter.reward.items()},
                jnp.asarray(block.counter.length),
            ),
        )
        return {"carry": carry, "host": {**action_history.pack(episodes), "cut": np.asarray(cut)}}

    def begin_from(self, states: Mapping[str, PyTree]) -> None:
        self.carry = self.carry._replace(states={**self.carry.states, **jax.device_put(dict(states))})

    def exchange(self, change: StateChange) -> tuple[None, int]:
        self.begin_from(change(self.carry.states, self.carry.updates))
        return None, 0

    def load(self, saved: dict[str, PyTree] | None, env_steps: int) -> int:
        """Continues from the result of `save`; returns how many episodes could not be replayed and were truncated."""
        assert saved is not None
        self.carry = jax.device_put(saved["carry"])
        # Not by its iterations: under `central` these were of a part of the environments.
        self._env_steps = env_steps
        self._snapshots.begin(env_steps)
        if self.player is None:
            return 0
        (block,) = self.player.blocks
        packed = dict(saved["host"])
        cut = np.asarray(packed.pop("cut"))
        assert isinstance(self.carry.actors, ActorStates)
        assert isinstance(self.carry.running, Running)
        self.policies.memories = self.carry.actors.memory
        self.policies.seed = jnp.uint32(int(self.carry.seed))  # another one after a roll-back
        counter = block.counter
        counter.discounted = {g: np.array(total) for g, total in self.carry.actors.discounted_sum.items()}
        counter.reward = {g: np.array(total) for g, total in self.carry.running.reward.items()}
        counter.length = np.array(self.carry.running.length)
        cut = block.restore(action_history.unpack(packed), cut, int(self.carry.iteration))
        return int(cut.sum())

    def listen(self, seconds: float) -> None:
        """No other process works on it."""

    def rest(self) -> None:
        """No other process works on it."""

    def hurry(self) -> None:
        """There is no other process to wait for."""

    def close(self) -> None:
        if self.player is not None:
            self.player.blocks[0].vector.close()

    def _iterate(self, total: IterationMetrics | None, target: float) -> tuple[IterationMetrics, bool, bool]:
        """One iteration: `total` with its metrics, whether the target is reached, and whether an update was refused."""
        started = time.perf_counter()
        if self.player is None:
            self.carry, *seen = self._unroll(self.carry)
            jax.block_until_ready(seen)
        else:
            self.player.unroll()
            # The slot's own memory: the update must have finished reading it before the next unroll.
            seen = {group: [lane.slot.arrays] for group, lane in self.player.blocks[0].kept.items()}
        if self._nothing is None:
            # NumPy arrays, which donation does not consume: making them again takes as long as an update.
            types = jax.eval_shape(self._learn, self.carry, None, seen)[1]
            self._nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), types)
        total = self._nothing if total is None else total
        unrolled = time.perf_counter()
        self.carry, summed, outcome = self._update(self.carry, total, seen)
        mean, refused = np.asarray(outcome).tolist()
        self._unroll_s += unrolled - started
        self._learn_s += time.perf_counter() - unrolled
        return summed, mean >= target, bool(refused)

    def _learn(self, carry: Carry, total: IterationMetrics | None, seen: Any) -> tuple[Carry, IterationMetrics, Array]:
        """Runs every node after the rollout; also returns [2] the mean return and whether an update was refused."""
        if isinstance(seen, dict):
            versions = {group: count[None] for group, count in carry.updates.items()}
            trajectories, finished = assemble_all(self.loop, seen, jnp.zeros(1, jnp.int32), versions)
        else:
            trajectories, finished = seen
        carry, metrics = self.stage.iterate(carry, trajectories, finished)
        metrics = metrics if total is None else totals.add(total, metrics)
        # As one array: each that leaves a program costs microseconds.
        outcome = jnp.stack([totals.window_mean(carry), finite.any_refused(metrics.broken).astype(jnp.float32)])
        return carry, metrics, outcome
