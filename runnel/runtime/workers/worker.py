"""Makes the worker that the nodes of a fragment ask for. Nothing here, or in a worker, knows a distribution."""

from __future__ import annotations

from runnel.runtime.workers.actor import Actor
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.inference_worker import InferenceWorker
from runnel.runtime.workers.learner import Learner
from runnel.runtime.workers.parameters import ParameterReader
from runnel.runtime.workers.trainer_worker import TrainerWorker
from runnel.runtime.workers.unroll_gate import UnrollGate
from runnel.runtime.workers.worker_loop import Worker, run


def run_worker(a: Assignment) -> None:
    """Runs one replica of a fragment until the supervisor stops it."""
    run(a.context, make_worker(a))


def worker_class(a: Assignment) -> type[Worker]:
    """A learner or trainer where there are nodes after the rollout; else an actor or an inference worker."""
    if a.training_nodes:
        return Learner if a.learns else TrainerWorker
    return Actor if a.steps_envs else InferenceWorker


def make_worker(a: Assignment) -> Worker:
    made = worker_class(a)
    if made is Learner or made is TrainerWorker:
        return made(a)
    reader = ParameterReader(a)
    if made is Actor:
        return made(a, reader.for_acting, UnrollGate(a.context, reader.stores, a.leads, early=a.asks_early))
    return InferenceWorker(a, reader.for_acting)
