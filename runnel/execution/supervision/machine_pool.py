"""The machines that a run can use: this one, or those of a cluster, which may change while it runs."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runnel import distributions
from runnel.errors import RunFailed, UserError
from runnel.execution.building import BuiltRun, planned
from runnel.launch import LocalLauncher
from runnel.launch.site import LocalSite, Site
from runnel.launch.standalone import ClusterStandalone, LocalStandalone, StandaloneLauncher
from runnel.planning.plan import Machine, Plan
from runnel.system.platform import check_worker_processes
from runnel.transport.interface import SHARED_MEMORY

if TYPE_CHECKING:
    from runnel.launch.cluster import Cluster


ANOTHER_S = 20.0
"""How long a run that has lost its last machine waits for another, or for the same one, to join."""


class MachinePool(Protocol):
    """The machines there are now, and the `Site` on which a worker group starts."""

    flags: str
    """Flags with which another command finds the same machines."""

    @property
    def machines(self) -> tuple[Machine, ...]: ...

    def site(self, logs: Path) -> Site: ...

    def standalone(self) -> StandaloneLauncher:
        """Starts workers that are no part of the plan: those that evaluate."""
        ...

    def leave(self, host: str) -> None:
        """A machine is lost."""
        ...

    def grows(self) -> bool:
        """Whether machines could join."""
        ...

    def grow(self) -> tuple[list[str], dict[str, str]]:
        """Admits them; returns the names of those that have joined, and why others could not."""
        ...

    def traffic(self) -> dict[str, Any]:
        """The traffic between machines, by machine."""
        ...

    def rejections(self, at_once: bool = False) -> list[dict[str, Any]]:
        """Events about rejected connections, as keywords; from time to time, or `at_once`."""
        ...

    def abort(self) -> None:
        """Ends all workers at once."""
        ...

    def close(self) -> None: ...


class SingleMachine:
    """This one."""

    flags = ""

    def __init__(self, launcher: LocalLauncher | None = None, transport: str = SHARED_MEMORY):
        self._launcher, self._transport = launcher, transport
        self._here = Machine.here()  # before this process is kept off its devices

    @property
    def machines(self) -> tuple[Machine, ...]:
        return (self._here,)

    def site(self, logs: Path) -> Site:
        self._launcher = self._launcher or LocalLauncher()
        return LocalSite(self._launcher, logs, self._transport)

    def standalone(self) -> StandaloneLauncher:
        return LocalStandalone()

    def leave(self, host: str) -> None:
        raise AssertionError("there is no other machine")

    def grows(self) -> bool:
        return False

    def grow(self) -> tuple[list[str], dict[str, str]]:
        return [], {}

    def traffic(self) -> dict[str, Any]:
        return {}

    def rejections(self, at_once: bool = False) -> list[dict[str, Any]]:
        return []

    def abort(self) -> None:
        if self._launcher is not None:
            self._launcher.close(0.0)

    def close(self) -> None:
        if self._launcher is not None:
            self._launcher.close()


class ClusterMachines:
    """Those of a cluster."""

    def __init__(self, cluster: Cluster, flags: str = ""):
        self.cluster, self.flags = cluster, flags

    @property
    def machines(self) -> tuple[Machine, ...]:
        joined = [agent.joined for agent in self.cluster.agents.values()]
        return tuple(Machine(each.cpus, tuple(each.devices), each.name, each.address) for each in joined)

    def site(self, logs: Path) -> Site:
        self.cluster.logs = logs
        return self.cluster

    def standalone(self) -> StandaloneLauncher:
        return ClusterStandalone(self.cluster)

    def leave(self, host: str) -> None:
        self.cluster.drop(host)
        if self.cluster.agents:
            return
        # It may only be its agent that ended.
        if not self.cluster.finds_another(ANOTHER_S) or not self.cluster.join()[0]:
            raise RunFailed(f"{host} was the last machine, and is lost", page="cluster#when-machines-come-and-go")

    def grows(self) -> bool:
        return bool(self.cluster.new)

    def grow(self) -> tuple[list[str], dict[str, str]]:
        return self.cluster.join()

    def traffic(self) -> dict[str, Any]:
        return self.cluster.traffic()

    def rejections(self, at_once: bool = False) -> list[dict[str, Any]]:
        return self.cluster.rejections(at_once)

    def abort(self) -> None:
        self.cluster.close(0.0)

    def close(self) -> None:
        self.cluster.shutdown()


def check_workers(plan: Plan) -> None:
    """Refuses a plan of several workers where this system cannot run them."""
    if plan.workers > 1:
        check_worker_processes(
            f"distribution {plan.distribution} runs in {plan.workers} processes",
            f"{' and '.join(distributions.of_one_process())} run in one",
        )


def replanned(built: BuiltRun, first_cpus: int, machines: tuple[Machine, ...]) -> BuiltRun:
    """The same run on other machines.

    An asynchronous run scales its actors with the number of CPUs, as far as the environments can be divided among them.
    A synchronous run keeps its number of actors, which share the CPUs that there are.
    """
    given: Any = built.distribution
    if built.plan.synchronous or not hasattr(given, "actors"):
        return on(built, machines)
    wanted = max(1, given.actors * sum(machine.cpus for machine in machines) // first_cpus)
    for actors in range(wanted, 0, -1):
        with contextlib.suppress(UserError):  # the environments cannot be split over this many actors
            return on(built._replace(distribution=replace(given, actors=actors)), machines)
    return on(built, machines)


def on(built: BuiltRun, machines: tuple[Machine, ...]) -> BuiltRun:
    """The same run, planned for these machines."""
    plan = planned(built.distribution, built.graph, built.environment, machines)
    return built._replace(plan=replace(plan, notes=(*plan.notes, *built.decided)))
