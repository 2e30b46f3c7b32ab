"""The process that holds a run's connection to Ray, and the only one that imports Ray.

It reads lines of JSON from the driver and answers them, reports lost and new machines, and ends when its standard
input closes. It uses little of Ray: the list of machines; on each machine a placement group, which reserves the run's
share (one each, so that a machine can be released, or return, alone); and in it an actor that starts the agent and
keeps its standard input open.

    python -m runnel.launch.ray_link

It is one file because whatever imports Ray must stay in this process, away from the driver and the workers.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import cloudpickle
from ray._private import services, state  # Ray has no public functions for this
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from runnel.errors import MalformedMessage, UserError
from runnel.launch import ray_host, ray_messages, ray_private
from runnel.launch.fork_server_client import readable
from runnel.launch.host_launcher import END_S, AgentInvitation, agent_arguments, differs, versions
from runnel.launch.ray_guard import FOLDER, PRIVATE, hold, sweep
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
    RayCommand,
    RayNews,
    RayRefused,
    RayReply,
    RayResult,
    StartAgents,
)
from runnel.launch.ray_private import LOOPBACK, QUIET
from runnel.launch.ray_probe import answers, probe
from runnel.launch.ray_shares import RayNode, RayRequest, count

LOOK_S = 1.0
"""How often the list of machines is read from Ray."""

PLACE_S = 15.0
"""How long Ray may take to reserve resources that it reports as free."""

START_S = 75.0
"""How long an actor may take to start an agent, which has its own limit: a new worker of Ray's imports a lot."""

FREED_S = 5.0
"""How long to wait for CPUs that another run holds: one that has just ended releases them within seconds."""

AGAIN_S = 60.0
"""How long a machine is not offered again after its agent did not start."""


@dataclass
class Held:
    """The resources of a machine that the run holds."""

    node: RayNode
    group: PlacementGroup
    actor: Any = None
    watch: Any = None
    lost: bool = False


