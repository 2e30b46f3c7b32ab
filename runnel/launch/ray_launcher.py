"""A `HostLauncher` that starts host agents on the machines of a Ray cluster.

The connection to Ray is in a separate process (`ray_link.py`), which exchanges lines of JSON with this one. Thus the
driver does not load Ray, whose threads and signal handlers it would inherit and which ends a process that loses the
head of its cluster. A connection that is not made in time is given up by ending that process, and polling never waits.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import TypeVar

from runnel.errors import MalformedMessage, NotInstalled, RunFailed, UserError
from runnel.launch import ray_messages
from runnel.launch.fork_server_client import tail
from runnel.launch.host_launcher import AGENT, END_S, AgentInvitation, JoinedHost, joined
from runnel.launch.ray_guard import NOW
from runnel.launch.ray_messages import (
    AddMachine,
    AgentsStarted,
    ConnectedToRay,
    ConnectToRay,
    DropMachine,
    ListMachines,
    MachineList,
    MachineLost,
    MachinesFree,
    RayCall,
    RayCommand,
    RayRefused,
    RayReply,
    StartAgents,
)
from runnel.launch.ray_shares import RayRequest
from runnel.planning.machine import Machine

R = TypeVar("R")

CONNECT_S = 60.0
"""How long it may take to connect to a cluster, or to start one here."""

START_S = 120.0
"""How long the agents may take to start, all of them at once; the link has tighter limits for its parts."""

_ENVIRON = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_server_request_timeout_seconds": "10"}
LINK = ("-P", "-m", "runnel.launch.ray_link")
GUARD = ("-P", "-m", "runnel.launch.ray_guard")

LEAST = (2, 59)
"""The first Ray that refuses clients without a token by default."""


class RayHostLauncher:
    """One agent on each machine of a Ray cluster that has a free CPU.

    `address` is that of the head (`10.0.0.1:6379`); without one it is that of RAY_ADDRESS, else of a cluster that
    this machine is part of, else of one that is started on this machine and ends with `close`. The run takes all free
    CPUs of a machine, or `cpus_per_host` of them, and all its free GPUs, unless JAX_PLATFORMS restricts JAX to CPUs.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus_needed: int = 1,
        gpus_needed: int = 0,
        cpus_per_host: int | None = None,
        agent: Sequence[str] = AGENT,
    ):
        if importlib.util.find_spec("ray") is None:
            raise NotInstalled("--launcher ray", "Ray", "ray")
        check_version(importlib.metadata.version("ray"))
        self._request = 0
        self._lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._why: dict[str, str] = {}
        self._free: list[str] = []
        self._held: set[str] = set()
        self._replies: queue.SimpleQueue[RayReply | None] = queue.SimpleQueue()  # None: the link has ended
        self._malformed = ""  # why its last line could not be read
        self._closed = self._stuck = False
        self._ended = threading.Event()  # set when the link has; its guard may take longer
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._link = subprocess.Popen(
            [sys.executable, *GUARD, sys.executable, *LINK],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **_ENVIRON, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            cwd="/",  # Ray puts the working directory of its driver first on the Python path of its workers
            process_group=0,  # Ctrl-C at the terminal is this process's to handle
        )
        threading.Thread(target=self._listen, name="ray", daemon=True).start()
        wanted = RayRequest(address, cpus_needed, gpus_needed, cpus_per_host, _takes_gpus(), tuple(agent))
        try:
            ready = self._ask(ConnectToRay(wanted), ConnectedToRay, CONNECT_S)
        except BaseException:
            self.close()
            raise
        self.interface: str = ready.interface
        self.address: str = ready.address
        """The address of the cluster's head."""
        self.started: bool = ready.started
        """Whether the cluster is one that was started here."""
        self.open: bool = ready.open
        """Whether it admits clients without a token."""

    @property
    def pid(self) -> int:
        """The process id of the link's guard, whose descendants are all processes that were started."""
        return self._link.pid

    def machines(self) -> list[Machine]:
        """The machines that have a free CPU, with the devices that a run would get."""
        found = self._ask(ListMachines(), MachineList, CONNECT_S).machines
        return [
            Machine(cpus, tuple(f"cuda:{i}" for i in range(gpus)) or ("cpu:0",), name, address)
            for name, address, cpus, gpus in found
            if cpus
        ]

    def start(self, invitation: AgentInvitation) -> list[JoinedHost]:
        try:
            started = self._ask(StartAgents(invitation), AgentsStarted, START_S)
        except BaseException:
            self.close()
            raise
        machines = [joined(*each) for each in started.agents]
        self._held |= {machine.name for machine in machines}
        return machines

    def poll(self) -> tuple[list[str], list[str]]:
        lost = [self._lost.get() for _ in range(self._lost.qsize())]
        if self._ended.is_set() and not self._closed:
            raise RunFailed(f"the connection to Ray was lost: {self._said()}")
        return lost, [name for name in self._free if name not in self._held]

    def why(self, name: str) -> str:
        return self._why.get(name, "is gone")

    def add(self, invitation: AgentInvitation, name: str) -> JoinedHost:
        machine = joined(*self._ask(AddMachine(invitation, name), AgentsStarted, START_S).agents[0])
        self._held.add(name)
        return machine

    def drop(self, name: str) -> None:
        self._why.pop(name, None)
        self._held.discard(name)
        self._send(RayCall(DropMachine(name)))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        assert self._link.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._link.stdin.close()  # on which it ends the agents, and itself
        try:
            self._link.wait(2.0 if self._stuck else END_S + 20.0)
        except subprocess.TimeoutExpired:
            self._link.send_signal(NOW)  # the guard kills the link, and what is left of it
            self._link.wait()
        self._errors.close()

    def _ask(self, command: RayCommand, expected: type[R], seconds: float) -> R:
        self._request += 1
        self._send(RayCall(command, self._request))
        deadline = time.monotonic() + seconds
        while True:
            try:
                reply = self._replies.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._stuck = True
                raise UserError(
                    f"Ray has not answered within {seconds:.0f} s; look at `ray status`, and at whether all machines "
                    "of the cluster reach each other",
                    page="cluster#when-it-does-not-start",
                ) from None
            if reply is None:
                raise UserError(
                    f"the connection to Ray was lost: {self._said()}", page="cluster#when-it-does-not-start"
                )
            if reply.id != self._request:  # a late reply to a request that timed out
                continue
            if isinstance(reply.result, RayRefused):
                raise UserError(reply.result.error, page="cluster#when-it-does-not-start")
            if not isinstance(reply.result, expected):
                raise MalformedMessage(f"found the reply {type(reply.result).__name__}, expected {expected.__name__}")
            return reply.result

    def _send(self, call: RayCall) -> None:
        assert self._link.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended, which is noticed elsewhere
            self._link.stdin.write(ray_messages.write(call))
            self._link.stdin.flush()

    def _listen(self) -> None:
        """Runs in a thread: receives the link's reports and replies."""
        assert self._link.stdout is not None
        try:
            for line in self._link.stdout:
                match ray_messages.read_news(line):
                    case MachineLost(name, why):
                        self._why[name] = why
                        self._lost.put(name)
                    case MachinesFree(names):
                        self._free = names
                    case reply:
                        self._replies.put(reply)
        except MalformedMessage as error:
            self._malformed = f"{error}\n"
        finally:
            self._link.stdout.close()
            self._ended.set()
            self._replies.put(None)

    def _said(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._link.wait(1.0)
        return self._malformed + tail(self._errors, 10) or "it wrote nothing"


def check_version(found: str) -> None:
    """Raises `UserError` for a Ray that admits clients without a token by default."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < LEAST:
        least = ".".join(map(str, LEAST))
        raise UserError(
            f"found Ray {found}, expected {least} or later, which keeps clients without a token out of a cluster; run: "
            "pip install -c constraints.txt 'runnel[ray]', on every machine"
        )


def _takes_gpus() -> bool:
    return not os.environ.get("JAX_PLATFORMS", "").startswith("cpu")


def machines(address: str | None = None) -> list[Machine]:
    """The machines that a run would get of a Ray cluster now."""
    with contextlib.closing(RayHostLauncher(address)) as hosts:
        return hosts.machines()
