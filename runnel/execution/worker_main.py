"""Where worker processes begin: from a job of JSON, descriptors and a line to the launcher, to a worker at work.

`play` is the entry of workers that play host environments, and never imports JAX; `work` is that of all others.
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
from runnel.runtime.recovery.block_checkpoint import BlockStart
from runnel.runtime.recovery.journal import BlockMemory
from runnel.runtime.workers.ports import InPort, OutPort, ResetRequested, Stopped, WorkerContext
from runnel.transport import interface, shared_memory
from runnel.transport.stream import Field, Schema

_CACHE: dict[str, Any] = {}
"""What a fork server has built for all workers that come of it."""


def play(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Plays host environments."""
    from runnel.planning.schemas import GroupTypes, fields_of
    from runnel.runtime.workers.env_worker import EnvWorker

    with _desk(job, control, fds) as desk:
        world = environments.make(job["environment"]["name"], **job["environment"]["settings"])
        assert isinstance(world, HostEnvironment)
        types = {}
        for group, told in job["groups"].items():
            (action,), extras, memory = (fields_of(told[name]) for name in ("action", "extras", "memory"))
            types[group] = GroupTypes(world.spec.groups[group], action, extras, memory, told["real"])

        vectors = _Vectors(world, job["seed"])

        def live(station: WorkerContext, start: BlockStart) -> None:
            ports = desk.ports(station)

            def find(kind: str, group: str, block: int) -> list[Any]:
                return [p for link, p in ports if (link["kind"], link["group"], link["block"]) == (kind, group, block)]

            EnvWorker(
                station,
                types,
                job["rolled"],
                job["unroll"],
                job["discounts"],
                {number: range(a, b) for number, a, b in job["blocks"]},
                find,
                {board["group"]: end.reader() for board, end in desk.stores},
                vectors.open,
                job["early"],
                job["leads"],
                start,
                desk.memory,
            ).run()

        desk.live(live)


def prepare(job: dict[str, Any]) -> None:
    """Builds what all workers of a run need, once, in the server they are forked from."""
    import jax

    jax.config.update("jax_enable_x64", job["x64"])
    _built(job)


def work(job: dict[str, Any], control: Any, fds: Sequence[int]) -> None:
    """Acts and learns; plays JAX environments, or host environments whose policies it has."""
    from runnel.config.jax_config import configure_jax
    from runnel.environment import JaxEnvironment, is_traceable
    from runnel.envs.stepped import Stepped
    from runnel.planning.channels import derive_channels
    from runnel.runtime.programs.spmd import Spmd, join
    from runnel.runtime.workers.assembly import Assignment, StreamEnds
    from runnel.runtime.workers.compile_watch import watch_compiler
    from runnel.runtime.workers.worker import run_worker

    configure_jax()
    with _desk(job, control, fds) as desk:
        watch_compiler(lambda: desk.station)
        if job["peers"] is not None:
            join(**job["peers"])
        built = _built(job)
        traced = is_traceable(built.environment)
        topology = derive_channels(built.plan, built.graph, not traced)
        post = next(post for post in topology.posts if post.name == job["name"])
        links, boards = topology.of(post.name)
        world: Any = Stepped(built.environment) if traced else built.environment  # type: ignore[arg-type]
        vectors = _Vectors(world, job["seed"])

        def live(station: WorkerContext, start: BlockStart) -> None:
            own = dict(zip(links, (port for _, port in desk.ports(station)), strict=True))
            readers, writers = {}, {}
            for board, (_, end) in zip(boards, desk.stores, strict=True):
                if board.source == post.name:
                    writers[board.group] = (board, end.writer([desk.bells[name] for name in board.targets]))
                else:
                    readers[board.group] = (board, end.reader())
            assignment = Assignment(
                station,
                built.graph,
                built.plan,
                topology,
                post,
                StreamEnds(own, readers, writers),
                job["seed"],
                built.environment if isinstance(built.environment, JaxEnvironment) and traced else None,
                vectors.open,
                desk.memory,
                start,
                Spmd(len(post.devices)) if job["peers"] is not None or len(post.devices) > 1 else None,
            )
            run_worker(assignment)

        desk.live(live)


