"""Several machines on this one: network namespaces with addresses of their own, joined by a bridge.

A machine is a process that holds its own network, host name, mounts and process ids; what runs "on" it is entered into
these. Switching it off kills that process, and with it, as the kernel has it, everything that ran there, at once and
without a word to anybody. Nothing has a name outside, so nothing can be left behind: when the process that made the
machines ends, however it does, they are gone. Files are shared, as on a cluster with a common file system.

    with Network() as network:
        cluster = RayCluster(network, machines=3)
        cluster.head.run([sys.executable, "-m", "runnel", "train", ..., "--launcher", "ray"])

Where this is not allowed (it takes root, `ip`, `unshare` and `nsenter`), machines are addresses of the loopback
interface, 127.0.0.2 and on: enough to have several Ray nodes, but nobody can be cut off, or listened to.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

_ROOM = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
_CLONE_NEWNET = 0x40000000
_ETH_P_ALL = 3
_MARK = "RUNNEL_TEST_MACHINE"

HEALTH = {
    # Ray's head knocks at every node. One that refuses (it was killed) is dead after five knocks, here 2.5 s; one that
    # does not answer at all (it was cut off) after as many time-outs, 50 s, or when gRPC itself gives the connection
    # up, 30 s: being off the network for 20 s is no death. Ray's own settings are 3, 10 s and 5.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5",
}


def why_not() -> str | None:
    """Why this machine cannot pretend to be several, if it cannot."""
    missing = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' or '.join(missing)} here"
    tried = subprocess.run([*_ROOM, "ip", "link", "add", "type", "bridge"], capture_output=True, text=True)
    return tried.stderr.strip() or "namespaces are not allowed here" if tried.returncode else None


class Machine:
    """One of several."""

    def __init__(self, network: Network, name: str, number: int):
        self.network, self.name, self.number = network, name, number
        self.address = network.address(number)
        self.prefix: tuple[str, ...] = ()
        """What a command is run under, to run here."""
        self.environ: dict[str, str] = {_MARK: f"{network.id}-{name}", "RAY_ADDRESS": ""}
        self.on = True

    def command(self, argv: Sequence[str | Path], cwd: str | Path | None = None) -> list[str]:
        """A command as one that runs here. Entering other mounts loses the working directory."""
        there = ["env", f"--chdir={os.fspath(cwd or os.getcwd())}"] if self.prefix else []
        return [*self.prefix, *there, *map(os.fspath, argv)]

    def run(self, argv: Sequence[str | Path], timeout: float = 60.0, **kwargs: Any) -> subprocess.CompletedProcess:
        """Runs a command here."""
        with self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                self.signal(process, signal.SIGKILL)
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def popen(
        self,
        argv: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        **kwargs: Any,
    ) -> subprocess.Popen:
        """Starts a command here; what is in `env` is added."""
        environ = {**os.environ, **self.environ, **(env or {})}
        if not self.prefix:
            kwargs["cwd"] = cwd
        return subprocess.Popen(self.command(argv, cwd), env=environ, **kwargs)

    def signal(self, process: subprocess.Popen, number: int) -> None:
        """Signals a process that `popen` has started: the command, not what it is run under."""
        pids = _children(process.pid) if self.prefix else [process.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def off(self) -> None:
        """Kills everything that runs here. Its kernel goes on, and refuses connections; after `cut`, nobody is told."""
        self.on = False
        self.network._off(self)

    def cut(self) -> None:
        """Takes it off the network: what is sent to it is lost, without an answer."""
        self.network._wire(self, "down")

    def mend(self) -> None:
        """Puts it back."""
        self.network._wire(self, "up")


class Network:
    """Machines that reach each other, and nothing else."""

    def __init__(self) -> None:
        self.id = f"{os.getpid()}-{time.monotonic_ns()}"
        self.loopback = why_not()
        """Why the machines are only addresses of the loopback interface, where they are."""
        self.folder = Path(tempfile.mkdtemp(prefix="rn-", dir="/tmp"))  # short: sockets stand in it
        self.machines: list[Machine] = []
        self._rooms: dict[str, _Room] = {}
        self._sniffers: list[Sniffer] = []
        if not self.loopback:
            self._switch = self._rooms["switch"] = _Room("switch")
            self._switch.ip("link", "add", "bridge", "type", "bridge")
            self._switch.ip("link", "set", "bridge", "up")

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, number: int) -> str:
        return f"127.0.0.{number + 2}" if self.loopback else f"10.77.0.{number + 1}"

    def machine(self, name: str | None = None) -> Machine:
        """One more."""
        number = len(self.machines)
        if self.loopback:  # as Ray's users tell them apart: by host name, and where that is another's, by address
            name = self.address(number) if number else socket.gethostname()
        machine = Machine(self, name or f"m{number}", number)
        self.machines.append(machine)
        if self.loopback:
            return machine
        hosts = self.folder / "hosts"  # whoever asks for a machine by its name finds its address, as on any network
        names = "".join(f"{each.address} {each.name}\n" for each in self.machines)
        hosts.write_text(f"127.0.0.1 localhost\n{names}")
        room = self._rooms[machine.name] = _Room(machine.name, hosts)
        machine.prefix = room.prefix
        port = f"port{number}"
        self._switch.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(room.pid))
        self._switch.ip("link", "set", port, "master", "bridge", "up")
        room.ip("link", "set", "lo", "up")
        room.ip("addr", "add", f"{machine.address}/24", "dev", "eth0")
        room.ip("link", "set", "eth0", "up")
        room.ip("route", "add", "default", "dev", "eth0")
        return machine

    def sniff(self, machine: Machine) -> Sniffer:
        """Listens to all that a machine sends and receives."""
        self._need("be listened to")
        sniffer = Sniffer(self._switch.pid, f"port{machine.number}")
        self._sniffers.append(sniffer)
        return sniffer

    def close(self) -> None:
        """Leaves nothing."""
        for sniffer in self._sniffers:
            sniffer.close()
        for machine in self.machines:
            if machine.on:
                machine.off()
        for room in self._rooms.values():
            room.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self) -> list[int]:
        """What still runs on any of the machines."""
        return [pid for machine in self.machines for pid in self.processes_on(machine)]

    def processes_on(self, machine: Machine) -> list[int]:
        """As numbered here, outside of the machine."""
        return _marked(machine.environ[_MARK])

    def _off(self, machine: Machine) -> None:
        if not self.loopback:
            self._rooms[machine.name].kill()
        deadline = time.monotonic() + 20.0
        while pids := _marked(machine.environ[_MARK]):  # here by force; in a room they are on their way
            if self.loopback:
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline, f"{pids} do not end"
            time.sleep(0.02)

    def _wire(self, machine: Machine, state: str) -> None:
        self._need("be cut off")
        self._switch.ip("link", "set", f"port{machine.number}", state)

    def _need(self, what: str) -> None:
        if self.loopback:
            pytest.skip(f"machines cannot {what} without network namespaces: {self.loopback}")


class _Room:
    """A process that holds namespaces. It ends with its standard input, and so with this process."""

    def __init__(self, name: str, hosts: Path | None = None):
        mount = f'mount --bind "{hosts}" /etc/hosts;' if hosts else ""
        script = f"hostname {name}; {mount} echo; cat >/dev/null; :"  # not `exec`: the shell buries orphans
        self._popen = subprocess.Popen(
            [*_ROOM, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._popen.stdout is not None
        if not self._popen.stdout.readline():
            raise RuntimeError(f"the namespaces of {name} cannot be made")
        (self.pid,) = _children(self._popen.pid)
        self._net = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)  # which keeps it when all processes are gone
        self.prefix = ("nsenter", f"--target={self.pid}", "--net", "--uts", "--mount", "--pid")

    def ip(self, *words: str) -> None:
        subprocess.run(["nsenter", f"--target={self.pid}", "--net", "ip", *words], check=True)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # the first process of its namespace: the others go with it
        self._popen.wait(20.0)

    def close(self) -> None:
        self.kill()
        os.close(self._net)
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()


class Sniffer:
    """Listens at a port of the switch, in a thread."""

    def __init__(self, pid: int, interface: str):
        self.heard = bytearray()
        self._thread = threading.Thread(target=self._listen, args=(pid, interface), daemon=True)
        self._ready = threading.Event()
        self._over = False
        self._thread.start()
        assert self._ready.wait(10.0), "the switch cannot be listened to"

    def _listen(self, pid: int, interface: str) -> None:
        with open(f"/proc/{pid}/ns/net") as namespace:  # this thread's alone
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                return
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as ears:
            ears.bind((interface, 0))
            ears.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 2**20)
            ears.settimeout(0.1)
            self._ready.set()
            while not self._over:
                with contextlib.suppress(TimeoutError, OSError):
                    self.heard += ears.recv(2**17)

    def close(self) -> bytes:
        """What was heard, frame by frame."""
        self._over = True
        self._thread.join(10.0)
        return bytes(self.heard)


class RayCluster:
    """Ray on machines of a network, the first of which is the head."""

    def __init__(self, network: Network, machines: int = 2, cpus: int = 2, environ: Mapping[str, str] | None = None):
        self.network, self.cpus = network, cpus
        self.environ = {
            **HEALTH,
            "RAY_AUTH_MODE": "disabled",
            "RAY_memory_monitor_refresh_ms": "0",
            **(environ or {}),
        }
        self.head = network.machine()
        self.head.environ |= self.environ
        port = _free_port(self.head.address) if network.loopback else 6379
        self.address = f"{self.head.address}:{port}"
        self._start(self.head, ["--head", f"--port={port}", "--include-dashboard=false"])
        self.add(machines - 1)

    def add(self, machines: int = 1, cpus: int | None = None) -> list[Machine]:
        """So many more, all at once."""
        added = [self.network.machine() for _ in range(machines)]
        threads = [threading.Thread(target=self.join, args=(machine, cpus)) for machine in added]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return added

    def join(self, machine: Machine, cpus: int | None = None) -> None:
        """Starts Ray on a machine."""
        machine.environ |= self.environ
        self._start(machine, [f"--address={self.address}"], cpus)

    def _start(self, machine: Machine, role: Sequence[str], cpus: int | None = None) -> None:
        folder = self.network.folder / f"ray{machine.number}"
        folder.mkdir(exist_ok=True)
        machine.environ["RAY_TMPDIR"] = str(folder)
        script = Path(sys.executable).with_name("ray")
        started = machine.run([
            script, "start", *role, f"--node-ip-address={machine.address}", f"--num-cpus={cpus or self.cpus}",
            "--num-gpus=0", "--object-store-memory=100000000", "--disable-usage-stats", f"--temp-dir={folder}",
        ], timeout=120.0)  # fmt: skip
        assert started.returncode == 0, f"Ray did not start on {machine.name}: {started.stdout}{started.stderr}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Three machines with two CPUs each, for the tests of a file. Who breaks them takes one of its own."""
    pytest.importorskip("ray")
    with Network() as network:
        yield RayCluster(network, machines=3)
    assert not network.processes()


def _free_port(address: str) -> int:
    with socket.create_server((address, 0)) as probe:
        return probe.getsockname()[1]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _marked(mark: str) -> list[int]:
    """Processes that were started with this in their environment; those that have ended have none any more."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}\0".encode() in path.read_bytes() + b"\0":
                found.append(int(path.parent.name))
    return found
