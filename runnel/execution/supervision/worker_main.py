"""The entry points of worker processes: each builds and runs a worker from a JSON job, descriptors and a control line.

`step_environments` is the entry of workers that only step host environments, and never imports JAX; `work` is that of
all others.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

from runnel import envs as environments
from runnel.environment import HostEnvironment, HostVector
from runnel.runtime.control_messages import Load, ReadyToLoad, Reset, Stop, parse_command
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery.block_checkpoint import BlockStart
from runnel.runtime.recovery.journal import BlockMemory
from runnel.runtime.worker_jobs import BuildJob, StreamJob, WorkerDescriptors, parse_run_job, parse_worker_job
from runnel.runtime.workers.ports import InPort, OutPort, ResetRequested, Stopped, WorkerContext
from runnel.transport import interface, shared_memory

_CACHE: dict[str, Any] = {}
"""By settings: the run that a fork server has built for all workers that are forked from it."""


def step_environments(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Steps host environments."""
    from runnel.planning.schemas import GroupTypes
    from runnel.runtime.workers.env_worker import EnvWorker

    with _bootstrap(job, control, fds) as bootstrap:
        env = bootstrap.job.env
        assert env is not None
        world = environments.make(env.environment.name, **env.environment.settings)
        assert isinstance(world, HostEnvironment)
        types = {
            group: GroupTypes(world.spec.groups[group], own.action, own.extras, own.memory, own.real, own.omits)
            for group, own in env.groups.items()
        }
        vectors = _Vectors(world, bootstrap.job.run.seed)

        def run(context: WorkerContext, start: BlockStart) -> None:
            ports = bootstrap.ports(context)

            def find(kind: str, group: str, block: int) -> list[Any]:
                return [p for s, p in ports if (s.kind, s.group, s.block) == (kind, group, block)]

            EnvWorker(
                context,
                types,
                env.rolled,
                env.unroll,
                env.discounts,
                {block.number: range(block.start, block.stop) for block in env.blocks},
                find,
                {store.group: end.reader() for store, end in bootstrap.stores},
                vectors.open,
                env.early,
                env.leads,
                start,
                bootstrap.memory,
            ).run()

        bootstrap.run(run)


def prepare(job: dict[str, Any]) -> None:
    """Builds what all workers of a run need, once, in the server they are forked from."""
    import jax

    run = parse_run_job(job)
    jax.config.update("jax_enable_x64", run.x64)
    _built(run.build)


