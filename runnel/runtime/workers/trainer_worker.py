"""A worker that runs nodes after the rollout: maps, replays and gradients, or those of a learner (`learner.py`)."""

from __future__ import annotations

import numpy as np

from runnel.runtime.programs.versions import Acted, ParameterStamp
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery import worker_checkpoint
from runnel.runtime.recovery.journal import Arrays
from runnel.runtime.workers.actor import Actor
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.batch_collector import BatchCollector
from runnel.runtime.workers.inference_worker import InferenceWorker
from runnel.runtime.workers.parameters import ParameterReader, RemoteStates
from runnel.runtime.workers.prefetch import Prefetch
from runnel.runtime.workers.sample_reuse import SampleReuse
from runnel.runtime.workers.stream_headers import ValueHeader
from runnel.runtime.workers.trainer import Trainer, TrainerBatch
from runnel.runtime.workers.trainer_assembly import copies_to_device, make_gradient_collector, make_trainer
from runnel.runtime.workers.training_progress import TrainingProgress
from runnel.runtime.workers.unroll_batches import HeldSlots, UnrollBatches
from runnel.runtime.workers.unroll_gate import UnrollGate
from runnel.runtime.workers.worker_loop import Worker, listen
from runnel.types import PyTree


class TrainerWorker(Worker):
    """A turn is one iteration or, of a worker that gathers gradients, one gradient of each source or of one.

    It may also step environments (`replicated`) or act for those of others (SEED): then it has an actor or an
    inference worker, whose turn comes first.
    """

    def __init__(self, a: Assignment):
        self.a, self.context = a, a.context
        self.reader = ParameterReader(a)
        self.trainer = make_trainer(a, RemoteStates(a, self.reader) if a.remote_groups else None)
        self.progress = TrainingProgress(a, self.trainer)
        self.held = HeldSlots()
        parameters = self._parameters if a.learns or a.remote_groups else self.reader.for_acting
        gate = UnrollGate(a.context, self.reader.stores, a.leads, early=False, learnt=lambda: self.progress.versions)
        self.actor = Actor(a, parameters, gate) if a.steps_envs else None
        self.inference = InferenceWorker(a, parameters) if a.serves_actions else None
        if self.actor is not None and a.start.rejoins:
            self.trainer.go_on(self.actor.unrolls)
        collector, nodes = make_gradient_collector(a)
        self.work = _Iterations(self) if collector is None else _Gradients(self, collector, nodes)

    @property
    def clock(self) -> int:
        """The clock by which the age of unrolls is measured: iterations, and repetitions of their unrolls."""
        return self.trainer.iteration + self.work.repetitions

    def _parameters(self, unroll: int) -> tuple[ParameterStamp, dict[str, PyTree]]:
        """Acts with the states that the trainer has."""
        params = {group: state.params for group, state in self.trainer.carry.states.items()}
        return ParameterStamp(self.trainer.iteration, self.acting_versions()), params

    def acting_versions(self) -> dict[str, int]:
        """By group: the updates of the parameters that act here."""
        return {**self.progress.versions, **self.reader.versions}

    def compile(self) -> None:
        if self.inference is not None:
            self.inference.compile()

    def boundary(self) -> None:
        self.held.release()
        listen(self.context, self.actor is None or self.actor.player.between_unrolls)
        self.progress.report_if_due()

    def turn(self) -> None:
        self.work.turn()

    def iteration(self) -> int | None:
        return self.trainer.iteration

    def on_pause(self) -> None:
        self.work.before_pause()
        self.progress.report()

    def drain(self) -> bool:
        return self.a.catches_up and self.trainer.take_late_priorities()

    def episode_sums(self) -> dict[str, tuple[float, int]]:
        return {} if self.actor is None else self.actor.episode_sums()

    def save(self) -> Arrays:
        saved = worker_checkpoint.save_learning(self.trainer.carry, self.a.remote_groups)
        saved[names.ENV_STEPS] = np.asarray(self.progress.env_steps)
        for part in (self.actor, self.inference):
            if part is not None:
                saved |= part.save()
        return saved


