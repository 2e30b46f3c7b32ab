"""The entry points of worker processes: each builds and runs a worker from a JSON job, descriptors and a control line.

`play` is the entry of workers that step host environments, and never imports JAX; `work` is that of all others.
"""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from runnel import envs as environments
from runnel.environment import HostEnvironment, HostVector
from runnel.runtime.control_messages import Load, ReadyToLoad, Reset, Stop, parse_command
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery.block_checkpoint import BlockStart
from runnel.runtime.recovery.journal import BlockMemory
from runnel.runtime.workers.ports import InPort, OutPort, ResetRequested, Stopped, WorkerContext
from runnel.transport import interface, shared_memory
from runnel.transport.stream import Field, Schema

_CACHE: dict[str, Any] = {}
"""What a fork server has built for all workers that are forked from it."""


def play(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Steps host environments."""
    from runnel.planning.schemas import GroupTypes, fields_of
    from runnel.runtime.workers.env_worker import EnvWorker

    with _bootstrap(job, control, fds) as bootstrap:
        world = environments.make(job["environment"]["name"], **job["environment"]["settings"])
        assert isinstance(world, HostEnvironment)
        types = {}
        for group, fields in job["groups"].items():
            (action,), extras, memory = (fields_of(fields[name]) for name in ("action", "extras", "memory"))
            types[group] = GroupTypes(world.spec.groups[group], action, extras, memory, fields["real"])

        vectors = _Vectors(world, job["seed"])

        def run(context: WorkerContext, start: BlockStart) -> None:
            ports = bootstrap.ports(context)

            def find(kind: str, group: str, block: int) -> list[Any]:
                return [p for s, p in ports if (s["kind"], s["group"], s["block"]) == (kind, group, block)]

            EnvWorker(
                context,
                types,
                job["rolled"],
                job["unroll"],
                job["discounts"],
                {number: range(a, b) for number, a, b in job["blocks"]},
                find,
                {store["group"]: end.reader() for store, end in bootstrap.stores},
                vectors.open,
                job["early"],
                job["leads"],
                start,
                bootstrap.memory,
            ).run()

        bootstrap.run(run)


def prepare(job: dict[str, Any]) -> None:
    """Builds what all workers of a run need, once, in the server they are forked from."""
    import jax

    jax.config.update("jax_enable_x64", job["x64"])
    _built(job)


def work(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Acts and learns; steps JAX environments, or host environments whose policies it holds."""
    from runnel.config.jax_config import configure_jax
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
        joined = None if job["peers"] is None else join(**job["peers"])
        built = _built(job)
        traced = is_traceable(built.environment)
        topology = derive_channels(built.plan, built.graph, not traced)
        spec = next(spec for spec in topology.workers if spec.name == job["name"])
        streams, stores = topology.of(spec.name)
        world: Any = Stepped(built.environment) if traced else built.environment  # type: ignore[arg-type]
        vectors = _Vectors(world, job["seed"])

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
                job["seed"],
                built.environment if isinstance(built.environment, JaxEnvironment) and traced else None,
                vectors.open,
                bootstrap.memory,
                start,
                joined or (Spmd(len(spec.devices)) if len(spec.devices) > 1 else None),
                SnapshotSchedule(tuple(job["snapshot_periods"])),
            )
            run_worker(assignment)

        bootstrap.run(run)


def _built(job: dict[str, Any]) -> Any:
    """The run's graph, plan and environment, as the launcher built them."""
    from runnel.algorithm import Algorithm
    from runnel.config import serialization
    from runnel.execution.building import build
    from runnel.planning.plan import Distribution, Machine

    config = job["config"]
    key = json.dumps([config, job["machines"]], sort_keys=True)
    if key not in _CACHE:
        machines = tuple(Machine.from_json(data) for data in job["machines"])
        _CACHE[key] = build(
            serialization.from_json(config["algorithm"], Algorithm),
            config["environment"]["name"],
            serialization.from_json(config["distribution"], Distribution),
            config["envs"],
            env_settings=config["environment"]["settings"],
            machine=machines,
            frozen=config["frozen"],
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
    """A worker's job and descriptors: bells come first among the descriptors, then streams, stores, and its journal."""

    def __init__(self, job: dict[str, Any], control: Any, fds: Sequence[int]):
        rest = list(fds)
        self.job, self.control = job, control
        self.bell = shared_memory.SharedBell.attach((rest.pop(0), rest.pop(0)), job["spin_s"])
        self.bells = {name: shared_memory.SharedBell.attach((rest.pop(0), rest.pop(0))) for name in job["bells"]}
        transport = interface.load(job["transport"])
        self.streams = [
            transport.attach_stream(rest.pop(0), _schema(spec["schema"]), spec["slots"]) for spec in job["streams"]
        ]
        self.stores = [(spec, transport.attach_store(rest.pop(0), _schema(spec["schema"]))) for spec in job["stores"]]
        self.memory = BlockMemory(rest.pop(0))
        self.context = self._context()

    def _context(self) -> WorkerContext:
        return WorkerContext(self.job["name"], self.bell, self.control)

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

    def ports(self, context: WorkerContext) -> list[tuple[dict[str, Any], Any]]:
        """New ends of every stream."""
        found: list[tuple[dict[str, Any], Any]] = []
        for spec, stream in zip(self.job["streams"], self.streams, strict=True):
            name = spec["name"]
            if spec["source"] == self.job["name"]:
                writer = stream.writer(self.bell, self.bells[spec["target"]])
                found.append((spec, OutPort(context, writer, name, spec["turn"], spec["turns"])))
            else:
                reader = stream.reader(self.bell, self.bells[spec["source"]])
                found.append((spec, InPort(context, reader, name, spec["source_turn"], spec["source_turns"])))
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


def _schema(data: Sequence[Any]) -> Schema:
    return tuple(Field(tuple(shape), dtype) for shape, dtype in data)