def work(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Acts and learns; steps JAX environments, or host environments whose policies it holds."""
    from runnel.algorithms.opponent_pool import OpponentPool
    from runnel.config.jax_config import cache_every_program, configure_jax
    from runnel.environment import JaxEnvironment, is_traceable
    from runnel.envs.stepped import Stepped
    from runnel.planning.channels import derive_channels
    from runnel.runtime.programs.snapshots import SnapshotSchedule
    from runnel.runtime.programs.spmd import Spmd, join
    from runnel.runtime.workers.assembly import Assignment, StreamEnds
    from runnel.runtime.workers.compile_watch import watch_compiler
    from runnel.runtime.workers.worker import run_worker

    configure_jax()
    with _bootstrap(job, control, fds) as bootstrap:
        watch_compiler(lambda: bootstrap.context)
        peers, shared = bootstrap.job.peers, bootstrap.job.run
        joined = None if peers is None else join(peers.address, peers.processes, peers.rank, peers.devices)
        built = _built(shared.build)
        if any(isinstance(built.algorithm.for_group(group), OpponentPool) for group in built.graph.spec.groups):
            cache_every_program()  # at a decision, workers begin again and compile their programs anew
        traced = is_traceable(built.environment)
        topology = derive_channels(built.plan, built.graph, not traced)
        spec = next(spec for spec in topology.workers if spec.name == bootstrap.job.name)
        streams, stores = topology.of(spec.name)
        world: Any = Stepped(built.environment) if traced else built.environment  # type: ignore[arg-type]
        vectors = _Vectors(world, shared.seed)

        def run(context: WorkerContext, start: BlockStart) -> None:
            own = dict(zip(streams, (port for _, port in bootstrap.ports(context)), strict=True))
            readers, writers = {}, {}
            for store, (_, end) in zip(stores, bootstrap.stores, strict=True):
                if store.source == spec.name:
                    writers[store.group] = (store, end.writer([bootstrap.bells[name] for name in store.targets]))
                else:
                    readers[store.group] = (store, end.reader())
            assignment = Assignment(
                context,
                built.graph,
                built.plan,
                topology,
                spec,
                StreamEnds(own, readers, writers),
                shared.seed,
                built.environment if isinstance(built.environment, JaxEnvironment) and traced else None,
                vectors.open,
                bootstrap.memory,
                start,
                joined or (Spmd(len(spec.devices)) if len(spec.devices) > 1 else None),
                SnapshotSchedule(shared.snapshot_periods, shared.optional_snapshots),
            )
            run_worker(assignment)

        bootstrap.run(run)


def _built(job: BuildJob) -> Any:
    """The run's graph, plan and environment, as the launcher built them."""
    from runnel.algorithm import Algorithm
    from runnel.config import serialization
    from runnel.execution.building import build
    from runnel.planning.plan import Distribution, Machine

    key = json.dumps(asdict(job), sort_keys=True)
    if key not in _CACHE:
        _CACHE[key] = build(
            serialization.from_json(job.algorithm, Algorithm),
            job.environment.name,
            serialization.from_json(job.distribution, Distribution),
            job.envs,
            env_settings=job.environment.settings,
            machine=tuple(Machine.from_json(data) for data in job.machines),
            frozen=job.frozen,
            precision=cast(Any, job.precision),
        )
    return _CACHE[key]


class _Vectors:
    """Environments are opened once: a worker that returns to a checkpoint keeps those it has."""

    def __init__(self, world: Any, seed: int):
        self._world, self._seed = world, seed
        self._open: dict[tuple[int, ...], HostVector] = {}

    def open(self, indices: Sequence[int]) -> HostVector:
        key = tuple(indices)
        if key not in self._open:
            self._open[key] = self._world.open(indices, self._seed)
        return self._open[key]


class WorkerBootstrap:
    """A worker's job, and its ends of the channels whose descriptors were passed with the job."""

    def __init__(self, job: dict[str, Any], control: Any, fds: Sequence[int]):
        self.job, self.control = parse_worker_job(job), control
        given = WorkerDescriptors.of(self.job, fds)
        self.bell = shared_memory.SharedBell.attach(given.bell, self.job.spin_s)
        self.bells = {
            name: shared_memory.SharedBell.attach(own) for name, own in zip(self.job.bells, given.bells, strict=True)
        }
        transport = interface.load(self.job.transport)
        self.streams = [
            transport.attach_stream(fd, stream.schema, stream.slots)
            for stream, fd in zip(self.job.streams, given.streams, strict=True)
        ]
        self.stores = [
            (store, transport.attach_store(fd, store.schema))
            for store, fd in zip(self.job.stores, given.stores, strict=True)
        ]
        self.memory = BlockMemory(given.journal)
        self.context = self._context()

    def _context(self) -> WorkerContext:
        return WorkerContext(self.job.name, self.bell, self.control)

    def run(self, work: Callable[[WorkerContext, BlockStart], None]) -> None:
        """Works until `Stop`. After `Reset` it drops its state and starts from the next `Load`."""
        while True:
            start = self._start()
            try:
                work(self.context, start)
            except ResetRequested:
                counts = self.context.counts
                self.context = self._context()
                self.context.counts = counts
                self.memory.rewind()
                gc.collect()  # frees the memory of the last worker before the next one allocates as much
                self.control.send(ReadyToLoad().to_json())

    def ports(self, context: WorkerContext) -> list[tuple[StreamJob, Any]]:
        """New ends of every stream."""
        found: list[tuple[StreamJob, Any]] = []
        for spec, stream in zip(self.job.streams, self.streams, strict=True):
            if spec.source == self.job.name:
                writer = stream.writer(self.bell, self.bells[spec.target])
                found.append((spec, OutPort(context, writer, spec.name, spec.target_rotation)))
            else:
                reader = stream.reader(self.bell, self.bells[spec.source])
                found.append((spec, InPort(context, reader, spec.name, spec.source_rotation)))
        return found

    def _start(self) -> BlockStart:
        """Waits for `Load`: the state to start from."""
        while True:
            self.bell.beat()
            message = self.control.receive(1.0)
            if message is not None:
                match parse_command(message.value):
                    case Stop():
                        raise Stopped
                    case Load(rejoins, suspect):
                        arrays = dict(message.arrays)
                        initial = {name: arrays.pop(name) for name in list(arrays) if names.is_initial(name)}
                        return BlockStart(arrays, rejoins, suspect, initial)
                    case Reset():
                        self.control.send(ReadyToLoad().to_json())
                    # Any other command was meant for the work that this worker has dropped.
            elif self.control.closed:
                raise Stopped


@contextlib.contextmanager
def _bootstrap(job: dict[str, Any], control: Any, fds: Sequence[int]) -> Iterator[WorkerBootstrap]:
    bootstrap = WorkerBootstrap(job, control, fds)
    try:
        yield bootstrap
    except Stopped:
        pass
    finally:
        with contextlib.suppress(OSError, Stopped):
            bootstrap.context.report()
