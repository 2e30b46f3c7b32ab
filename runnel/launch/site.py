"""The machines of a run's workers: this one or several. A worker group uses both through one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from runnel.launch.framing import Received
from runnel.launch.host import HostChannels, HostRuntime, WorkerOrder, free_port
from runnel.launch.local_launcher import LocalLauncher
from runnel.transport.interface import SHARED_MEMORY

LOOPBACK = "127.0.0.1"


class WorkerLine(Protocol):
    """The control line of a worker, at the launcher's end."""

    def send(self, value: Mapping[str, Any]) -> None: ...

    def send_arrays(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None: ...

    def receive(self) -> Received | None: ...

    @property
    def closed(self) -> bool: ...


class WorkerProcess(Protocol):
    """A worker's process, wherever it is."""

    name: str
    pid: int

    @property
    def control(self) -> WorkerLine: ...

    def exit_status(self) -> int | None: ...

    def wait(self, timeout_s: float) -> int | None: ...

    def stopped(self) -> bool: ...

    def tracebacks(self) -> str: ...

    def tail(self) -> str: ...


class StreamFill(Protocol):
    """A stream as seen from outside."""

    capacity: int

    def pending(self) -> int: ...

    def committed(self) -> int: ...


class Site(Protocol):
    """Hosts, by name, and the workers on them."""

    transport: str
    """The import path of what makes streams and parameter stores within each host."""

    @property
    def processes(self) -> Mapping[str, WorkerProcess]: ...

    def open(self, layouts: Mapping[str, HostChannels]) -> None:
        """Creates the channels between workers."""
        ...

    def prepare(self, entry: str, job: dict[str, Any]) -> None:
        """Has every host build what its workers need, once."""
        ...

    def start(self, orders: Mapping[str, Sequence[WorkerOrder]]) -> None:
        """Starts workers, by host."""
        ...

    def poll(self, seconds: float) -> set[str]:
        """The workers that have sent a report or ended. Raises `HostLost`."""
        ...

    def beats(self, name: str) -> int | None: ...

    def ring(self, name: str) -> None: ...

    def oom_kills(self) -> int | None: ...

    def reap(self, name: str) -> None: ...

    def clear(self) -> None: ...

    def fill(self, host: str, stream: int) -> StreamFill: ...

    def port(self, host: str) -> str:
        """An address of a host, with a port that is free, for learners to connect to each other."""
        ...

    def close(self, seconds: float) -> None: ...


class LocalSite:
    """This machine alone: a `Site`."""

    def __init__(self, launcher: LocalLauncher, logs: Path, transport: str = SHARED_MEMORY):
        self._launcher, self._logs, self.transport = launcher, logs, transport
        self._host: HostRuntime | None = None

    @property
    def host(self) -> HostRuntime:
        assert self._host is not None
        return self._host

    @property
    def processes(self) -> Mapping[str, WorkerProcess]:
        return self.host.processes

    def open(self, layouts: Mapping[str, HostChannels]) -> None:
        (layout,) = layouts.values()
        self._host = HostRuntime(layout, self._launcher, self._logs)

    def prepare(self, entry: str, job: dict[str, Any]) -> None:
        self._launcher.prepare(entry, job)

    def start(self, orders: Mapping[str, Sequence[WorkerOrder]]) -> None:
        for each in orders.values():
            self.host.start(each)

    def poll(self, seconds: float) -> set[str]:
        return self.host.poll(seconds)

    def beats(self, name: str) -> int | None:
        return self.host.beats(name)

    def ring(self, name: str) -> None:
        self.host.ring(name)

    def oom_kills(self) -> int | None:
        return self.host.oom_kills()

    def reap(self, name: str) -> None:
        self.host.reap(name)

    def clear(self) -> None:
        self.host.clear()

    def fill(self, host: str, stream: int) -> StreamFill:
        return self.host.streams[stream]

    def port(self, host: str) -> str:
        return f"{LOOPBACK}:{free_port(LOOPBACK)}"

    def close(self, seconds: float) -> None:
        self._launcher.close(seconds)
        if self._host is not None:
            self._host.free()
