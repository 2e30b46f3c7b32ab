"""Many machines as one site: the driver's side of the host agents.

A `HostLauncher` starts the agents and does nothing else. All that follows goes over a socket of the driver, to which
only these agents can connect. A machine is lost (`HostLost`) if nothing is heard from it for too long, or if the
launcher reports that its agent has ended. A shorter interruption of the network changes nothing.

It is one file because it implements one interface, `Site`: agents, their workers and their streams share the socket
and the numbering of its messages. The messages are in `agent_messages.py`, their delivery in `agent_mail.py`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zmq

from runnel.errors import HostLost, OutOfDescriptors, UserError, WorkerFailed
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
    parse_news,
)
from runnel.launch.framing import MalformedMessage, Received
from runnel.launch.host import HostChannels, WorkerOrder
from runnel.launch.host_launcher import AgentInvitation, HostLauncher, JoinedHost
from runnel.launch.local_launcher import opened_log
from runnel.launch.rejections import RejectionCounts, RejectionLog
from runnel.planning.machine import DRIVER
from runnel.transport.curve import Door, new_keys
from runnel.transport.interface import SHARED_MEMORY
from runnel.user_code import named_modules

HELLO_S, REPLY_S, TRACEBACKS_S, TALLY_S = 60.0, 60.0, 5.0, 2.0

LOST_S = 60.0
"""How long a machine may be silent before it counts as lost."""

FRESH_S = 2.0
"""An agent reports on its workers several times a second; older reports do not show whether they live."""

TICK_S = 0.1
ASK_S = 1.0
"""How often the launcher is asked whether the agents live."""

JOIN_AGAIN_S = 10.0
"""How long a machine is left alone that could not join."""


R = TypeVar("R", Done, Started, FreePort, Tracebacks, Traffic)


class RemoteProcess:
    """A worker's process on another machine: a `site.Process`, and its own `site.Line`."""

    def __init__(self, cluster: Cluster, host: str, name: str, pid: int, life: int):
        self.name, self.pid, self.host, self.life = name, pid, host, life
        self.received: deque[Received] = deque()
        self.status: int | None = None
        self.last = ""  # of its log
        self.machine_lost = False
        self._cluster = cluster

    @property
    def control(self) -> RemoteProcess:
        return self

    @property
    def closed(self) -> bool:
        return self.status is not None and not self.received

    def send(self, value: Mapping[str, Any]) -> None:
        self._cluster.send(self.host, SendToWorker(self.name, dict(value)))

    def send_arrays(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._cluster.send(self.host, SendToWorker(self.name, dict(header), arrays=True), arrays)

    def receive(self) -> Received | None:
        return self.received.popleft() if self.received else None

    def exit_status(self) -> int | None:
        return self.status

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(HostLost):
            self._cluster.until(lambda: self.status is not None, timeout_s)
        return self.status

    def stopped(self) -> bool:
        return self.name in self._cluster.agents[self.host].pulse.stopped

    def tracebacks(self) -> str:
        try:
            return self._cluster.ask(self.host, GetTracebacks(self.name), Tracebacks, TRACEBACKS_S).text
        except (HostLost, WorkerFailed) as error:
            return f"(its machine does not answer: {error})"

    def tail(self) -> str:
        return self.last


@dataclass
class _AgentConnection:
    """A machine's agent, as the driver knows it."""

    joined: JoinedHost
    mail: AgentMail
    courier: tuple[str, str] = ("", "")  # address and public key
    pulse: Pulse = field(default_factory=Pulse)
    ooms: int | None = None


class _Fill:
    """A stream, as its reader's agent reported it last."""

    def __init__(self, agent: _AgentConnection, stream: int, capacity: int):
        self._agent, self._stream, self.capacity = agent, str(stream), capacity

    def pending(self) -> int:
        return self._agent.pulse.fill.get(self._stream, (0, 0))[0]

    def committed(self) -> int:
        return self._agent.pulse.fill.get(self._stream, (0, 0))[1]


class Cluster:
    """A `Site` of several machines. It outlives the worker groups on it.

    It is one class because all machines call at one door: while one is asked for something, the others report on
    their workers, ask to join or are lost.
    """

    def __init__(self, hosts: HostLauncher, lost_s: float = LOST_S, transport: str = SHARED_MEMORY):
        self._hosts, self._lost_s, self.transport = hosts, lost_s, transport
        self.agents: dict[str, _AgentConnection] = {}
        self.processes: dict[str, RemoteProcess] = {}
        self.standalone: dict[str, RemoteProcess] = {}  # those that are no part of a worker group
        self._starting: dict[int, RemoteProcess] = {}  # by the id of the request: those without a reply yet
        self.logs: Path | None = None
        self._layouts: dict[str, HostChannels] = {}
        self._slots: dict[int, int] = {}  # by stream, the same on every host
        self._epoch = 0
        self._ids, self._lives = count(), count(1)
        self._replies: dict[int, Result] = {}
        self._asked = self._ticked = 0.0
        self.new: set[str] = set()  # machines that could join
        self._not_before: dict[str, float] = {}  # by machine that could not join: when it may be tried again
        self._log = RejectionLog()
        self._gone: dict[str, Pulse] = {}  # by machine that was lost: its last
        keys = new_keys()
        self._door = Door(keys, hosts.interface)
        self._poller = zmq.Poller()
        for socket in self._door.sockets:
            self._poller.register(socket, zmq.POLLIN)
        self._invitation = AgentInvitation(self._door.address, keys.public, _place())
        try:
            for joined in hosts.start(self._invitation):
                self._admit(joined)
            self._greet()
        except BaseException:
            self.shutdown()
            raise

    # Machines

    def _admit(self, joined: JoinedHost) -> None:
        name = joined.name
        self._door.admit(name, joined.public)
        self.agents[name] = _AgentConnection(joined, AgentMail(lambda frames: self._door.send(name, frames)))

    def _greet(self) -> None:
        if not self.until(lambda: not self._silent(), HELLO_S):
            raise UserError(
                f"{', '.join(self._silent())} did not call back at {self._door.address} within {HELLO_S:.0f} s; let "
                "the machines of the cluster connect to each other on all ports (docs: Clusters)"
            )

    def _silent(self) -> list[str]:
        """The machines whose agents have not called yet."""
        return sorted(name for name, agent in self.agents.items() if not agent.courier[0])

    def drop(self, name: str) -> None:
        """Lets go of a machine that is lost."""
        self._door.expel(name)
        agent = self.agents.pop(name, None)
        if agent is not None:
            self._gone[name] = agent.pulse
        self.new.discard(name)
        self.processes = {n: process for n, process in self.processes.items() if process.host != name}
        for process in self.standalone.values():
            process.machine_lost |= process.host == name
        self.standalone = {n: process for n, process in self.standalone.items() if process.host != name}
        self._starting = {n: process for n, process in self._starting.items() if process.host != name}
        self._hosts.drop(name)

    def finds_another(self, seconds: float) -> bool:
        """Whether, within so long, there is a machine that could join."""
        return self.until(lambda: bool(self.new), seconds)

    def join(self) -> tuple[list[str], dict[str, str]]:
        """Takes in the machines that could join; returns their names, and why the others could not."""
        names, self.new = sorted(self.new - set(self.agents)), set()
        failed: dict[str, str] = {}
        for name in names:
            try:
                self._admit(self._hosts.add(self._invitation, name))
            except (UserError, OSError) as error:  # such as too few descriptors
                failed[name] = str(error)
        if not self.until(lambda: not self._silent(), HELLO_S):
            failed |= dict.fromkeys(self._silent(), f"did not call back within {HELLO_S:.0f} s")
            for name in self._silent():
                self.drop(name)
        self._not_before |= dict.fromkeys(failed, time.monotonic() + JOIN_AGAIN_S)
        return [name for name in names if name not in failed], failed

    # Talking to agents

    def send(
        self, host: str, command: AgentCommand, arrays: Mapping[str, np.ndarray] | None = None, id: int | None = None
    ) -> None:
        if host in self.agents:  # otherwise it is lost, which `poll` reports
            self.agents[host].mail.send(AgentRequest(command, id).to_json(), arrays)

    def ask(self, host: str, command: AgentCommand, expected: type[R], seconds: float = REPLY_S) -> R:
        return self.ask_all({host: command}, expected, seconds)[host]

    def ask_all(
        self, commands: Mapping[str, AgentCommand], expected: type[R], seconds: float = REPLY_S
    ) -> dict[str, R]:
        """Asks several at once, and waits for what they reply."""
        ids = {host: next(self._ids) for host in commands}
        for host, command in commands.items():
            self.send(host, command, id=ids[host])
        if not self.until(lambda: all(number in self._replies for number in ids.values()), seconds):
            late = sorted(host for host, number in ids.items() if number not in self._replies)
            raise WorkerFailed(f"{', '.join(late)} did not reply within {seconds:.0f} s")
        replies = {host: self._replies.pop(number) for host, number in ids.items()}
        for host, reply in replies.items():
            if isinstance(reply, CommandFailed):
                kinds = {"user": UserError, "descriptors": OutOfDescriptors}
                raise kinds.get(reply.kind, WorkerFailed)(f"{host}: {reply.error}")
            if not isinstance(reply, expected):
                raise WorkerFailed(f"{host}: found the reply {reply.type_name()}, expected {expected.type_name()}")
        return replies  # type: ignore[return-value]

    def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Receives messages until the condition holds or time is up; returns whether it holds."""
        deadline = time.monotonic() + seconds
        while not done():
            if time.monotonic() > deadline:
                return False
            self._listen(0.05)
        return True

    def _listen(self, seconds: float) -> None:
        if not any(self._poller.poll(int(1000 * seconds))):
            self._tick()
            return
        while (came := self._door.receive()) is not None:
            name, frames = came
            agent = self.agents.get(name)
            if agent is None:
                continue
            try:
                message = agent.mail.take(frames)
                news = parse_news(message.value) if message is not None else None
            except MalformedMessage:
                self._door.counts["malformed"] += 1
                continue
            if message is not None and news is not None:
                self._take(name, agent, news, message.arrays)
        self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        if now > self._ticked + TICK_S:
            self._ticked = now
            for agent in self.agents.values():
                agent.mail.tick()
        if now > self._asked + ASK_S:
            self._asked = now
            gone, new = self._hosts.poll()
            self.new |= {name for name in new if now > self._not_before.get(name, 0.0)}
            gone = [name for name in gone if name in self.agents]
            if gone:
                raise HostLost(gone[0], self._hosts.why(gone[0]))
            for name, agent in self.agents.items():
                if now > agent.mail.heard + self._lost_s:
                    raise HostLost(name, f"was not heard of for {self._lost_s:.0f} s")

    def _take(self, host: str, agent: _AgentConnection, news: News, arrays: Mapping[str, np.ndarray]) -> None:
        match news:
            case Pulse():
                agent.pulse = news
                agent.ooms = agent.ooms if news.oom_kills is None else news.oom_kills
            case Reply(number, result) if number in self._starting:
                self._note_start(self._starting.pop(number), result)
            case Reply(number, result):
                self._replies[number] = result
                if isinstance(result, Started):
                    for name, pid, life in result.workers:  # its first report may be in the next message
                        self.processes[name] = RemoteProcess(self, host, name, pid, life)
                        self._write(name, "")
            case FromWorker(worker, life, message):
                process = self._living(host, worker, life)
                if process is not None:
                    process.received.append(Received(message, (), arrays))
            case FromWorkers(reports):
                for worker, life, message in reports:
                    process = self._living(host, worker, life)
                    if process is not None:
                        process.received.append(Received(message, (), {}))
            case WorkerEnded(worker, life, status, tail, oom_kills):
                process = self._living(host, worker, life)
                agent.ooms = oom_kills
                if process is not None:
                    process.status, process.last = status, tail
            case LogTexts(texts):
                for worker, text in texts.items():
                    self._write(worker, text)
            case Hello():
                agent.courier = news.courier

    def _living(self, host: str, name: str, life: int) -> RemoteProcess | None:
        process = self.processes.get(name) or self.standalone.get(name)
        return process if process is not None and (process.host, process.life) == (host, life) else None

    def _write(self, name: str, text: str) -> None:
        if self.logs is not None and name.replace("-", "").replace("_", "").isalnum():
            with contextlib.suppress(OSError, UserError), open(opened_log(self.logs / f"{name}.log"), "a") as file:
                file.write(text)

    # A site

    def open(self, layouts: Mapping[str, HostChannels]) -> None:
        self._epoch += 1
        self._layouts = dict(layouts)
        self._slots = {stream.id: stream.slots for layout in layouts.values() for stream in layout.streams}
        homes = {name: host for host, layout in layouts.items() for name in layout.workers}
        commands = {
            host: OpenChannels(
                layout.json(),
                elsewhere={name: home for name, home in homes.items() if home != host},
                peers={name: self.agents[name].courier for name in layouts if name != host},
                epoch=self._epoch,
            )
            for host, layout in layouts.items()
        }
        self.ask_all(commands, Done)

    def prepare(self, entry: str, job: dict[str, Any]) -> None:
        for host in self._layouts:
            self.send(host, PrepareServers(entry, job))

    def start(self, orders: Mapping[str, Sequence[WorkerOrder]]) -> None:
        commands = {host: StartWorkers([order.json() for order in each]) for host, each in orders.items()}
        self.ask_all(commands, Started)

    def poll(self, seconds: float) -> set[str]:
        found = self._speaking()
        if not found:
            self._listen(seconds)
            found = self._speaking()
        return found

    def _speaking(self) -> set[str]:
        return {name for name, process in self.processes.items() if process.received or process.status is not None}

    def beats(self, name: str) -> int | None:
        process = self.processes.get(name)
        agent = self.agents.get(process.host) if process is not None else None
        if process is None or agent is None or not self.hears(process.host):
            return None
        return agent.pulse.beats.get(name)

    def hears(self, host: str) -> bool:
        """Whether a machine was heard from lately."""
        agent = self.agents.get(host)
        return agent is not None and time.monotonic() <= agent.mail.heard + FRESH_S

    def ring(self, name: str) -> None:
        """Does nothing: the agent rings a worker's bell when it forwards a message."""

    def oom_kills(self) -> int | None:
        return sum(agent.ooms or 0 for agent in self.agents.values())

    def reap(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            self.send(process.host, ReapWorker(name))

    def clear(self) -> None:
        self._epoch += 1
        self.ask_all({host: ClearChannels(self._epoch) for host in self._layouts}, Done)

    def fill(self, host: str, stream: int) -> _Fill:
        return _Fill(self.agents[host], stream, self._slots[stream])

    def port(self, host: str) -> str:
        address = self.agents[host].joined.address
        port = self.ask(host, FindPort(), FreePort).port
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    # Workers that are no part of a worker group

    def start_standalone(self, host: str, order: WorkerOrder) -> RemoteProcess:
        """Starts one; does not wait, neither for its process nor for its machine."""
        process = RemoteProcess(self, host, order.name, 0, next(self._lives))
        self.standalone[order.name] = process
        number = next(self._ids)
        self._starting[number] = process
        self.send(host, StartStandalone(order.json(), process.life), id=number)
        return process

    def _note_start(self, process: RemoteProcess, result: Result) -> None:
        if isinstance(result, Started):
            process.pid = next((pid for _, pid, life in result.workers if life == process.life), 0)
            self._write(process.name, "")
        else:
            process.status = 1
            process.last = result.error if isinstance(result, CommandFailed) else f"found {result.type_name()}"

    def end_standalone(self, process: RemoteProcess) -> None:
        if self.standalone.get(process.name) is process:
            del self.standalone[process.name]
            self.send(process.host, EndStandalone(process.name, process.life))

    def close_standalone(self, seconds: float) -> None:
        """Ends all of them; does not wait."""
        for host in {process.host for process in self.standalone.values()}:
            self.send(host, CloseStandalone(seconds))
        self.standalone = {}

    def workers_by_host(self) -> Counter[str]:
        """How many workers each machine has."""
        own = Counter(process.host for process in self.standalone.values())
        return own + Counter({host: len(layout.workers) for host, layout in self._layouts.items()})

    def listen(self) -> None:
        """Receives what has arrived; does not wait. Raises `HostLost`."""
        self._listen(0.0)

    def traffic(self) -> dict[str, Any]:
        """By host: the counts of messages carried and dropped by couriers, and of connections rejected at its port."""
        replies: dict[str, Traffic] = {}
        with contextlib.suppress(HostLost, WorkerFailed):  # it is good to know, and not worth a run
            replies = self.ask_all({name: GetTraffic() for name in self.agents}, Traffic, TALLY_S)
        nothing: dict[str, Any] = {"wire": {}, "carried": {}, "dropped": {}}
        found = {name: {**nothing, "rejected": counts} for name, counts in self._rejected().items()}
        found |= {name: reply.tally for name, reply in replies.items()}
        found[DRIVER]["dropped"] = dict(self._door.counts)
        return found

    def rejections(self, at_once: bool = False) -> list[dict[str, Any]]:
        """Events for connections rejected since the last ones, at the driver's port and the agents'."""
        return self._log.report(self._rejected(), at_once)

    def _rejected(self) -> dict[str, RejectionCounts]:
        pulses = self._gone | {name: agent.pulse for name, agent in self.agents.items()}
        agents = {name: pulse.rejected for name, pulse in pulses.items()}
        return {DRIVER: self._door.rejected.json(), **agents}

    def close(self, seconds: float) -> None:
        """Ends the workers; the machines stay."""
        with contextlib.suppress(HostLost, WorkerFailed, UserError):
            commands = {host: CloseWorkers(seconds) for host in self._layouts if host in self.agents}
            self.ask_all(commands, Done, seconds + 15.0)
        self._layouts, self.processes = {}, {}

    def shutdown(self) -> None:
        """Ends the agents, too."""
        for name in self.agents:
            self.send(name, EndAgent())
        deadline = time.monotonic() + 0.5
        with contextlib.suppress(HostLost):
            while time.monotonic() < deadline:
                self._listen(0.05)
        self._hosts.close()
        self._door.close()
        self.agents = {}


def _place() -> dict[str, Any]:
    """The context of this process, which its agents adopt."""
    kept = ("JAX_", "XLA_", "TF_CPP_")
    environ = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    path = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    return {"path": path, "modules": named_modules.state(), "directory": os.getcwd(), "environ": environ}
