"""Many machines as one site: the driver's side of the host agents.

Whoever starts the agents (`hosts`) does nothing else; all that follows goes over a line of our own, which only they
can call. A machine of which nothing is heard for too long, or of which whoever started its agent says that it is gone,
is lost: `HostLost`. One that was cut off for a shorter time goes on as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from runnel.errors import HostLost, OutOfDescriptors, UserError, WorkerFailed
from runnel.launch.agent_mail import AgentMail
from runnel.launch.framing import MalformedMessage, Received
from runnel.launch.host import HostChannels, WorkerOrder
from runnel.launch.host_launcher import AgentInvitation, HostLauncher, JoinedHost
from runnel.launch.local_launcher import opened_log
from runnel.launch.rejections import NONE, Counts, RejectionLog
from runnel.transport.curve import Door, new_keys
from runnel.transport.interface import SHARED_MEMORY
from runnel.user_code import named_modules

HELLO_S, REPLY_S, STACKS_S, TALLY_S = 60.0, 60.0, 5.0, 2.0

LOST_S = 60.0
"""How long nothing may be heard of a machine."""

FRESH_S = 2.0
"""An agent tells of its workers several times a second; older news says nothing about whether they live."""

TICK_S = 0.1
ASK_S = 1.0
"""How often whoever started the agents is asked whether they live."""

JOIN_AGAIN_S = 10.0
"""How long a machine is left alone that could not join."""

DRIVER = "the driver"
"""Its place in counts by machine; no machine has a name with a space."""


class RemoteProcess:
    """A worker's process on another machine: a `site.Process`, and its own `site.Line`."""

    def __init__(self, cluster: Cluster, host: str, name: str, pid: int, life: int):
        self.name, self.pid, self.host, self.life = name, pid, host, life
        self.said: deque[Received] = deque()
        self.status: int | None = None
        self.last = ""  # of its log
        self._cluster = cluster

    @property
    def control(self) -> RemoteProcess:
        return self

    @property
    def closed(self) -> bool:
        return self.status is not None and not self.said

    def send(self, value: Mapping[str, Any]) -> None:
        self._cluster.tell(self.host, {"do": "tell", "worker": self.name, "value": value, "arrays": False})

    def send_arrays(self, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        self._cluster.tell(self.host, {"do": "tell", "worker": self.name, "value": header, "arrays": True}, arrays)

    def receive(self) -> Received | None:
        return self.said.popleft() if self.said else None

    def exit_status(self) -> int | None:
        return self.status

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(HostLost):
            self._cluster.until(lambda: self.status is not None, timeout_s)
        return self.status

    def stopped(self) -> bool:
        return self.name in self._cluster.agents[self.host].pulse.get("stopped", ())

    def stacks(self) -> str:
        try:
            return self._cluster.ask(self.host, {"do": "stacks", "worker": self.name}, STACKS_S)["stacks"]
        except (HostLost, WorkerFailed) as error:
            return f"(there is no word of it: {error})"

    def tail(self) -> str:
        return self.last


@dataclass
class _AgentConnection:
    """A machine's agent, as the driver knows it."""

    joined: JoinedHost
    mail: AgentMail
    courier: tuple[str, str] = ("", "")  # address and public key
    pulse: dict[str, Any] = field(default_factory=dict)
    ooms: int | None = None


class _Fill:
    """A stream as its reader's agent told of it last."""

    def __init__(self, agent: _AgentConnection, stream: int, capacity: int):
        self._agent, self._stream, self.capacity = agent, str(stream), capacity

    def pending(self) -> int:
        return self._agent.pulse.get("fill", {}).get(self._stream, (0, 0))[0]

    def committed(self) -> int:
        return self._agent.pulse.get("fill", {}).get(self._stream, (0, 0))[1]


class Cluster:
    """A `Site` of several machines. It outlives the crews that work there."""

    def __init__(self, hosts: HostLauncher, lost_s: float = LOST_S, transport: str = SHARED_MEMORY):
        self._hosts, self._lost_s, self.transport = hosts, lost_s, transport
        self.agents: dict[str, _AgentConnection] = {}
        self.processes: dict[str, RemoteProcess] = {}
        self.logs: Path | None = None
        self._layouts: dict[str, HostChannels] = {}
        self._epoch = 0
        self._ids = count()
        self._replies: dict[int, dict[str, Any]] = {}
        self._asked = self._ticked = 0.0
        self.new: set[str] = set()  # machines that could join
        self._not_before: dict[str, float] = {}  # by machine that could not join: when it may be tried again
        self._log = RejectionLog()
        self._gone: dict[str, dict[str, Any]] = {}  # by machine that was lost: what it said last
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
        self._hosts.drop(name)

    def finds_another(self, seconds: float) -> bool:
        """Whether, within so long, there is a machine that could join."""
        return self.until(lambda: bool(self.new), seconds)

    def join(self) -> tuple[list[str], dict[str, str]]:
        """Takes in the machines that could join; gives their names, and why the others could not."""
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

    def tell(self, host: str, value: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> None:
        if host in self.agents:  # else it is lost, which is told elsewhere
            self.agents[host].mail.send(value, arrays)

    def ask(self, host: str, value: Mapping[str, Any], seconds: float = REPLY_S) -> dict[str, Any]:
        return self.ask_all({host: value}, seconds)[host]

    def ask_all(self, values: Mapping[str, Mapping[str, Any]], seconds: float = REPLY_S) -> dict[str, dict[str, Any]]:
        """Asks several at once, and waits for what they reply."""
        ids = {host: next(self._ids) for host in values}
        for host, value in values.items():
            self.tell(host, {**value, "id": ids[host]})
        if not self.until(lambda: all(number in self._replies for number in ids.values()), seconds):
            late = sorted(host for host, number in ids.items() if number not in self._replies)
            raise WorkerFailed(f"{', '.join(late)} did not reply within {seconds:.0f} s")
        replies = {host: self._replies.pop(number) for host, number in ids.items()}
        for host, reply in replies.items():
            if "error" in reply:
                kinds = {"user": UserError, "descriptors": OutOfDescriptors}
                raise kinds.get(reply["kind"], WorkerFailed)(f"{host}: {reply['error']}")
        return replies

    def until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Listens until something is so; says whether it is."""
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
            except MalformedMessage:
                self._door.counts["malformed"] += 1
                continue
            if message is not None:
                self._take(name, agent, message)
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

    def _take(self, host: str, agent: _AgentConnection, message: Received) -> None:
        value = message.value
        if "pulse" in value:
            agent.pulse = value["pulse"]
            agent.ooms = agent.pulse.get("oom", agent.ooms)
        elif "reply" in value:
            self._replies[value["reply"]] = value
            for name, pid, life in value.get("started", ()):  # what it says may come with the next message
                self.processes[name] = RemoteProcess(self, host, name, pid, life)
                self._write(name, "")
        elif "from" in value:
            process = self._living(host, value["from"], value["life"])
            if process is not None:
                process.said.append(Received(value["value"], (), message.arrays))
        elif "ended" in value:
            process = self._living(host, value["ended"], value["life"])
            agent.ooms = value["oom"]
            if process is not None:
                process.status, process.last = value["status"], value["tail"]
        elif "log" in value:
            self._write(value["log"], value["text"])
        elif "hello" in value:
            agent.courier = tuple(value["courier"])

    def _living(self, host: str, name: str, life: int) -> RemoteProcess | None:
        process = self.processes.get(name)
        return process if process is not None and (process.host, process.life) == (host, life) else None

    def _write(self, name: str, text: str) -> None:
        if self.logs is not None and name.replace("-", "").replace("_", "").isalnum():
            with contextlib.suppress(OSError, UserError), open(opened_log(self.logs / f"{name}.log"), "a") as file:
                file.write(text)

    # A site

    def open(self, layouts: Mapping[str, HostChannels]) -> None:
        self._epoch += 1
        self._layouts = dict(layouts)
        homes = {name: host for host, layout in layouts.items() for name in layout.posts}
        self.ask_all({
            host: {
                "do": "open",
                "layout": layout.json(),
                "elsewhere": {name: home for name, home in homes.items() if home != host},
                "peers": {name: self.agents[name].courier for name in layouts if name != host},
                "epoch": self._epoch,
            }
            for host, layout in layouts.items()
        })  # fmt: skip

    def prepare(self, entry: str, job: dict[str, Any]) -> None:
        for host in self._layouts:
            self.tell(host, {"do": "prepare", "entry": entry, "job": job})

    def start(self, orders: Mapping[str, Sequence[WorkerOrder]]) -> None:
        self.ask_all({
            host: {"do": "start", "orders": [order.json() for order in each]} for host, each in orders.items()
        })  # fmt: skip

    def poll(self, seconds: float) -> set[str]:
        found = self._speaking()
        if not found:
            self._listen(seconds)
            found = self._speaking()
        return found

    def _speaking(self) -> set[str]:
        return {name for name, process in self.processes.items() if process.said or process.status is not None}

    def beats(self, name: str) -> int | None:
        process = self.processes.get(name)
        agent = self.agents.get(process.host) if process is not None else None
        if agent is None or time.monotonic() > agent.mail.heard + FRESH_S:
            return None
        return agent.pulse.get("beats", {}).get(name)

    def ring(self, name: str) -> None:
        """Whoever passes a message on does that."""

    def oom_kills(self) -> int | None:
        return sum(agent.ooms or 0 for agent in self.agents.values())

    def bury(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            self.tell(process.host, {"do": "bury", "worker": name})

    def clear(self) -> None:
        self._epoch += 1
        self.ask_all({host: {"do": "clear", "epoch": self._epoch} for host in self._layouts})

    def fill(self, host: str, stream: int) -> _Fill:
        slots = next(each.slots for each in self._layouts[host].streams if each.id == stream)
        return _Fill(self.agents[host], stream, slots)

    def port(self, host: str) -> str:
        address = self.agents[host].joined.address
        port = self.ask(host, {"do": "port"})["port"]
        return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

    def traffic(self) -> dict[str, Any]:
        """What couriers have carried and dropped, by host, and what was rejected at the ports of all."""
        replies: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(HostLost, WorkerFailed):  # it is good to know, and not worth a run
            replies = self.ask_all({name: {"do": "tally"} for name in self.agents}, TALLY_S)
        nothing: dict[str, Any] = {"wire": {}, "carried": {}, "dropped": {}}
        found = {name: {**nothing, "rejected": counts} for name, counts in self._rejected().items()}
        found |= {name: reply["tally"] for name, reply in replies.items()}
        found[DRIVER]["dropped"] = dict(self._door.counts)
        return found

    def rejections(self, at_once: bool = False) -> list[dict[str, Any]]:
        """Events that tell of connections rejected since the last ones, at the driver's port and the agents'."""
        return self._log.report(self._rejected(), at_once)

    def _rejected(self) -> dict[str, Counts]:
        pulses = self._gone | {name: agent.pulse for name, agent in self.agents.items()}
        agents = {name: pulse.get("rejected", NONE) for name, pulse in pulses.items()}
        return {DRIVER: self._door.rejected.json(), **agents}

    def close(self, seconds: float) -> None:
        """Ends the workers; the machines stay."""
        with contextlib.suppress(HostLost, WorkerFailed, UserError):
            asked = {host: {"do": "close", "seconds": seconds} for host in self._layouts if host in self.agents}
            self.ask_all(asked, seconds + 15.0)
        self._layouts, self.processes = {}, {}

    def shutdown(self) -> None:
        """Ends the agents, too."""
        for name in self.agents:
            self.tell(name, {"do": "end"})
        deadline = time.monotonic() + 0.5
        with contextlib.suppress(HostLost):
            while time.monotonic() < deadline:
                self._listen(0.05)
        self._hosts.close()
        self._door.close()
        self.agents = {}


def _place() -> dict[str, Any]:
    """What makes an agent see what this process sees."""
    kept = ("JAX_", "XLA_", "TF_CPP_")
    environ = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    path = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    return {"path": path, "modules": named_modules.state(), "directory": os.getcwd(), "environ": environ}
