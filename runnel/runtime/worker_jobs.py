"""The job of a worker: what its launcher writes as JSON, and the worker's process reads and checks.

The descriptors of its channels travel beside the job, in the order of `WorkerDescriptors`. Environment workers import
this: NumPy only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from runnel.config import json_messages
from runnel.config.json_messages import JsonMessage
from runnel.errors import MalformedMessage
from runnel.planning.rotation import Rotation
from runnel.transport.stream import Field, Schema


@dataclass(frozen=True)
class EnvironmentChoice:
    """An environment, as `envs.make` makes it."""

    name: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class BuildJob:
    """The settings that graph, plan and environment are built from, as `config.json` has them."""

    algorithm: Any
    environment: EnvironmentChoice
    distribution: Any
    envs: int
    frozen: tuple[str, ...]
    precision: str
    machines: tuple[dict[str, Any], ...]
    """Each a `planning.plan.Machine`."""


@dataclass(frozen=True)
class RunJob(JsonMessage):
    """The part of a job that all workers of a run share."""

    build: BuildJob
    seed: int
    x64: bool
    """Whether JAX computes with 64 bits."""
    snapshot_periods: tuple[int, ...]
    optional_snapshots: tuple[int, ...]


@dataclass(frozen=True)
class StreamJob:
    """A stream that this worker writes or reads.

    It is one list because each field is a fact of the plan that a worker without the graph cannot compute.
    """

    name: str
    kind: str
    source: str
    """The worker at the writing end."""
    target: str
    """The worker at the reading end."""
    group: str
    block: int
    source_rotation: Rotation
    target_rotation: Rotation
    slots: int
    schema: Schema


@dataclass(frozen=True)
class StoreJob:
    """A parameter store that this worker writes or reads."""

    group: str
    schema: Schema


@dataclass(frozen=True)
class BlockJob:
    """A block of environments that an environment worker steps: those from `start` to before `stop`."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class GroupJob:
    """A group's types that do not follow from the environment."""

    action: Field
    extras: tuple[Field, ...]
    memory: tuple[Field, ...]
    real: str
    """The dtype of rewards."""
    omits: tuple[str, ...] = ()
    """Fields of the group's trajectories that are not sent."""


@dataclass(frozen=True)
class EnvJob:
    """The facts about the graph that an environment worker needs: without JAX, it cannot trace the graph."""

    environment: EnvironmentChoice
    unroll: int
    early: bool
    """A block may ask for its first actions while its neighbours still step."""
    leads: dict[str, int | None]
    """By group: how many unrolls ahead of its learner an actor may begin one."""
    rolled: tuple[str, ...]
    """The groups whose trajectories are assembled in this worker."""
    discounts: dict[str, float | None]
    blocks: tuple[BlockJob, ...]
    groups: dict[str, GroupJob]


@dataclass(frozen=True)
class PeersJob:
    """How the learners of several processes, one program together, find each other."""

    address: str
    processes: int
    rank: int
    devices: int
    """How many of them this process has."""


@dataclass(frozen=True)
class WorkerJob(JsonMessage):
    """A worker's job. Its fields are one list because one process needs them all at its start."""

    name: str
    run: RunJob
    spin_s: float
    """The seconds that the worker spins before it sleeps."""
    transport: str
    """The import path of the transport that attaches to streams and stores."""
    bells: tuple[str, ...]
    """The workers whose bells this one rings."""
    streams: tuple[StreamJob, ...]
    stores: tuple[StoreJob, ...]
    peers: PeersJob | None = None
    env: EnvJob | None = None
    """The environments of an environment worker; None for other workers."""


def parse_run_job(value: Mapping[str, Any]) -> RunJob:
    """The job that a server prepares with; raises `MalformedMessage`."""
    return json_messages.parse(value, RunJob)


def parse_worker_job(value: Mapping[str, Any]) -> WorkerJob:
    """The job that a worker was started with; raises `MalformedMessage`."""
    return json_messages.parse(value, WorkerJob)


BellDescriptors = tuple[int, int]
"""Those of a `shared_memory.SharedBell`."""


class WorkerDescriptors(NamedTuple):
    """The descriptors that a worker is started with, in the order in which they are passed."""

    bell: BellDescriptors
    """The worker's own."""
    bells: tuple[BellDescriptors, ...]
    """Those of `WorkerJob.bells`."""
    streams: tuple[int, ...]
    stores: tuple[int, ...]
    journal: int

    def flat(self) -> tuple[int, ...]:
        """As one list, which `of` splits again."""
        rung = (fd for bell in self.bells for fd in bell)
        return (*self.bell, *rung, *self.streams, *self.stores, self.journal)

    @classmethod
    def of(cls, job: WorkerJob, fds: Sequence[int]) -> Self:
        """The descriptors of a worker with this job; raises `MalformedMessage` if their number is another."""
        bells, streams, stores = len(job.bells), len(job.streams), len(job.stores)
        expected = 2 + 2 * bells + streams + stores + 1
        if len(fds) != expected:
            raise MalformedMessage(f"found {len(fds)} descriptors for '{job.name}', expected {expected}")
        rest = iter(fds)
        return cls(
            (next(rest), next(rest)),
            tuple((next(rest), next(rest)) for _ in range(bells)),
            tuple(next(rest) for _ in range(streams)),
            tuple(next(rest) for _ in range(stores)),
            next(rest),
        )