@dataclass
class RayLink:
    """The machines of a cluster, and those of them that the run uses."""

    wanted: RayRequest
    alone: bool
    """Whether the cluster is this machine, started for this run."""
    here: str
    """Ray's name of this machine."""
    held: dict[str, Held] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)  # by Ray's name
    _left_alone: dict[str, float] = field(default_factory=dict)  # by Ray's name: until when
    _free: list[str] = field(default_factory=list)
    _looked: float = 0.0

    # Machines

    def nodes(self) -> list[RayNode]:
        """The machines that are alive, this one first."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        alive.sort(key=lambda node: (node["NodeID"] != self.here, node["NodeManagerAddress"], node["NodeID"]))
        free = state.available_resources_per_node()
        living = {node["NodeID"] for node in alive}
        self._names = {key: name for key, name in self._names.items() if key in living}
        nodes = []
        for node in alive:
            key, address, has = node["NodeID"], node["NodeManagerAddress"], node["Resources"]
            name = self._names.get(key) or self._new_name(node, living)
            if name is None:
                continue
            self._names[key] = name
            left = free.get(key) or has
            cpus, gpus = int(left.get("CPU", 0)), int(left.get("GPU", 0))
            address = LOOPBACK if self.alone else address
            nodes.append(RayNode(key, name, address, cpus, gpus, int(has.get("CPU", 0)), int(has.get("GPU", 0))))
        return nodes

    def _new_name(self, node: Mapping[str, Any], living: set[str]) -> str | None:
        """Its host name, unless that is taken; None while that is the name of a lost machine that is still held."""
        for name in (node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"]):
            name = re.sub(r"[^\w.-]", "-", name)
            if name in self.held and self.held[name].node.id not in living:
                return None
            if name not in self._names.values():
                return name
        return None

    def start(self, invitation: AgentInvitation) -> list[Any]:
        nodes = self._enough()
        try:
            self._place([node for node in nodes if node.cpus >= 1])
            return self._greet([node for node in nodes if node.name in self.held], invitation)
        except BaseException:
            self.close()
            raise

    def add(self, invitation: AgentInvitation, name: str) -> list[Any]:
        if name in self.held:
            raise UserError(f"{name} has joined already")
        deadline = time.monotonic() + FREED_S  # what was just released is reported as free, then not, then free
        while (node := next((node for node in self.nodes() if node.name == name), None)) is None or node.cpus < 1:
            if node is None or time.monotonic() > deadline:
                raise UserError(f"{name} is not there any more, or has no CPU free")
            time.sleep(0.2)
        try:
            self._place([node])
            return self._greet([node], invitation)
        except BaseException:
            self._left_alone[node.id] = time.monotonic() + AGAIN_S
            self.drop(name)
            raise

    def drop(self, name: str) -> None:
        held = self.held.pop(name, None)
        if held is not None:
            with contextlib.suppress(RayError, RuntimeError, ValueError):
                if held.actor is not None:
                    ray.kill(held.actor)
            with contextlib.suppress(RayError, RuntimeError, ValueError):
                remove_placement_group(held.group)

    def close(self) -> None:
        """Ends all agents."""
        closing = [held.actor.close.remote() for held in self.held.values() if held.watch and not held.lost]
        if closing:
            with contextlib.suppress(RayError):
                ray.wait(closing, num_returns=len(closing), timeout=END_S + 2.0)
        for name in list(self.held):
            self.drop(name)

    def _enough(self) -> list[RayNode]:
        """The machines, once enough is free; raises `UserError` if there will not be enough."""
        deadline = time.monotonic() + FREED_S
        while not self.wanted.enough(nodes := self.nodes()):
            if time.monotonic() > deadline or not self.wanted.ever_enough(nodes):
                raise UserError(self.wanted.too_little(nodes))
            time.sleep(0.5)
        return nodes

    def _place(self, nodes: Sequence[RayNode]) -> None:
        for node in nodes:
            cpus, gpus = self.wanted.share(node)
            resources: dict[str, float] = {"CPU": cpus, f"node:{_ray_address(node, self.alone)}": 0.001}
            group = placement_group([resources | ({"GPU": gpus} if gpus else {})], strategy="STRICT_PACK")
            self.held[node.name] = Held(node._replace(cpus=cpus, gpus=gpus), group)
        deadline = time.monotonic() + PLACE_S
        for node in nodes:
            if not self.held[node.name].group.wait(max(0.0, deadline - time.monotonic())):
                raise UserError(
                    f"Ray has not given {count(self.held[node.name].node.cpus, 'CPU')} of {node.name} within "
                    f"{PLACE_S:.0f} s, which it says are free; look at `ray status` there"
                )

    def _greet(self, nodes: Sequence[RayNode], invitation: AgentInvitation) -> list[Any]:
        """Starts agents; returns the name, address and greeting of each."""
        here, greetings = versions(), {}
        for node in nodes:
            held = self.held[node.name]
            strategy = PlacementGroupSchedulingStrategy(placement_group=held.group, placement_group_bundle_index=0)
            options = {"num_cpus": held.node.cpus, "num_gpus": held.node.gpus, "max_restarts": 0, "max_concurrency": 4}
            held.actor = ray.remote(ray_host.RayHostActor).options(scheduling_strategy=strategy, **options).remote()
            arguments = agent_arguments(invitation, node.name, node.address, held.node.cpus)
            arguments["gpus"] = held.node.gpus
            greetings[node.name] = held.actor.start.remote(list(self.wanted.agent), arguments, here["runnel"])
        deadline = time.monotonic() + START_S
        replies = []
        for node in nodes:
            try:
                greeting: Any = ray.get(greetings[node.name], timeout=max(0.0, deadline - time.monotonic()))
            except GetTimeoutError:
                raise UserError(f"{node.name}: Ray has not started its actor within {START_S:.0f} s") from None
            except RayError as error:
                raise UserError(f"{node.name}: Ray could not start its actor: {_last_line(error)}") from error
            wrong = greeting.get("refused") or differs(greeting)
            if wrong:
                raise UserError(f"{node.name}: {wrong}")
            self.held[node.name].watch = self.held[node.name].actor.watch.remote()
            replies.append((node.name, node.address, greeting))
        return replies

    # Changes

    def look(self) -> Iterator[MachineLost | MachinesFree]:
        """Changes to report to the driver."""
        for name, why in self._ended():
            yield MachineLost(name, why)
        now = time.monotonic()
        if now < self._looked + LOOK_S:
            return
        self._looked = now
        nodes = self.nodes()
        living = {node.id for node in nodes}
        for name, held in self.held.items():
            if held.node.id not in living and not held.lost:
                held.lost = True
                yield MachineLost(name, "is gone: Ray no longer lists it as alive")
        free = [node for node in nodes if node.cpus >= 1 and node.name not in self.held]
        names = [node.name for node in free if self._left_alone.get(node.id, 0.0) < now]
        if names != self._free:
            self._free = names
            yield MachinesFree(names)

    def _ended(self) -> Iterator[tuple[str, str]]:
        """Agents that have ended, or whose actors have."""
        watched = {held.watch: name for name, held in self.held.items() if held.watch and not held.lost}
        done, _ = ray.wait(list(watched), num_returns=len(watched), timeout=0) if watched else ([], [])
        for ref in done:
            held = self.held[watched[ref]]
            try:
                why = f"its agent ended; {ray.get(ref)}"
            except ActorUnavailableError:  # unreachable, perhaps for a while only
                held.watch = held.actor.watch.remote()
                continue
            except RayError as error:
                why = f"its actor ended: {_last_line(error)}"
            held.lost = True
            yield watched[ref], f"is gone: {why}"


# Connecting


def connect(wanted: RayRequest) -> tuple[RayLink, str | None]:
    """Connects, or starts a cluster; also returns the folder of a cluster that was started."""
    address = wanted.address or os.environ.get("RAY_ADDRESS") or None
    folder = None
    if address is not None and "://" in address:
        raise UserError(
            f"found {address}, expected HOST:PORT of the cluster's head; run this command on a machine of the cluster"
        )
    if address not in (None, "auto", "local"):
        probe(address)
        join(address, address)
    elif address != "local" and (found := _found()) is not None and (address == "auto" or answers(found)):
        join("auto", found)
    elif address == "auto":
        raise UserError("found no Ray on this machine, expected a cluster; run `ray start --address=HEAD:6379` here")
    else:
        folder = _begin()
    return RayLink(wanted, folder is not None, ray.get_runtime_context().get_node_id()), folder


def _begin() -> str:
    """Starts a cluster of this machine alone; returns its folder."""
    sweep()
    folder = os.environ[FOLDER]  # removed by the guard, too
    os.mkdir(folder, 0o700)
    hold(folder)
    try:
        ray_private.begin(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def join(address: str, at: str) -> None:
    """Makes this process a driver of the cluster."""
    nowhere = f"this machine is no part of it; run `ray start --address={at}` here first"
    if not services.find_node_ids():  # Ray would search for a while
        raise UserError(f"cannot use the Ray cluster at {at}: {nowhere}")
    try:
        ray.init(address, **QUIET)
    except Exception as error:
        text = "\n".join(str(e) for e in (error, error.__cause__, error.__context__) if e is not None)
        versions = re.findall(r"(Ray|Python): (\S+)", text)
        if "mismatch" in text and len(versions) == 4:
            there, here = (" and ".join(map(" ".join, pair)) for pair in (versions[:2], versions[2:]))
            why = f"found {there} there, and {here} here; install the same on all machines"
        elif "uthenticat" in text or "token" in text:
            why = (
                "it asks for a token, which is missing here or another: set RAY_AUTH_MODE=token, with "
                "~/.ray/auth_token or RAY_AUTH_TOKEN as on its head"
            )
        elif "No node info" in text:
            why = nowhere
        else:
            why = _last_line(error)
        raise UserError(f"cannot use the Ray cluster at {at}: {why}") from error


def _found() -> str | None:
    """The address of a cluster that this machine is part of, or was."""
    try:
        found = services.get_ray_address_from_environment("auto", None)
    except ConnectionError:
        return None
    return None if found is None or _is_private(found) else found


def _is_private(address: str) -> bool:
    """Whether it is the address of a cluster that another run has started on this machine."""
    port = address.rpartition(":")[2].encode()
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            words = file.read()
            if b"gcs_server" in words and PRIVATE.encode() in words and b"=" + port + b"\0" in words:
                return True
    return False


def _ray_address(node: RayNode, alone: bool) -> str:
    return ray.util.get_node_ip_address() if alone else node.address


def _last_line(error: BaseException) -> str:
    """The last line of an error of Ray's, which may fill a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


