"""Workers that are no part of the plan, such as those that evaluate: they have a control line and no streams.

They outlive the worker groups of a run. On a cluster each goes to the machine that has most free CPUs, and is started
by that machine's agent; its messages, arrays included, take the agent's encrypted line.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runnel.launch.host import WorkerOrder
from runnel.launch.local_launcher import LocalLauncher, LocalProcess, WorkerCommand
from runnel.launch.process_watch import ProcessWatch
from runnel.launch.site import WorkerLine
from runnel.planning.machine import DRIVER
from runnel.planning.placement import standalone_hosts

if TYPE_CHECKING:
    from runnel.launch.cluster import Cluster, RemoteProcess

MODULES = ("runnel.execution.snapshots.evaluation_worker", "runnel.execution.snapshots.evaluation_task")
"""The modules that they import; on other machines, the server that they are forked from imports them in advance."""

CLOSE_S = 1.0
"""How long they may take to end when asked."""


class StandaloneWorker(Protocol):
    """One that was started."""

    host: str
    """Its machine; empty where there is no other."""

    @property
    def control(self) -> WorkerLine: ...

    def exit_status(self) -> int | None: ...

    def machine_lost(self) -> bool:
        """Whether its machine is lost, and it with it."""
        ...

    def reachable(self) -> bool:
        """Whether its silence means anything: false while its machine is not heard from."""
        ...

    def tail(self) -> str: ...

    def close(self) -> None:
        """Ends it, at once."""
        ...


class StandaloneLauncher(Protocol):
    """Starts such workers, wherever there is room now."""

    def start(self, worker: WorkerCommand) -> StandaloneWorker: ...

    def listen(self) -> None:
        """Receives what workers of other machines have sent; does not wait. Raises `HostLost`."""
        ...

    def close(self) -> None:
        """Ends all of them."""
        ...


class _Here:
    """A worker on the driver's machine."""

    def __init__(self, process: LocalProcess, host: str):
        self.host, self.control = host, process.control
        self.exit_status, self.tail, self.close = process.exit_status, process.tail, process.close

    def machine_lost(self) -> bool:
        return False

    def reachable(self) -> bool:
        return True


class LocalStandalone:
    """A `StandaloneLauncher` of this machine, which has a name where there are others."""

    def __init__(self, host: str = "") -> None:
        self._host = host
        self._launcher: LocalLauncher | None = None

    def start(self, worker: WorkerCommand) -> StandaloneWorker:
        self._launcher = self._launcher or LocalLauncher()
        return _Here(self._launcher.start(worker), self._host)

    def listen(self) -> None:
        """Nothing to do: messages wait in the workers' sockets."""

    def close(self) -> None:
        if self._launcher is not None:
            self._launcher.close(CLOSE_S)
            self._launcher = None


class _There:
    """A worker on a machine of a cluster."""

    def __init__(self, cluster: Cluster, process: RemoteProcess):
        self._cluster, self._process, self.host = cluster, process, process.host
        self.control: WorkerLine = process
        self.exit_status, self.tail = process.exit_status, process.tail

    def machine_lost(self) -> bool:
        return self.host not in self._cluster.agents or self._process.machine_lost

    def reachable(self) -> bool:
        return self._cluster.hears(self.host)

    def close(self) -> None:
        self._cluster.end_standalone(self._process)


class ClusterStandalone:
    """A `StandaloneLauncher` of a cluster's machines, and of the driver's where none of them has a free CPU."""

    def __init__(self, cluster: Cluster):
        self._cluster, self._here = cluster, LocalStandalone(DRIVER)

    def start(self, worker: WorkerCommand) -> StandaloneWorker:
        cluster = self._cluster
        cpus = {name: agent.joined.cpus for name, agent in cluster.agents.items()}
        (host,) = standalone_hosts(1, cpus, cluster.workers_by_host())
        if host is None:
            return self._here.start(worker)
        order = WorkerOrder(worker.name, worker.entry, worker.job, worker.env_only, worker.environ, (), (), (), ())
        return _There(cluster, cluster.start_standalone(host, order))

    def listen(self) -> None:
        self._cluster.listen()

    def close(self) -> None:
        self._cluster.close_standalone(CLOSE_S)
        self._here.close()


class StandaloneProcesses:
    """An agent's side of it: the processes, and their own launcher, which the end of a worker group does not close."""

    def __init__(self, logs: Path):
        self._logs = logs
        self._launcher: LocalLauncher | None = None
        self.processes: dict[str, LocalProcess] = {}
        self.watch = ProcessWatch()

    def start(self, order: WorkerOrder) -> LocalProcess:
        if self._launcher is None:
            self._launcher = LocalLauncher(self._logs / "servers.log")
            self._launcher.warm(jax=MODULES)
        self.end(order.name)
        log = self._logs / f"{order.name}.log"
        command = WorkerCommand(order.name, order.entry, order.job, (), order.env_only, order.environ, log=log)
        process = self.processes[order.name] = self._launcher.start(command)
        self.watch.add([process])
        return process

    def end(self, name: str) -> None:
        self.watch.drop(name)
        if name in self.processes:
            self.processes.pop(name).close()

    def close(self, timeout_s: float) -> None:
        for name in self.processes:
            self.watch.drop(name)
        if self._launcher is not None:
            self._launcher.close(timeout_s)
            self._launcher = None
        self.processes.clear()
