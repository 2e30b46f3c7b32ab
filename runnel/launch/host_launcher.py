"""Starting host agents: the interface of a launcher, and the simplest one, which starts agents on this machine.

A launcher writes one line of JSON to an agent (`agent_arguments`), reads one line (its greeting), and keeps its
standard input open. An agent ends when that closes, and thus with its launcher, however the launcher exits.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import runnel
from runnel import deprecated
from runnel.errors import UserError
from runnel.launch.fork_server_client import readable, tail

if TYPE_CHECKING:
    from runnel.planning.machine import Machine

AGENT = ("-P", "-m", "runnel.launch.agent")
"""The arguments of Python that run an agent."""

START_S = 60.0
"""How long an agent may take to send its greeting: it imports NumPy and ZeroMQ, perhaps from a slow disk."""

END_S = 10.0
"""How long it may take to end its workers when its standard input has closed."""

_NOISE_BYTES = 64 * 1024


@dataclass(frozen=True)
class AgentInvitation:
    """The facts with which an agent connects to the driver. None of them is secret."""

    address: str
    """The address that the driver listens on: `tcp://10.0.0.1:4711`."""
    public: str
    """The driver's public key."""
    place: dict[str, Any]
    """The driver's module path, working directory and environment variables: `path`, `directory`, `environ`."""


class JoinedHost(NamedTuple):
    """A machine whose agent has started."""

    name: str
    address: str  # where other machines reach it
    public: str  # its agent's public key
    cpus: int
    devices: tuple[str, ...]


class HostLauncher(Protocol):
    """Starts one agent on each machine, and notices which machines come and go. For use by one thread."""

    interface: str
    """The address of this machine that others reach it by; the driver listens on it."""

    def start(self, invitation: AgentInvitation) -> list[JoinedHost]:
        """Starts all agents. Raises `UserError` if there are too few machines, CPUs or GPUs, or if one fails."""
        ...

    def poll(self) -> tuple[list[str], list[str]]:
        """The machines lost since the last call, and those that could join now. Does not wait."""
        ...

    def why(self, name: str) -> str:
        """How a machine that `poll` reported was lost: `is gone: ...`."""
        ...

    def add(self, invitation: AgentInvitation, name: str) -> JoinedHost:
        """Starts the agent of a machine that could join."""
        ...

    def drop(self, name: str) -> None:
        """Releases a machine that is lost or no longer needed; it may join again."""
        ...

    def close(self) -> None:
        """Ends all agents."""
        ...


class AgentProcess:
    """An agent that runs as a process of this machine."""

    def __init__(self, command: Sequence[str], arguments: Mapping[str, Any], environ: Mapping[str, str]):
        self.name = str(arguments["name"])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._said = b""
        try:
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environ,
                process_group=0,  # Ctrl-C at the terminal is the user's process's to handle
            )
        except OSError as error:
            self._errors.close()
            raise UserError(f"'{command[0]}' cannot be run to start the agent of {self.name}: {error}") from error
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `greeting` reports
            self._popen.stdin.write(json.dumps(arguments).encode() + b"\n")
            self._popen.stdin.flush()

    def greeting(self, deadline: float) -> dict[str, Any]:
        """Its greeting, once; raises `UserError` if it ends, or sends nothing by `deadline`."""
        assert self._popen.stdout is not None
        out = self._popen.stdout.fileno()
        os.set_blocking(out, False)  # `drain` must not wait
        while True:
            *lines, self._said = self._said.split(b"\n")
            for line in lines:
                # A login shell or a site's start-up file may have printed something before.
                with contextlib.suppress(ValueError):
                    greeting = json.loads(line)
                    if isinstance(greeting, dict):
                        return _checked(self.name, greeting)
            left = deadline - time.monotonic()
            if left <= 0 or len(self._said) > _NOISE_BYTES:
                raise UserError(f"the agent of {self.name} has not sent its greeting in time; {self.last_words()}")
            readable(out, left)
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(out, 65536)
                if not chunk:
                    raise UserError(f"the agent of {self.name} ended before its greeting; {self.last_words()}")
                self._said += chunk

    def ended(self) -> bool:
        """Whether it has ended; also reads what it prints, because a full pipe would block it."""
        assert self._popen.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while os.read(self._popen.stdout.fileno(), 65536):
                pass
        return self._popen.poll() is not None

    def wait(self) -> None:
        """Blocks until it ends."""
        while not self.ended():
            time.sleep(0.2)

    def last_words(self, lines: int = 10) -> str:
        """How it ended, and the end of what it wrote to standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(1.0 if self._popen.returncode is None else 0.0)
        status = self._popen.returncode
        how = "" if status is None else f"status {status}, "
        return f"{how}its output: {tail(self._errors, lines) or 'nothing'}"

    def close(self, timeout_s: float = END_S) -> None:
        """Ends it: by the end of its standard input, or else by force."""
        self.close_input()
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        assert self._popen.stdout is not None
        self._popen.stdout.close()
        self._errors.close()

    def close_input(self) -> None:
        """Closes its standard input, on which it ends by itself."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()


