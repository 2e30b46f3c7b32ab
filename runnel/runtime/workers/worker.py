"""Picks a worker's role from the nodes of its fragment. Nothing here, or in a role, knows a distribution."""

from __future__ import annotations

from runnel.runtime.workers.actor import Actor
from runnel.runtime.workers.assembly import Assignment
from runnel.runtime.workers.inference_worker import InferenceWorker
from runnel.runtime.workers.learner import Learner
from runnel.runtime.workers.parameters import ParameterReader
from runnel.runtime.workers.trainer_worker import TrainerWorker
from runnel.runtime.workers.unroll_gate import UnrollGate
from runnel.runtime.workers.worker_loop import Role, run


def run_worker(a: Assignment) -> None:
    """Runs one replica of a fragment until the launcher stops it."""
    run(a.context, make_role(a))


def role_of(a: Assignment) -> type[Role]:
    """A learner or trainer where there are nodes after the rollout; else an actor or an inference worker."""
    if a.training_nodes:
        return Learner if a.learns else TrainerWorker
    return Actor if a.steps_envs else InferenceWorker


def make_role(a: Assignment) -> Role:
    role = role_of(a)
    if role is Learner or role is TrainerWorker:
        return role(a)
    reader = ParameterReader(a)
    if role is Actor:
        return role(a, reader.for_acting, UnrollGate(a.context, reader.stores, a.leads, early=a.asks_early))
    return InferenceWorker(a, reader.for_acting)