class _Iterations:
    """An iteration of unrolls: those of other workers, or of environments that are stepped or acted for here."""

    def __init__(self, worker: TrainerWorker):
        self.worker = worker
        self.copies = copies_to_device()
        self.batches = UnrollBatches(worker.a, worker.actor, worker.inference, worker.held, self.copies)
        self.collector = self.batches.collector
        self.reuse = None
        if self.collector is not None and worker.a.reuses > 1:
            self.reuse = SampleReuse(self.collector, worker.a.reuses, worker.held.release)
        self.prefetch: Prefetch | None = None
        if worker.a.free and not worker.a.in_order and worker.a.fragment.prefetch and self.copies:
            trainer: Trainer = worker.trainer
            self.prefetch = Prefetch(worker.context, self.batches.ready, self._batch, trainer.at_work)

    @property
    def repetitions(self) -> int:
        return 0 if self.reuse is None else self.reuse.repetitions

    def turn(self) -> None:
        worker, a = self.worker, self.worker.a
        trainer: Trainer = worker.trainer
        again = self._again()
        if again is not None:
            trainer.repeat(again)
            worker.progress.add_repetition()
            return
        trainer.refresh()
        if worker.actor is not None:
            worker.actor.turn()
            worker.context.between |= a.pauses and worker.actor.player.between_unrolls
        if worker.inference is not None:
            worker.inference.serve_unroll()
        batch = (None if self.prefetch is None else self.prefetch.take()) or self._batch()
        if self.reuse is not None and batch is not None:
            batch = self.reuse.keep(batch)
        trainer.iterate(batch, trainer.graph.steps_per_iteration)
        worker.progress.add_iteration()
        if self.prefetch is not None:
            self.prefetch.look(worker.clock)

    def before_pause(self) -> None:
        if self.prefetch is not None:
            self.prefetch.give_back()
        if self.reuse is not None:
            self.reuse.pause()
            self.worker.progress.dropped = self.reuse.dropped

    def _again(self) -> TrainerBatch | None:
        """The unrolls of the last iteration, if they are to be learnt from once more."""
        if self.reuse is None:
            return None
        clock = self.worker.clock
        return self.reuse.again(clock, ready=self._has_next(clock))

    def _has_next(self, clock: int) -> bool:
        """Whether newer unrolls have arrived."""
        return (self.prefetch is not None and self.prefetch.batch is not None) or self.batches.ready(clock)

    def _batch(self) -> TrainerBatch | None:
        clock = self.worker.clock
        if self.collector is not None:
            self.worker.trainer.await_input(lambda: self.batches.ready(clock), "unrolls")
        return self.batches.make(clock, self.worker.acting_versions())


class _Gradients:
    """Gradients of workers that each compute them from their own environments, as a parameter server applies them."""

    def __init__(self, worker: TrainerWorker, collector: BatchCollector, nodes: list[str]):
        self.worker, self.collector = worker, collector
        self._nodes = nodes  # by source: the node whose values it sends
        self.repetitions = 0

    def before_pause(self) -> None:
        """It keeps nothing."""

    def turn(self) -> None:
        """Applies one gradient or, at a barrier, the mean of all."""
        worker, collector, progress = self.worker, self.collector, self.worker.progress
        collected = collector.collect(worker.trainer.iteration)
        worker.context.leave_boundary()
        messages = [each.messages[0] for each in collected]
        values = worker.trainer.incoming[self._nodes[collected[0].source]]
        headers = [ValueHeader.unpack(message.header) for message in messages]
        acted = [Acted(*m.arrays[0].tolist()) for m, header in zip(messages, headers, strict=True) if header.has_value]
        progress.add_gradients(values.node.group, acted, sum(header.env_steps for header in headers))
        worker.trainer.apply_gathered(values, messages)
        worker.held.hold(lambda: collector.release(collected))
        progress.gradients_applied()
