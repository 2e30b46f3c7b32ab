"""One machine's share of a run: the shared memory of its workers, and their processes.

Its inputs can be sent as JSON, so that the driver uses it in the same way on its own machine and, through a host agent,
on others. The channels between workers are created once and outlive each of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from runnel.launch.core_balancer import CoreBalancer, StepProgress
from runnel.launch.local_launcher import LocalLauncher, LocalProcess, WorkerCommand
from runnel.launch.logs import WorkerLogs
from runnel.launch.process_watch import ProcessWatch
from runnel.runtime.recovery.journal import BlockMemory
from runnel.runtime.worker_jobs import WorkerDescriptors
from runnel.system.limits import RUN, WORKER, check_descriptors
from runnel.system.oom import oom_kills
from runnel.system.platform import open_descriptors
from runnel.transport import interface, shared_memory
from runnel.transport.parameter_store import ParameterStore
from runnel.transport.stream import End, Field, Schema, Stream

ENV_ONLY_MODULES = (
    "runnel.execution.supervision.worker_main",
    "runnel.runtime.workers.env_worker",
    "runnel.envs.gymnasium",
)
"""The modules of workers that only step environments; the server that they are forked from imports them in advance."""

JAX_MODULES = (
    "runnel.execution.supervision.worker_main",
    "runnel.execution.building",
    "runnel.runtime.workers.worker",
    "runnel.envs.stepped",
    "runnel.nn",
)
"""Those of all other workers."""


@dataclass(frozen=True)
class HostStream:
    """A stream that has at least one end here."""

    id: int  # the same on every host
    kind: str
    source: str  # workers
    target: str
    schema: Schema
    slots: int
    bounds: tuple[int, ...] = ()  # if its reader asks which unrolls have begun: the stores that count iterations


@dataclass(frozen=True)
class HostParameters:
    """A parameter store that is written or read here."""

    id: int
    source: str
    targets: tuple[str, ...]
    schema: Schema


@dataclass(frozen=True)
class HostChannels:
    """The channels that have an end on a host. `workers` are on it; any other name is that of a worker elsewhere."""

    workers: tuple[str, ...]
    streams: tuple[HostStream, ...]
    stores: tuple[HostParameters, ...]
    balanced: tuple[str, ...] = ()  # workers that synchronise at a barrier, with a core for each
    transport: str = interface.SHARED_MEMORY  # the import path of what makes streams and stores

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        streams = [HostStream(**{**each, "schema": _schema(each), "bounds": tuple(each["bounds"])})
                   for each in data["streams"]]  # fmt: skip
        stores = [HostParameters(**{**each, "schema": _schema(each), "targets": tuple(each["targets"])})
                  for each in data["stores"]]  # fmt: skip
        return cls(tuple(data["workers"]), tuple(streams), tuple(stores), tuple(data["balanced"]), data["transport"])

    def bytes(self, transport: interface.Transport) -> int:
        """How much of the machine's memory the streams and stores take."""
        streams = sum(transport.stream_bytes(stream.schema, stream.slots) for stream in self.streams)
        return streams + sum(transport.store_bytes(store.schema) for store in self.stores)


def _schema(data: Mapping[str, Any]) -> Schema:
    return tuple(Field(tuple(shape), dtype) for shape, dtype in data["schema"])


@dataclass(frozen=True)
class WorkerOrder:
    """A worker to start."""

    name: str
    entry: str
    job: dict[str, Any]
    env_only: bool
    environ: dict[str, str]
    accelerators: tuple[str, ...]  # their numbers, as this host counts them
    peers: tuple[str, ...]  # whose bells it rings
    streams: tuple[int, ...]
    stores: tuple[int, ...]

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        return cls(**{**data, **{name: tuple(data[name]) for name in ("accelerators", "peers", "streams", "stores")}})