def _built(job: dict[str, Any]) -> Any:
    """What the run is made of, as the launcher built it."""
    from runnel.algorithm import Algorithm
    from runnel.config import serialization
    from runnel.execution.building import build
    from runnel.planning.plan import Distribution, Machine

    config = job["config"]
    key = json.dumps([config, job["machines"]], sort_keys=True)
    if key not in _CACHE:
        machines = tuple(Machine.from_json(told) for told in job["machines"])
        _CACHE[key] = build(
            serialization.from_json(config["algorithm"], Algorithm),
            config["environment"]["name"],
            serialization.from_json(config["distribution"], Distribution),
            config["envs"],
            env_settings=config["environment"]["settings"],
            machine=machines,
        )
    return _CACHE[key]


class _Vectors:
    """Environments are opened once: a worker that must go back to a checkpoint goes on with those it has."""

    def __init__(self, world: Any, seed: int):
        self._world, self._seed = world, seed
        self._open: dict[tuple[int, ...], HostVector] = {}

    def open(self, indices: Sequence[int]) -> HostVector:
        key = tuple(indices)
        if key not in self._open:
            self._open[key] = self._world.open(indices, self._seed)
        return self._open[key]


class WorkerBootstrap:
    """What a worker was handed: bells come first among the descriptors, then streams, stores, and its journal."""

    def __init__(self, job: dict[str, Any], control: Any, fds: Sequence[int]):
        rest = list(fds)
        self.job, self.control = job, control
        self.bell = shared_memory.SharedBell.attach((rest.pop(0), rest.pop(0)), job["spin_s"])
        self.bells = {name: shared_memory.SharedBell.attach((rest.pop(0), rest.pop(0))) for name in job["bells"]}
        transport = interface.load(job["transport"])
        self.streams = [
            transport.attach_stream(rest.pop(0), _schema(link["schema"]), link["slots"]) for link in job["links"]
        ]
        self.stores = [
            (board, transport.attach_store(rest.pop(0), _schema(board["schema"]))) for board in job["boards"]
        ]
        self.memory = BlockMemory(rest.pop(0))
        self.station = self._station()

    def _station(self) -> WorkerContext:
        return WorkerContext(self.job["name"], self.bell, self.control)

    def live(self, work: Callable[[WorkerContext, BlockStart], None]) -> None:
        """Works until `Stop`. After `Reset` it drops its state and starts from the next `Load`."""
        while True:
            start = self._start()
            try:
                work(self.station, start)
            except ResetRequested:
                counts = self.station.counts
                self.station = self._station()
                self.station.counts = counts
                self.memory.rewind()
                gc.collect()  # what the last life held, before the next takes as much again
                self.control.send(ReadyToLoad().to_json())

    def ports(self, station: WorkerContext) -> list[tuple[dict[str, Any], Any]]:
        """New ends of every stream."""
        found: list[tuple[dict[str, Any], Any]] = []
        for link, stream in zip(self.job["links"], self.streams, strict=True):
            name = link["name"]
            if link["source"] == self.job["name"]:
                writer = stream.writer(self.bell, self.bells[link["target"]])
                found.append((link, OutPort(station, writer, name, link["turn"], link["turns"])))
            else:
                reader = stream.reader(self.bell, self.bells[link["source"]])
                found.append((link, InPort(station, reader, name, link["source_turn"], link["source_turns"])))
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
                        return BlockStart(dict(message.arrays), rejoins, suspect)
                    case Reset():
                        self.control.send(ReadyToLoad().to_json())
                    # Anything else was meant for what this worker was at before.
            elif self.control.closed:
                raise Stopped


@contextlib.contextmanager
def _desk(job: dict[str, Any], control: Any, fds: Sequence[int]) -> Iterator[WorkerBootstrap]:
    desk = WorkerBootstrap(job, control, fds)
    try:
        yield desk
    except Stopped:
        pass
    finally:
        with contextlib.suppress(OSError, Stopped):
            desk.station.report()


def _schema(data: Sequence[Any]) -> Schema:
    return tuple(Field(tuple(shape), dtype) for shape, dtype in data)
