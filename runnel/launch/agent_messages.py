"""The protocol between the driver of a run and the host agents: what each sends, as types.

The driver sends an `AgentRequest` with a command. One with an id is answered by a `Reply` with the same id; others are
not answered. An agent also sends, unprompted, its workers' messages and their state. Messages travel over
`AgentMail`, once and in order; those of workers (`control_messages`) travel inside `SendToWorker` and `FromWorker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runnel.config import json_messages
from runnel.config.json_messages import JsonMessage

# Commands: from the driver to an agent


@dataclass(frozen=True)
class OpenChannels(JsonMessage):
    """Make the machine's share of the shared memory, and connect it to the other machines."""

    layout: dict[str, Any]
    """A `host.HostChannels`."""
    elsewhere: dict[str, str]
    """By worker on another machine: that machine."""
    peers: dict[str, tuple[str, str]]
    """By other machine: its courier's address and public key."""
    epoch: int


@dataclass(frozen=True)
class PrepareServers(JsonMessage):
    """Have the fork servers call an entry, once, before workers are started."""

    entry: str
    job: dict[str, Any]


@dataclass(frozen=True)
class StartWorkers(JsonMessage):
    """Answered by `Started`."""

    orders: list[dict[str, Any]]
    """Each a `host.WorkerOrder`."""


@dataclass(frozen=True)
class StartStandalone(JsonMessage):
    """Start a worker that is no part of a worker group; it stays when others are closed. Answered by `Started`."""

    order: dict[str, Any]
    """A `host.WorkerOrder` without peers, streams and stores."""
    life: int


@dataclass(frozen=True)
class EndStandalone(JsonMessage):
    """Kill such a worker, if it still has this life."""

    worker: str
    life: int


@dataclass(frozen=True)
class CloseStandalone(JsonMessage):
    """End all such workers."""

    timeout_s: float


@dataclass(frozen=True)
class SendToWorker(JsonMessage):
    """Forward a message to a worker; with the arrays that were sent with it, if `arrays`."""

    worker: str
    message: dict[str, Any]
    arrays: bool = False


@dataclass(frozen=True)
class ReapWorker(JsonMessage):
    """A worker is gone or to be killed: make its ends of streams ready for its successor."""

    worker: str


@dataclass(frozen=True)
class ClearChannels(JsonMessage):
    """Empty the streams; what other machines sent in an earlier epoch is dropped."""

    epoch: int


@dataclass(frozen=True)
class FindPort(JsonMessage):
    """Answered by `FreePort`."""


@dataclass(frozen=True)
class GetTracebacks(JsonMessage):
    """Answered by `Tracebacks`."""

    worker: str


@dataclass(frozen=True)
class GetTraffic(JsonMessage):
    """Answered by `Traffic`."""


@dataclass(frozen=True)
class CloseWorkers(JsonMessage):
    """End all workers; the agent stays."""

    timeout_s: float


@dataclass(frozen=True)
class EndAgent(JsonMessage):
    """End."""


AgentCommand = (
    OpenChannels
    | PrepareServers
    | StartWorkers
    | StartStandalone
    | EndStandalone
    | CloseStandalone
    | SendToWorker
    | ReapWorker
    | ClearChannels
    | FindPort
    | GetTracebacks
    | GetTraffic
    | CloseWorkers
    | EndAgent
)


@dataclass(frozen=True)
class AgentRequest(JsonMessage):
    """A command; with an id where a reply is expected."""

    command: AgentCommand
    id: int | None = None


# Results: what a reply holds


@dataclass(frozen=True)
class Done(JsonMessage):
    """The command was carried out, and has nothing to return."""


@dataclass(frozen=True)
class Started(JsonMessage):
    """Workers have been started."""

    workers: list[tuple[str, int, int]]
    """Name, process id, and life: a number that distinguishes it from others of that name."""


@dataclass(frozen=True)
class FreePort(JsonMessage):
    """A free port of the machine."""

    port: int


@dataclass(frozen=True)
class Tracebacks(JsonMessage):
    """The stacks of a worker's threads; empty where there is no such worker."""

    text: str


@dataclass(frozen=True)
class Traffic(JsonMessage):
    """The counts of messages that the courier has carried, dropped and rejected: `Courier.tally`."""

    tally: dict[str, Any]


@dataclass(frozen=True)
class CommandFailed(JsonMessage):
    """The command raised: a `UserError`, too few descriptors, or a defect with its traceback."""

    error: str
    kind: Literal["user", "descriptors", "defect"]


Result = Done | Started | FreePort | Tracebacks | Traffic | CommandFailed


# News: from an agent to the driver


@dataclass(frozen=True)
class Reply(JsonMessage):
    """The answer to the `AgentRequest` of this id."""

    id: int
    result: Result


@dataclass(frozen=True)
class Hello(JsonMessage):
    """The agent's first message."""

    name: str
    courier: tuple[str, str]
    """Address and public key."""


@dataclass(frozen=True)
class Pulse(JsonMessage):
    """How the machine is, several times a second."""

    rejected: dict[str, dict[str, int]] = field(default_factory=lambda: {"reasons": {}, "addresses": {}})
    """Connections of strangers: `rejections.Counts`."""
    beats: dict[str, int | None] = field(default_factory=dict)
    """By living worker: its heartbeats so far; None where they cannot be read."""
    stopped: list[str] = field(default_factory=list)
    """Workers that are stopped by a signal."""
    fill: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By stream: messages pending, and messages committed so far."""
    oom_kills: int | None = None


@dataclass(frozen=True)
class FromWorker(JsonMessage):
    """A worker's message that has arrays, with these."""

    worker: str
    life: int
    message: dict[str, Any]


@dataclass(frozen=True)
class FromWorkers(JsonMessage):
    """The other messages of all workers of the machine since the last of these, in order."""

    reports: list[tuple[str, int, dict[str, Any]]]
    """Worker, life and message."""


@dataclass(frozen=True)
class WorkerEnded(JsonMessage):
    """A worker's process has ended."""

    worker: str
    life: int
    status: int
    tail: str
    """The end of its log."""
    oom_kills: int | None


@dataclass(frozen=True)
class LogTexts(JsonMessage):
    """The texts that workers have written to their logs since the last of these."""

    texts: dict[str, str]


News = Reply | Hello | Pulse | FromWorker | FromWorkers | WorkerEnded | LogTexts


def parse_request(value: Mapping[str, Any]) -> AgentRequest:
    """The request that an agent received; raises `MalformedMessage`."""
    return json_messages.parse(value, AgentRequest)


def parse_news(value: Mapping[str, Any]) -> News:
    """The message that the driver received; raises `MalformedMessage`."""
    return json_messages.parse(value, News)
