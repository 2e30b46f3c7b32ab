"""One machine's share of a run: the memory that its workers have in common, and their processes.

It is told what to do in words that can travel, so that a launcher does the same with its own machine and, through a
host agent, with others. What connects workers is made once and outlives each of them.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from runnel.launch.core_balancer import CoreBalancer, StepProgress
from runnel.launch.local_launcher import LocalLauncher, LocalProcess, WorkerCommand
from runnel.launch.logs import WorkerLogs
from runnel.runtime.recovery.journal import BlockMemory
from runnel.system.limits import RUN, WORKER, check_descriptors, opened
from runnel.system.oom import oom_kills
from runnel.transport import interface, shared_memory
from runnel.transport.parameter_store import ParameterStore
from runnel.transport.stream import Field, Schema, Stream

LIGHT = ("runnel.execution.worker_main", "runnel.runtime.workers.env_worker", "runnel.envs.gymnasium")
HEAVY = (
    "runnel.execution.worker_main",
    "runnel.execution.building",
    "runnel.runtime.workers.worker",
    "runnel.envs.stepped",
    "rlax",
    "distrax",
)
"""What workers import; the servers that they are forked from do it for them."""


@dataclass(frozen=True)
class HostStream:
    """A stream that has at least one end here."""

    id: int  # the same on every host
    kind: str
    source: str  # workers
    target: str
    schema: Schema
    slots: int
    bounds: tuple[int, ...] = ()  # where its reader asks what was begun: the stores whose iterations that goes by


@dataclass(frozen=True)
class HostParameters:
    """A parameter store that is written or read here."""

    id: int
    source: str
    targets: tuple[str, ...]
    schema: Schema


@dataclass(frozen=True)
class HostChannels:
    """What a host holds. `posts`: its workers; any other name is that of a worker elsewhere."""

    posts: tuple[str, ...]
    streams: tuple[HostStream, ...]
    boards: tuple[HostParameters, ...]
    abreast: tuple[str, ...] = ()  # workers that wait for each other, with a core for each
    transport: str = interface.SHARED_MEMORY  # the import path of what makes streams and stores

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        streams = [HostStream(**{**each, "schema": _schema(each), "bounds": tuple(each["bounds"])})
                   for each in data["streams"]]  # fmt: skip
        boards = [HostParameters(**{**each, "schema": _schema(each), "targets": tuple(each["targets"])})
                  for each in data["boards"]]  # fmt: skip
        return cls(tuple(data["posts"]), tuple(streams), tuple(boards), tuple(data["abreast"]), data["transport"])

    def bytes(self, transport: interface.Transport) -> int:
        """How much of the machine's memory the streams and stores take."""
        streams = sum(transport.stream_bytes(stream.schema, stream.slots) for stream in self.streams)
        return streams + sum(transport.store_bytes(board.schema) for board in self.boards)


def _schema(told: Mapping[str, Any]) -> Schema:
    return tuple(Field(tuple(shape), dtype) for shape, dtype in told["schema"])


@dataclass(frozen=True)
class WorkerOrder:
    """A worker to start."""

    name: str
    entry: str
    job: dict[str, Any]
    light: bool
    environ: dict[str, str]
    accelerators: tuple[str, ...]  # their numbers, as this host counts them
    peers: tuple[str, ...]  # whose bells it rings
    streams: tuple[int, ...]
    boards: tuple[int, ...]

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, **{name: tuple(data[name]) for name in ("accelerators", "peers", "streams", "boards")}})