# The process


def _leave_signals_to_the_driver() -> None:
    """The driver may first write a checkpoint, for which it needs the agents; it then closes our standard input."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _connected(link: RayLink) -> ConnectedToRay:
    interface = LOOPBACK if link.alone else ray.util.get_node_ip_address()
    head = ray.get_runtime_context().gcs_address
    return ConnectedToRay(interface, head, link.alone, not ray_private.has_token())


def _carry_out(command: RayCommand, link: RayLink) -> RayResult | None:
    """The result of a command to a link that is connected; None where it is not answered."""
    match command:
        case ListMachines():
            shares = [(node, link.wanted.share(node)) for node in link.nodes()]
            return MachineList([(node.name, node.address, share.cpus, share.gpus) for node, share in shares])
        case StartAgents(invitation):
            return AgentsStarted(link.start(invitation))
        case AddMachine(invitation, name):
            return AgentsStarted(link.add(invitation, name))
        case DropMachine(name):
            link.drop(name)
            return None
        case ConnectToRay():
            raise MalformedMessage("found ConnectToRay, expected it once")


def main() -> None:
    cloudpickle.register_pickle_by_value(ray_host)
    _leave_signals_to_the_driver()
    output = os.dup(1)
    os.dup2(2, 1)  # Ray prints

    def send(message: RayNews) -> None:
        os.write(output, ray_messages.write(message))

    link: RayLink | None = None
    folder: str | None = None
    unread = b""
    try:
        while True:
            if link is not None:
                with contextlib.suppress(RayError):  # the head does not answer at the moment
                    for report in link.look():
                        send(report)
            if not readable(0, 0.2):
                continue
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, unread = (unread + chunk).split(b"\n")
            for line in lines:
                call = ray_messages.read_call(line)
                try:
                    match call.command:
                        case ConnectToRay(request):
                            link, folder = connect(request)
                            _leave_signals_to_the_driver()  # again: Ray has set its own handlers
                            result = _connected(link)
                        case command if link is not None:
                            result = _carry_out(command, link)
                        case command:
                            raise MalformedMessage(f"found {type(command).__name__}, expected ConnectToRay first")
                except UserError as error:
                    result = RayRefused(str(error))
                if result is not None:
                    send(RayReply(call.id, result))
    finally:
        if link is not None:
            link.close()
        ray.shutdown()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
    sys.exit(0)
