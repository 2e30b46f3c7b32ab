"""A host agent: one process on each machine of a cluster, which carries out the driver's commands there.

It creates the machine's shared memory, starts its workers, carries their streams to other machines (the courier), and
forwards messages between the driver and its workers. It knows neither JAX nor RL nor its launcher: it reads one line of
JSON (the driver's address), writes one (its key), and ends when its standard input closes.

It is one file because it is one process: the line that it reads as it starts, and one event loop over sockets and
workers.

    python -m runnel.launch.agent
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

import runnel
from runnel.errors import OutOfDescriptors, UserError
from runnel.launch.agent_mail import AgentMail
from runnel.launch.agent_messages import (
    AgentCommand,
    AgentRequest,
    ClearChannels,
    CloseStandalone,
    CloseWorkers,
    CommandFailed,
    Done,
    EndAgent,
    EndStandalone,
    FindPort,
    FreePort,
    FromWorker,
    FromWorkers,
    GetTracebacks,
    GetTraffic,
    Hello,
    LogTexts,
    News,
    OpenChannels,
    PrepareServers,
    Pulse,
    ReapWorker,
    Reply,
    Result,
    SendToWorker,
    Started,
    StartStandalone,
    StartWorkers,
    Tracebacks,
    Traffic,
    WorkerEnded,
    parse_request,
)
from runnel.launch.framing import MalformedMessage
from runnel.launch.host import ENV_ONLY_MODULES, JAX_MODULES, HostChannels, HostRuntime, WorkerOrder, free_port
from runnel.launch.local_launcher import LocalLauncher, LocalProcess
from runnel.launch.report_batch import ReportBatch
from runnel.launch.standalone import StandaloneProcesses
from runnel.planning.machine import gpus
from runnel.system.oom import oom_kills
from runnel.system.platform import cpus, is_running
from runnel.transport.courier import Courier, Mirrors, Peer, Publishes, Sends, Takes
from runnel.transport.curve import Call, new_keys
from runnel.transport.parameter_store import SharedStore
from runnel.transport.ring import Ring
from runnel.user_code import named_modules

if TYPE_CHECKING:
    import numpy as np

PULSE_S = 0.25
"""How often an agent reports on its workers."""

DRIVER_LOST_S = 180.0
"""How long the driver may be silent before it counts as lost."""

LOG_BYTES = 64 * 1024
"""How much of a worker's log goes to the driver with one pulse."""


LOGS = "runnel-logs-"
"""The prefix of folders that hold logs until they are sent; the agent's process id follows."""