class LocalHostLauncher:
    """A `HostLauncher` whose agents are processes of this machine; each counts as a machine.

    `prefixes` are commands, by name, to run an agent under: `ip netns exec NAME`, or `ssh MACHINE` where Python is
    found under the same path. With `cpus` of 0 the agent counts them. More machines can be offered later.
    `start_s` and `end_s`: how long an agent may take to send its greeting, and to end.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        prefixes: Mapping[str, Sequence[str]] | None = None,
        interface: str = "127.0.0.1",
        agent: Sequence[str] = AGENT,
        start_s: float = START_S,
        end_s: float = END_S,
    ):
        self.interface, self._start_s, self._end_s = interface, start_s, end_s
        self._machines = {machine.name: machine for machine in machines}
        self._prefixes = dict(prefixes or {})
        self._command = (sys.executable, *agent)
        self._agents: dict[str, AgentProcess] = {}
        self._lost: dict[str, str] = {}  # those that `poll` has reported, and why

    def start(self, invitation: AgentInvitation) -> list[JoinedHost]:
        try:
            for name in self._machines:
                self._begin(invitation, name)
            deadline = time.monotonic() + self._start_s
            return [self._joined(name, deadline) for name in self._machines]
        except BaseException:
            self.close()
            raise

    def offer(self, machine: Machine, prefix: Sequence[str] = ()) -> None:
        """Adds a machine that could join."""
        self._machines[machine.name] = machine
        self._prefixes[machine.name] = prefix

    def poll(self) -> tuple[list[str], list[str]]:
        lost = [name for name, agent in self._agents.items() if name not in self._lost and agent.ended()]
        self._lost |= {name: f"is gone: its agent ended; {self._agents[name].last_words()}" for name in lost}
        return lost, [name for name in list(self._machines) if name not in self._agents]

    def why(self, name: str) -> str:
        return self._lost.get(name, "is gone")

    def add(self, invitation: AgentInvitation, name: str) -> JoinedHost:
        self._begin(invitation, name)
        try:
            return self._joined(name, time.monotonic() + self._start_s)
        except BaseException:
            self._agents.pop(name).close(self._end_s)
            raise

    def drop(self, name: str) -> None:
        self._machines.pop(name, None)  # until it is offered again
        self._lost.pop(name, None)
        if name in self._agents:
            self._agents.pop(name).close(self._end_s)

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close_input()  # all at once: each may have workers to end
        for agent in self._agents.values():
            agent.close(self._end_s)
        self._agents.clear()

    def pid(self, name: str) -> int:
        """The process id of a machine's agent, or of its prefix."""
        return self._agents[name]._popen.pid

    def _begin(self, invitation: AgentInvitation, name: str) -> None:
        machine = self._machines[name]
        arguments = agent_arguments(invitation, name, machine.address, machine.cpus)
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        if not machine.accelerators:
            environ["CUDA_VISIBLE_DEVICES"] = ""
        command = (*self._prefixes.get(name, ()), *self._command)
        self._agents[name] = AgentProcess(command, arguments, environ)

    def _joined(self, name: str, deadline: float) -> JoinedHost:
        return joined(name, self._machines[name].address, self._agents[name].greeting(deadline))


def agent_arguments(invitation: AgentInvitation, name: str, interface: str, cpus: int) -> dict[str, Any]:
    """The JSON that an agent reads from its standard input: how to connect to the driver, and which machine it is."""
    return {**asdict(invitation), "name": name, "interface": interface, "cpus": cpus}


def joined(name: str, address: str, greeting: Mapping[str, Any]) -> JoinedHost:
    """The machine of an agent that has sent its greeting."""
    return JoinedHost(name, address, greeting["public"], greeting["cpus"], tuple(greeting["devices"]))


def versions() -> dict[str, str]:
    """The versions that must be the same on all machines."""
    return {"runnel": runnel.__version__, "python": platform.python_version()}


def differs(there: Mapping[str, Any]) -> str:
    """How another machine's versions differ from those of this one, as far as it matters; empty if they do not."""
    for what, here in versions().items():
        found, wanted = str(there.get(what, here)), here
        if what == "python":  # patch releases are compatible
            found, wanted = (".".join(version.split(".")[:2]) for version in (found, wanted))
        if found != wanted:
            return f"found {what.capitalize()} {found}, expected {wanted} as here; install the same on all machines"
    return ""


def _checked(name: str, greeting: dict[str, Any]) -> dict[str, Any]:
    wrong = differs(greeting)
    if wrong:
        raise UserError(f"{name}: {wrong}")
    public, cpus, devices = (greeting.get(key) for key in ("public", "cpus", "devices"))
    if not isinstance(public, str) or type(cpus) is not int or not isinstance(devices, list):
        raise UserError(f"{name}: found the greeting {str(greeting)[:200]}, expected one of an agent")
    return greeting


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return deprecated.attribute_of_package(__name__, name)
