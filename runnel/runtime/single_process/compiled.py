"""A whole fragment as one XLA program: many iterations a call, buffers donated, columns sharded over devices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runnel.runtime.programs import finite, replay_shards, totals
from runnel.runtime.programs.carry import Carry, IterationMetrics, StateChange
from runnel.runtime.programs.loop import Loop
from runnel.runtime.programs.metric_window import MetricWindow
from runnel.runtime.programs.snapshots import NO_SNAPSHOTS, SnapshotSchedule, SnapshotTaker, TakenSnapshot
from runnel.runtime.programs.stage import Stage
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.usage import UsageReport, single_process_usage
from runnel.types import PER_COLUMN, Array, PyTree

CALL_S = 0.25
"""The target length of a call in seconds: long enough to hide its overhead, short enough to report and to stop."""

MOST_ITERATIONS = 1 << 30

CHUNK = 8
"""The largest number of steps that are unrolled in one compiled iteration on a GPU."""


class CompiledProgram:
    """Environments, acting and learning in a single program on one or many devices."""

    def __init__(
        self, loop: Loop, devices: Sequence[Any], seed: int, name: str = "program",
        snapshots: SnapshotSchedule = NO_SNAPSHOTS,
    ):  # fmt: skip
        self.name, self.steps = name, 0
        self._snapshots, self._env_steps = SnapshotTaker(snapshots), 0
        self.loop, self.stage, self.seed = loop, Stage(loop.graph), jnp.uint32(seed)
        self.mesh = Mesh(list(devices), ("columns",))
        self.metric_window = MetricWindow()
        self.iterations_per_call = 1
        self._seconds = 0.0
        self._shardings = self._sharding(jax.eval_shape(loop.init, self.seed))
        self.many = jax.jit(self._iterate, donate_argnums=0, out_shardings=(self._shardings, None, None, None))
        # Made on one device and then spread where there are several: partitioning an initialisation gains nothing.
        # Replays may be larger than the memory of one device: each makes its own part.
        self._init = jax.jit(loop.init, out_shardings=self._shardings)
        self._init_but_replays = jax.jit(loop.init_but_replays)
        self._replays = jax.jit(loop.empty_replays, out_shardings=self._shardings.replays)
        self.carry = self.fresh()

    def fresh(self) -> Carry:
        """The carry before the first step."""
        if self.mesh.size == 1:
            return self._init(self.seed)
        with jax.default_device(self.mesh.devices.flat[0]):
            carry = self._init_but_replays(self.seed)
        spread = jax.device_put(carry, self._shardings._replace(replays={}))
        return spread._replace(replays=self._replays())

    def run(self, iterations: int, seconds: float, target: float, stop: Callable[[], bool]) -> ProgressDelta:
        """Trains for at most `iterations` iterations, about `seconds` seconds, or until the target return is
        reached."""
        del seconds, stop  # a call cannot be interrupted; it is short instead
        self._take_if_due()
        started = time.monotonic()
        count = min(iterations, self.iterations_per_call, self._until_snapshot())
        decided = target if not self.metric_window.scored else math.inf  # else here, after the call
        self.carry, total, done, reached = self.many(self.carry, jnp.int32(count), jnp.float32(decided))
        # All devices, not only the one the totals are read from: a call that overtook the one before it could
        # leave too few of the host's threads for both to complete a collective.
        jax.block_until_ready(self.carry)
        progress, ended = totals.read(int(done), total, self.carry, bool(reached))
        self.metric_window.add(ended)
        spent = time.monotonic() - started
        self._env_steps += progress.iterations * self.loop.graph.steps_per_iteration
        self._take_if_due()
        self._seconds += spent
        if spent < CALL_S / 2 and progress.iterations == self.iterations_per_call:
            self.iterations_per_call *= 2
        return self.metric_window.apply(progress, target)

    def _take_if_due(self) -> None:
        self._snapshots.reached(self._env_steps, self.carry.states, self.carry.updates)  # type: ignore[arg-type]

    def _until_snapshot(self) -> int:
        """The iterations until the next snapshot, at which a call ends."""
        per_iteration = self.loop.graph.steps_per_iteration
        mark = self._snapshots.schedule.next_mark(self._env_steps)
        return MOST_ITERATIONS if mark is None else -(-(mark - self._env_steps) // per_iteration)

    def snapshots(self, wait: bool = False) -> list[TakenSnapshot]:
        return self._snapshots.fetch(wait)

    def ask_for_snapshot(self) -> None:
        self._snapshots.ask(self.carry.states, self.carry.updates)  # type: ignore[arg-type]

    def learnt(self) -> tuple[Any, Any]:
        return self.carry.states, self.carry.updates

    def measure(self) -> None:
        self._seconds = 0.0

    def report(self, recent: bool = False) -> UsageReport:
        """One program has one phase."""
        del recent
        return single_process_usage(self.name, {"program": self._seconds})

    def save(self) -> dict[str, PyTree]:
        return {"carry": self.carry, "host": {}}

    def begin_from(self, states: Mapping[str, PyTree]) -> None:
        own = {group: jax.device_put(state, self._shardings.states[group]) for group, state in states.items()}
        self.carry = self.carry._replace(states={**self.carry.states, **own})

    def exchange(self, change: StateChange) -> tuple[None, int]:
        self.begin_from(change(self.carry.states, self.carry.updates))
        return None, 0

    def load(self, saved: dict[str, PyTree] | None, env_steps: int) -> int:
        """Continues from the result of `save`; no episode is lost, so it returns 0."""
        assert saved is not None
        self.carry = jax.device_put(saved["carry"], self._shardings)
        # Not by its iterations: under `central` these were of a part of the environments.
        self._env_steps = env_steps
        self._snapshots.begin(env_steps)
        return 0

    def listen(self, seconds: float) -> None:
        """No other process works on it."""

    def rest(self) -> None:
        """No other process works on it."""

    def hurry(self) -> None:
        """There is no other process to wait for."""

    def close(self) -> None:
        pass

    def _iterate(self, carry: Carry, iterations: Array, target: Array) -> tuple[Carry, IterationMetrics, Array, Array]:
        """Runs `iterations` iterations; fewer if the target return is reached, or an update is refused."""

        def once(carry: Carry) -> tuple[Carry, IterationMetrics]:
            carry, trajectories, finished = self.loop.unroll(carry, self._chunk())
            return self.stage.iterate(carry, self._sharded(trajectories), finished)

        def unfinished(now: tuple[Array, Array, Carry, IterationMetrics]) -> Array:
            i, reached, _, total = now
            return (i < iterations) & ~reached & ~finite.any_refused(total.broken)

        def body(now: tuple[Array, Array, Carry, IterationMetrics]) -> tuple[Array, Array, Carry, IterationMetrics]:
            i, _, carry, total = now
            carry, metrics = once(carry)
            return i + 1, totals.window_mean(carry) >= target, carry, totals.add(total, metrics)

        nothing = totals.empty(jax.eval_shape(once, carry)[1])
        start = (jnp.int32(0), jnp.bool_(False), carry, nothing)
        done, reached, carry, total = jax.lax.while_loop(unfinished, body, start)
        return carry, total, done, reached

    def _chunk(self) -> int:
        """The number of steps to unroll: launch-bound devices gain; CPUs would lose compile time and cache."""
        most = 1 if self.mesh.devices.flat[0].platform == "cpu" else CHUNK
        return max(k for k in range(1, most + 1) if self.loop.graph.unroll % k == 0)

    def _sharding(self, carry: Carry) -> Carry:
        """Columns and replays are sharded over the devices; learners' states are replicated."""
        whole = NamedSharding(self.mesh, PartitionSpec())
        spread = NamedSharding(self.mesh, PartitionSpec("columns"))

        def everywhere(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda _: whole, tree)

        def columns(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda _: spread, tree)

        return everywhere(carry)._replace(
            actors=columns(carry.actors), running=columns(carry.running), environments=columns(carry.environments),
            replays=replay_shards.shardings(carry.replays, self.mesh),
        )  # fmt: skip

    def _sharded(self, trajectories: PyTree) -> PyTree:
        """Keeps every column of a trajectory on the device whose environments made it."""
        if self.mesh.size == 1:
            return trajectories
        time_major = NamedSharding(self.mesh, PartitionSpec(None, "columns"))
        column_major = NamedSharding(self.mesh, PartitionSpec("columns"))

        def keep(trajectory: Any) -> Any:
            fields = {
                name: jax.lax.with_sharding_constraint(value, column_major if name in PER_COLUMN else time_major)
                for name, value in trajectory._asdict().items()
                if jax.tree.leaves(value)
            }
            return trajectory._replace(**fields)

        return {group: keep(trajectory) for group, trajectory in trajectories.items()}