class HostAgent:
    """One machine's part in a run.

    It is one class because one event loop serves the driver, the workers and the courier: a command changes which
    workers there are, and what a worker sends is forwarded by which of its lives it is.
    """

    def __init__(self, arguments: dict[str, Any]):
        self.name, self.interface = str(arguments["name"]), str(arguments["interface"])
        self.keys = new_keys()
        self.courier = Courier(self.name, self.keys, self.interface)
        self.call = Call(self.keys, arguments["address"], arguments["public"])
        self.mail = AgentMail(self.call.send)
        _sweep()
        self.logs = Path(tempfile.mkdtemp(prefix=f"{LOGS}{os.getpid()}-"))
        self.launcher = self._launcher()
        self.host: HostRuntime | None = None
        self.standalone = StandaloneProcesses(self.logs)
        self.lives: dict[str, int] = {}  # by worker: which of those that had its name this is
        self._ended: set[str] = set()
        self._reports = ReportBatch()
        self._read: dict[str, int] = {}  # by worker: how much of its log was sent
        self._pulsed = 0.0
        self._over = False

    def _launcher(self) -> LocalLauncher:
        launcher = LocalLauncher(self.logs / "servers.log")
        launcher.warm(env_only=ENV_ONLY_MODULES, jax=JAX_MODULES)
        return launcher

    def serve(self, stdin: int) -> None:
        """Runs until the driver or the launcher is gone."""
        self._send(Hello(self.name, (self.courier.address, self.keys.public)))
        sockets = zmq.Poller()
        sockets.register(self.call.socket, zmq.POLLIN)
        sockets.register(stdin, zmq.POLLIN)
        sockets.register(self.standalone.watch.fileno(), zmq.POLLIN)
        while not self._over:
            workers = self.host.watch.fileno() if self.host is not None else None
            if workers is not None:
                sockets.register(workers, zmq.POLLIN)
            ready = dict(sockets.poll(int(1000 * PULSE_S / 2)))
            if workers is not None:
                sockets.unregister(workers)
            if stdin in ready and not os.read(stdin, 4096):
                return
            self._listen()
            self._relay(self._speaking())
            self._pulse()
            self.mail.tick()
            if time.monotonic() > self.mail.heard + DRIVER_LOST_S:
                print(f"nothing was heard of the driver for {DRIVER_LOST_S:.0f} s", file=sys.stderr)
                return

    def _speaking(self) -> set[str]:
        """The workers that have sent a message or ended."""
        return self.standalone.watch.poll(0.0) | (self.host.watch.poll(0.0) if self.host is not None else set())

    def _process(self, name: str) -> LocalProcess | None:
        found = self.standalone.processes.get(name)
        return found if found is not None or self.host is None else self.host.processes.get(name)

    def _processes(self) -> dict[str, LocalProcess]:
        """All workers of this machine; no two have the same name."""
        return {**(self.host.processes if self.host is not None else {}), **self.standalone.processes}

    # Commands of the driver

    def _listen(self) -> None:
        while (frames := self.call.receive()) is not None:
            try:
                message = self.mail.take(frames)
                request = parse_request(message.value) if message is not None else None
            except MalformedMessage:
                continue
            if message is not None and request is not None:
                self._answer(request, message.arrays)

    def _answer(self, request: AgentRequest, arrays: Mapping[str, np.ndarray]) -> None:
        result: Result
        try:
            result = self._do(request.command, arrays)
        except OutOfDescriptors as error:
            result = CommandFailed(str(error), "descriptors")
        except UserError as error:
            result = CommandFailed(str(error), "user")
        except Exception:
            result = CommandFailed(traceback.format_exc(), "defect")
        if request.id is not None:
            self._send(Reply(request.id, result))

    def _do(self, command: AgentCommand, arrays: Mapping[str, np.ndarray]) -> Result:
        match command:
            case OpenChannels():
                self._open(command)
            case PrepareServers(entry, job):
                self.launcher.prepare(entry, job)
            case StartWorkers(orders):
                return Started(self._start([WorkerOrder.of(order) for order in orders]))
            case StartStandalone(order, life):
                process = self.standalone.start(WorkerOrder.of(order))
                self.lives[process.name] = life
                self._ended.discard(process.name)
                return Started([(process.name, process.pid, life)])
            case EndStandalone(worker, life):
                if self.lives.get(worker) == life:
                    self.standalone.end(worker)
                    self._ended.discard(worker)
            case CloseStandalone(timeout_s):
                self.standalone.close(timeout_s)
            case SendToWorker():
                self._pass_on(command, arrays)
            case ReapWorker(worker):
                self.lives[worker] = self.lives.get(worker, 0) + 1
                self._here.reap(worker)
                self._ended.discard(worker)
            case ClearChannels(epoch):
                self._clear(epoch)
            case FindPort():
                return FreePort(free_port(self.interface))
            case GetTracebacks(worker):
                process = self._here.processes.get(worker)
                return Tracebacks(process.tracebacks() if process is not None else "")
            case GetTraffic():
                return Traffic(self.courier.tally())
            case CloseWorkers(timeout_s):
                self._close(timeout_s)
            case EndAgent():
                self._over = True
        return Done()

    def _send(self, news: News, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self.mail.send(news.to_json(), arrays)

    @property
    def _here(self) -> HostRuntime:
        if self.host is None:
            raise RuntimeError("there are no workers here yet")
        return self.host

    def _open(self, command: OpenChannels) -> None:
        self._close(0.0)
        layout, elsewhere = HostChannels.of(command.layout), command.elsewhere
        host = self.host = HostRuntime(layout, self.launcher, self.logs, self.courier.bell)
        here = set(layout.workers)
        peers = {name: Peer(*courier) for name, courier in command.peers.items()}
        self.courier.join(
            peers,
            sends=[
                Sends(s.id, s.kind, _ring(host, s.id), elsewhere[s.target], host.bell(s.source), bool(s.bounds))
                for s in layout.streams
                if s.source in here and s.target not in here
            ],
            takes=[
                Takes(s.id, s.kind, _ring(host, s.id), elsewhere[s.source], host.bell(s.target), s.bounds)
                for s in layout.streams
                if s.target in here and s.source not in here
            ],
            publishes=[
                # Also those that only this machine reads: by their iterations, others know which unrolls have begun.
                Publishes(b.id, _store(host, b.id), _hosts(b.targets, elsewhere))
                for b in layout.stores
                if b.source in here
            ],
            mirrors=[
                Mirrors(b.id, _store(host, b.id), elsewhere[b.source], [host.bell(n) for n in b.targets if n in here])
                for b in layout.stores
                if b.source not in here
            ],
            epoch=command.epoch,
        )
        self.courier.start()

    def _start(self, orders: Sequence[WorkerOrder]) -> list[tuple[str, int, int]]:
        started = self._here.start(orders)
        for process in started:
            self._ended.discard(process.name)
        return [(process.name, process.pid, self.lives.setdefault(process.name, 0)) for process in started]

    def _pass_on(self, command: SendToWorker, arrays: Mapping[str, np.ndarray]) -> None:
        process = self._process(command.worker)
        if process is None or process.exit_status() is not None:
            return  # its end is reported
        try:
            if command.arrays:
                process.control.send_arrays(command.message, arrays)
            else:
                process.control.send(command.message, timeout_s=1.0)
            if command.worker not in self.standalone.processes:
                self._here.ring(command.worker)
        except (BrokenPipeError, TimeoutError):
            pass  # its end or its hang is reported
        except OutOfDescriptors as error:
            self._give_up(process, error)

    def _clear(self, epoch: int) -> None:
        with self.courier.paused():
            self._here.clear()
            self.courier.clear(epoch)

    # Messages of workers

    def _relay(self, names: Iterable[str]) -> None:
        for name in names:
            process = self._process(name)
            if process is None:
                continue
            self._forward(process)
            if name not in self._ended and process.ended():
                status = process.exit_status()
                self._forward(process)
                if status is not None:
                    self._ended.add(name)
                    for each in (self.standalone, self.host):
                        if each is not None and each.processes.get(name) is process:
                            each.watch.drop(name)
                    while text := self._new_text(name):
                        self._send(LogTexts({name: text}))
                    self._send_reports()
                    tail = process.tail().strip()
                    self._send(WorkerEnded(name, self.lives[name], status, tail, oom_kills()))
        if self._reports.urgent:
            self._send_reports()

    def _send_reports(self) -> None:
        """Sends what is held of all workers as one message."""
        reports = self._reports.take()
        if reports:
            self._send(FromWorkers(reports))

    def _forward(self, process: LocalProcess) -> None:
        try:
            while (message := process.control.receive()) is not None:
                life = self.lives[process.name]
                if message.arrays:
                    self._send_reports()
                    self._send(FromWorker(process.name, life, message.value), message.arrays)
                else:
                    self._reports.add(process.name, life, message.value)
        except OutOfDescriptors as error:
            self._give_up(process, error)

    def _give_up(self, process: LocalProcess, error: OutOfDescriptors) -> None:
        """Kills a worker after a message from or to it was lost; the driver replaces it."""
        print(f"{process.name} is killed: {error}", file=sys.stderr)
        process.kill()

    def _pulse(self) -> None:
        now = time.monotonic()
        if now < self._pulsed + PULSE_S:
            return
        self._pulsed = now
        texts = {name: self._new_text(name) for name in self._processes() if name not in self._ended}
        if any(texts.values()):
            self._send(LogTexts({name: text for name, text in texts.items() if text}))
        self._send_reports()
        pulse = Pulse(self.courier.rejected())
        if self.host is not None:
            names = [name for name in self.host.processes if name not in self._ended]
            pulse = Pulse(
                self.courier.rejected(),
                beats={name: self.host.beats(name) for name in names},
                stopped=[name for name in names if self.host.processes[name].stopped()],
                fill={str(n): (stream.pending(), stream.committed()) for n, stream in self.host.streams.items()},
                oom_kills=self.host.oom_kills(),
            )
        self._send(pulse)

    def _new_text(self, name: str) -> str:
        """What a worker has written since, a part at a time; skips lines if it writes faster than they can be sent."""
        path = self.logs / f"{name}.log"
        try:
            size, sent = path.stat().st_size, self._read.get(name, 0)
            text = ""
            if size > sent:
                with path.open("rb") as file:
                    file.seek(sent)
                    text = file.read(LOG_BYTES).decode(errors="replace")
                sent = size if size - sent > 16 * LOG_BYTES else sent + LOG_BYTES
            self._read[name] = min(sent, size)
            return text
        except OSError:
            return ""

    # The end

    def _close(self, seconds: float) -> None:
        """Ends the workers and frees their memory; the agent stays for the next run."""
        if self.host is None:
            return
        self.launcher.close(seconds)
        self._relay([*self.host.processes])
        self.courier.stop()
        self.host.free()
        self.host, self.launcher = None, self._launcher()
        self.lives = {name: life for name, life in self.lives.items() if name in self.standalone.processes}
        self._ended &= self.standalone.processes.keys()

    def close(self) -> None:
        self.standalone.close(1.0)
        self.launcher.close(1.0)
        self.courier.close()
        if self.host is not None:
            self.host.free()
        self.mail.tick()
        self.call.close()
        shutil.rmtree(self.logs, ignore_errors=True)


def _sweep() -> None:
    """Removes the folders of agents that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{LOGS}*-*"):
        pid = folder.name.removeprefix(LOGS).partition("-")[0]
        if pid.isdecimal() and not is_running(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _hosts(names: Sequence[str], elsewhere: dict[str, str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(elsewhere[name] for name in names if name in elsewhere))


def _ring(host: HostRuntime, number: int) -> Ring:
    found = host.streams[number]
    if not isinstance(found, Ring):
        raise _only_here(host)
    return found


def _store(host: HostRuntime, number: int) -> SharedStore:
    found = host.stores[number]
    if not isinstance(found, SharedStore):
        raise _only_here(host)
    return found


def _only_here(host: HostRuntime) -> UserError:
    return UserError(
        f"the streams or stores of {host.layout.transport} cannot be read from other machines: they must extend "
        "runnel.transport.ring.Ring and runnel.transport.parameter_store.SharedStore; run on one machine"
    )


def _adopt_context(place: dict[str, Any]) -> None:
    """Sets module path, working directory and environment variables as in the driver, if this machine has them."""
    sys.path[:] = [*dict.fromkeys([*place.get("path", ()), *sys.path])]
    named_modules.restore(place.get("modules", {}))
    directory = place.get("directory")
    if directory and os.path.isdir(directory):
        os.chdir(directory)
    os.environ.update(place.get("environ", {}))


def main() -> int:
    with open(0, "rb", buffering=0, closefd=False) as stdin:
        arguments = json.loads(_line(stdin.read))
    _adopt_context(arguments.get("place", {}))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the driver gets them too, and sends commands
        signal.signal(number, signal.SIG_IGN)
    agent = HostAgent(arguments)
    try:
        greeting = {
            "public": agent.keys.public,
            "cpus": arguments.get("cpus") or cpus(),
            "devices": [f"cuda:{i}" for i in range(gpus(os.environ.get("JAX_PLATFORMS", "")))] or ["cpu:0"],
            "runnel": runnel.__version__,
            "python": platform.python_version(),
        }
        print(json.dumps(greeting), flush=True)
        agent.serve(0)
    finally:
        agent.close()
    return 0


def _line(read: Callable[[int], bytes | None]) -> bytes:
    """Reads up to the first newline, and not a byte further."""
    line = b""
    while not line.endswith(b"\n"):
        byte = read(1)
        if not byte:
            raise SystemExit("found no line of JSON on standard input: an agent is started by a launcher")
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