class HostRuntime:
    """The memory and the processes. `away` is the courier's bell, which is rung for workers on other machines."""

    def __init__(
        self, layout: HostChannels, launcher: LocalLauncher, logs: Path, away: shared_memory.SharedBell | None = None
    ):
        self.layout, self.launcher, self.logs, self.away = layout, launcher, logs, away
        transport = interface.load(layout.transport)
        shared_memory.check_room(layout.bytes(transport))
        needed = RUN + WORKER * len(layout.workers) + len(layout.streams) + len(layout.stores)
        check_descriptors(open_descriptors() + needed)
        self.processes: dict[str, LocalProcess] = {}
        self.bells: dict[str, shared_memory.SharedBell] = {}
        self.journals: dict[str, BlockMemory] = {}
        self.streams: dict[int, Stream] = {}
        self.stores: dict[int, ParameterStore] = {}
        self._ends: dict[str, list[tuple[int, End]]] = defaultdict(list)  # by worker: those of streams
        for stream in layout.streams:
            self._ends[stream.source].append((stream.id, "writer"))
            self._ends[stream.target].append((stream.id, "reader"))
        self.watch = ProcessWatch()
        self._balancer: CoreBalancer | None = None
        self._logs = WorkerLogs()
        try:
            for name in layout.workers:
                self.bells[name], self.journals[name] = shared_memory.SharedBell.create(), BlockMemory.create()
            self.streams |= {each.id: transport.create_stream(each.schema, each.slots) for each in layout.streams}
            self.stores |= {each.id: transport.create_store(each.schema) for each in layout.stores}
        except BaseException:
            self.free()
            raise

    def start(self, orders: Sequence[WorkerOrder]) -> list[LocalProcess]:
        """Starts workers."""
        workers = [
            WorkerCommand(order.name, order.entry, order.job, self._fds(order), order.env_only, _environ(order),
                   log=self.logs / f"{order.name}.log")
            for order in orders
        ]  # fmt: skip
        started = self.launcher.start_all(workers)
        self.processes |= {process.name: process for process in started}
        self.watch.add(started)
        if self.layout.balanced and self._balancer is None:
            self._balancer = CoreBalancer(self._progress)
            self._balancer.start()
        return started

    def _progress(self) -> dict[int, StepProgress]:
        """By process id: the steps of the workers that reach a barrier together."""
        processes, bells = self.processes.copy(), self.bells  # one may end meanwhile
        return {
            processes[name].pid: StepProgress(bells[name].steps(), bells[name].sleeps())
            for name in self.layout.balanced
            if name in processes
        }

    def _fds(self, order: WorkerOrder) -> tuple[int, ...]:
        return WorkerDescriptors(
            self.bells[order.name].fds,
            tuple(self.bell(name).fds for name in order.peers),
            tuple(self.streams[number].fileno() for number in order.streams),
            tuple(self.stores[number].fileno() for number in order.stores),
            self.journals[order.name].fileno(),
        ).flat()

    def bell(self, name: str) -> shared_memory.SharedBell:
        """A worker's bell; the courier's, if the worker is on another machine."""
        if name in self.bells:
            return self.bells[name]
        assert self.away is not None
        return self.away

    def poll(self, seconds: float) -> set[str]:
        """The workers that have sent a report or ended."""
        self._logs.look(process.log for process in self.processes.values())
        return self.watch.poll(seconds)

    def beats(self, name: str) -> int | None:
        """A worker's count of heartbeats."""
        return self.bells[name].beats()

    def ring(self, name: str) -> None:
        """Wakes a worker."""
        self.bells[name].ring()

    def oom_kills(self) -> int | None:
        """How many processes the kernel has killed because memory ran out."""
        return oom_kills()

    def reap(self, name: str) -> None:
        """Ends a worker that is lost, and prepares its ends of streams for its replacement."""
        self.watch.drop(name)
        if name in self.processes:
            self.processes.pop(name).close()
        for number, end in self._ends[name]:
            self.streams[number].reset_end(end)

    def clear(self) -> None:
        """Empties all channels. No worker may be at work."""
        for each in (*self.streams.values(), *self.stores.values()):
            each.clear()

    def free(self) -> None:
        """Frees the memory, after the launcher has ended the workers."""
        if self._balancer is not None:
            self._balancer.close()
        self.watch.close()
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
