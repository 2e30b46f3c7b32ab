"""The messages between the driver of a run and the process that holds its connection to Ray, as lines of JSON.

The driver sends a `RayCall` with a command. One with an id is answered by a `RayReply` with the same id; others are not
answered. The link also reports, unprompted, which machines are lost and which could join. Does not import Ray.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from runnel.config import json_messages
from runnel.config.json_messages import JsonMessage
from runnel.errors import MalformedMessage
from runnel.launch.host_launcher import AgentInvitation
from runnel.launch.ray_shares import RayRequest

# Commands: from the driver to the link


@dataclass(frozen=True)
class ConnectToRay(JsonMessage):
    """Connect to a cluster, or start one here. The first command. Answered by `ConnectedToRay`."""

    request: RayRequest


@dataclass(frozen=True)
class ListMachines(JsonMessage):
    """Answered by `MachineList`."""


@dataclass(frozen=True)
class StartAgents(JsonMessage):
    """Start an agent on each machine that has a free CPU. Answered by `AgentsStarted`."""

    invitation: AgentInvitation


@dataclass(frozen=True)
class AddMachine(JsonMessage):
    """Start an agent on a machine that could join. Answered by `AgentsStarted`."""

    invitation: AgentInvitation
    name: str


@dataclass(frozen=True)
class DropMachine(JsonMessage):
    """Release a machine. Not answered."""

    name: str


RayCommand = ConnectToRay | ListMachines | StartAgents | AddMachine | DropMachine


@dataclass(frozen=True)
class RayCall(JsonMessage):
    """A command; with an id where a reply is expected."""

    command: RayCommand
    id: int | None = None


# Results: the content of a reply


@dataclass(frozen=True)
class ConnectedToRay(JsonMessage):
    """The link is a driver of a cluster."""

    interface: str
    """The address of this machine that others reach it by."""
    address: str
    """That of the cluster's head."""
    started: bool
    """Whether the cluster was started here, for this run."""
    open: bool
    """Whether it admits clients without a token."""


@dataclass(frozen=True)
class MachineList(JsonMessage):
    """The machines that are alive."""

    machines: list[tuple[str, str, int, int]]
    """Name, address, and the CPUs and GPUs that the run would get."""


@dataclass(frozen=True)
class AgentsStarted(JsonMessage):
    """Agents have sent their greetings."""

    agents: list[tuple[str, str, dict[str, Any]]]
    """Each has the machine's name and address, and the greeting."""


@dataclass(frozen=True)
class RayRefused(JsonMessage):
    """The command failed with a `UserError`, which has this text."""

    error: str


RayResult = ConnectedToRay | MachineList | AgentsStarted | RayRefused


# News: from the link to the driver


@dataclass(frozen=True)
class RayReply(JsonMessage):
    """The answer to the `RayCall` of this id."""

    id: int | None
    result: RayResult


@dataclass(frozen=True)
class MachineLost(JsonMessage):
    """A machine of the run is gone, or its agent has ended."""

    name: str
    why: str


@dataclass(frozen=True)
class MachinesFree(JsonMessage):
    """All machines that could join now; sent when they change."""

    names: list[str]


RayNews = RayReply | MachineLost | MachinesFree


def write(message: JsonMessage) -> bytes:
    """A message as a line."""
    return json.dumps(message.to_json()).encode() + b"\n"


def read_call(line: bytes) -> RayCall:
    """The call that the link received; raises `MalformedMessage`."""
    return json_messages.parse(_object(line), RayCall)


def read_news(line: bytes) -> RayNews:
    """The message that the driver received; raises `MalformedMessage`."""
    return json_messages.parse(_object(line), RayNews)


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise MalformedMessage(f"found the line {line[:60]!r}, expected JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedMessage(f"found the line {line[:60]!r}, expected a JSON object")
    return value
