"""A learner: runs the nodes that change a group's state, publishes it, and decides when training ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from runnel.planning.cuts import learns
from runnel.runtime.control_messages import Go
from runnel.runtime.recovery.journal import Arrays
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.parameters import ParameterPublisher
from runnel.runtime.workers.ports import InPort
from runnel.runtime.workers.snapshot_sender import SnapshotSender
from runnel.runtime.workers.trainer_worker import TrainerWorker
from runnel.runtime.workers.worker_loop import Worker


class Learner(Worker):
    """The work is a trainer's; what a learner adds is its boundary: stop, publish, release."""

    def __init__(self, a: Assignment):
        self.a, self.context = a, a.context
        self.worker = TrainerWorker(a)
        self.progress = self.worker.progress
        self.publisher = ParameterPublisher(a)
        self.snapshots = SnapshotSender(a, a.snapshots, self.progress.env_steps)
        self._any = jax.jit(jnp.any)
        self._only = sum(each.replicas for each in a.plan.fragments if learns(each, a.run_graph)) == 1

    def compile(self) -> None:
        self.worker.compile()

    def boundary(self) -> None:
        a, context, trainer = self.a, self.context, self.worker.trainer
        context.poll()
        # An asynchronous learner may also pause while it waits for unrolls: what it has of them is lost. Several that
        # are one program may not: they pause where they agree to, or where all have caught up and none has an unroll.
        context.between = a.free and (a.spmd is None or a.fragment.replicas == 1 or a.catches_up)
        self.snapshots.boundary(trainer.carry, self.progress.env_steps, self._wanted())
        while self._stops():
            context.pause()
        self.publisher.publish(trainer.carry, self.worker.clock)
        self.worker.held.release()  # only now: an unroll that finds room begins with what was just published
        self.progress.report_if_due()

    def _stops(self) -> bool:
        """Whether to pause here. Learners of one SPMD program all pause where one of them does."""
        complete = self.progress.complete()
        stops = (self.context.pausing or complete) and not self.context.too_early()
        return stops if self.a.spmd is None else bool(self._any(self.a.spmd.flags(stops)))

    def _wanted(self) -> bool:
        wanted, self.context.snapshot_wanted = self.context.snapshot_wanted, False
        return wanted

    def iteration(self) -> int | None:
        return self.progress.iteration()

    def on_go(self, command: Go) -> None:
        self.progress.on_go(command)

    def on_snapshot(self) -> None:
        self.snapshots.boundary(self.worker.trainer.carry, self.progress.env_steps, self._wanted())
        self.snapshots.flush()

    def on_pause(self) -> None:
        """Reports all that was done."""
        self.worker.work.before_pause()
        self.snapshots.flush()
        self.progress.report()

    def turn(self) -> None:
        self.worker.turn()

    def drain(self) -> bool:
        """Empties its streams in a pause, so that other workers reach the end of their iteration.

        A learner that rests at the end of training does so only for other learners, which may still need unrolls.
        """
        if self.a.pauses or not self.a.free:
            return self.worker.drain()
        if self._only and not self.context.asked:
            return False
        self.worker.held.release()
        collector = self.worker.work.collector
        values = [p for stream, p in self.a.ends.streams.items() if isinstance(p, InPort) and stream.kind == "value"]
        found = [source.drain() for source in (*((collector,) if collector is not None else ()), *values)]
        return any(found)

    def episode_sums(self) -> dict[str, tuple[float, int]]:
        return self.worker.episode_sums()

    def save(self) -> Arrays:
        return self.worker.save()