class HostRuntime:
    """The memory and the processes. `away` is the courier's bell, which stands for workers on other machines."""

    def __init__(
        self, layout: HostChannels, launcher: LocalLauncher, logs: Path, away: shared_memory.SharedBell | None = None
    ):
        self.layout, self.launcher, self.logs, self.away = layout, launcher, logs, away
        transport = interface.load(layout.transport)
        shared_memory.check_room(layout.bytes(transport))
        check_descriptors(opened() + RUN + WORKER * len(layout.posts) + len(layout.streams) + len(layout.boards))
        self.processes: dict[str, LocalProcess] = {}
        self.bells: dict[str, shared_memory.SharedBell] = {}
        self.journals: dict[str, BlockMemory] = {}
        self.streams: dict[int, Stream] = {}
        self.stores: dict[int, ParameterStore] = {}
        self._abreast: CoreBalancer | None = None
        self._logs = WorkerLogs()
        try:
            for name in layout.posts:
                self.bells[name], self.journals[name] = shared_memory.SharedBell.create(), BlockMemory.create()
            self.streams |= {each.id: transport.create_stream(each.schema, each.slots) for each in layout.streams}
            self.stores |= {each.id: transport.create_store(each.schema) for each in layout.boards}
        except BaseException:
            self.let_go()
            raise

    def start(self, orders: Sequence[WorkerOrder]) -> list[LocalProcess]:
        """Starts workers."""
        workers = [
            WorkerCommand(order.name, order.entry, order.job, self._fds(order), order.light, _environ(order),
                   log=self.logs / f"{order.name}.log")
            for order in orders
        ]  # fmt: skip
        started = self.launcher.start_all(workers)
        self.processes |= {process.name: process for process in started}
        if self.layout.abreast and self._abreast is None:
            self._abreast = CoreBalancer(self._standings)
            self._abreast.start()
        return started

    def _standings(self) -> dict[int, StepProgress]:
        """By process id: the steps of the workers that reach a barrier together."""
        processes, bells = self.processes.copy(), self.bells  # one may end meanwhile
        return {
            processes[name].pid: StepProgress(bells[name].steps(), bells[name].sleeps())
            for name in self.layout.abreast
            if name in processes
        }

    def _fds(self, order: WorkerOrder) -> tuple[int, ...]:
        fds = [*self.bells[order.name].fds]
        for name in order.peers:
            fds += self.bell(name).fds
        fds += [self.streams[number].fileno() for number in order.streams]
        fds += [self.stores[number].fileno() for number in order.boards]
        return (*fds, self.journals[order.name].fileno())

    def bell(self, name: str) -> shared_memory.SharedBell:
        """A worker's bell; the courier's, if the worker is on another machine."""
        if name in self.bells:
            return self.bells[name]
        assert self.away is not None
        return self.away

    def poll(self, seconds: float) -> set[str]:
        """The workers that have sent a report or ended."""
        self._logs.look(process.log for process in self.processes.values())
        poll = select.poll()
        by_fd: dict[int, str] = {}
        for name, process in self.processes.items():
            for fd in (process.control.fileno(), process.fileno()):
                if fd >= 0:
                    poll.register(fd, select.POLLIN)
                    by_fd[fd] = name
        return {by_fd[fd] for fd, _ in poll.poll(seconds * 1000)}

    def beats(self, name: str) -> int | None:
        """A worker's count of heartbeats."""
        return self.bells[name].beats()

    def ring(self, name: str) -> None:
        """Wakes a worker."""
        self.bells[name].ring()

    def oom_kills(self) -> int | None:
        """How many processes the system has killed for want of memory."""
        return oom_kills()

    def reap(self, name: str) -> None:
        """Ends a worker that is lost, and prepares its ends of streams for its replacement."""
        if name in self.processes:
            self.processes.pop(name).close()
        for stream in self.layout.streams:
            if stream.source == name:
                self.streams[stream.id].reset_end("writer")
            if stream.target == name:
                self.streams[stream.id].reset_end("reader")

    def clear(self) -> None:
        """Empties all channels. No worker may be at work."""
        for each in (*self.streams.values(), *self.stores.values()):
            each.clear()

    def let_go(self) -> None:
        """Of the memory: the launcher has ended the workers."""
        if self._abreast is not None:
            self._abreast.close()
        held: Iterable[Any] = (
            *self.streams.values(), *self.stores.values(), *self.journals.values(), *self.bells.values(),
        )  # fmt: skip
        for each in held:
            with contextlib.suppress(OSError):
                each.close()
        self.streams, self.stores, self.journals, self.bells = {}, {}, {}, {}


def _environ(order: WorkerOrder) -> dict[str, str]:
    if not order.accelerators:
        return order.environ
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    numbers = [visible[int(number)] if visible else number for number in order.accelerators]
    return order.environ | {"CUDA_VISIBLE_DEVICES": ",".join(numbers)}


def free_port(address: str) -> int:
    """A free port of this address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
