"""The messages between a launcher, its fork servers and the workers that start from them.

The launcher sends orders to a server, which handles one at a time and reports each worker that starts, cannot be
started, or ends. A worker's first message, over its own control, is `RunEntry`. All ends have the same version. The
server without JAX imports this: standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runnel.config import json_messages
from runnel.config.json_messages import JsonMessage


@dataclass(frozen=True)
class ProcessContext:
    """The user's process as far as another process adopts it."""

    environ: dict[str, str]
    argv: list[str]
    path: list[str]
    """`sys.path`."""
    modules: dict[str, Any]
    """`named_modules.state()`."""
    directory: str | None
    """The working directory; None where it was removed."""


# Orders: from a launcher to a fork server


@dataclass(frozen=True)
class ImportModules(JsonMessage):
    """Import these, which workers need. An error is logged, and left to the worker that needs the module."""

    modules: list[str]
    context: ProcessContext


@dataclass(frozen=True)
class PrepareWorkers(JsonMessage):
    """Call `entry(job)`; workers that are started later inherit what it leaves in memory."""

    entry: str
    job: dict[str, Any]
    context: ProcessContext


@dataclass(frozen=True)
class StartWorker(JsonMessage):
    """Start a process; the descriptors of its control and log are sent along. Answered by `WorkerStarted` or
    `StartRefused`."""

    serial: int
    """The launcher's number of this start."""
    name: str


ForkOrder = ImportModules | PrepareWorkers | StartWorker


# Reports: from a fork server to its launcher


@dataclass(frozen=True)
class WorkerStarted(JsonMessage):
    """A worker has a process, whose pidfd is sent along."""

    serial: int
    pid: int


@dataclass(frozen=True)
class StartRefused(JsonMessage):
    """The system has refused another process, or the descriptors of the order."""

    serial: int | None
    """None where the order could not be received."""
    errno: int


@dataclass(frozen=True)
class WorkerExited(JsonMessage):
    """A worker's process has ended."""

    serial: int
    status: int
    """As in subprocess: negative where a signal ended it."""


ForkReport = WorkerStarted | StartRefused | WorkerExited


# From a launcher to a worker


@dataclass(frozen=True)
class RunEntry(JsonMessage):
    """Call `entry(job, control, fds)`. The descriptors are sent along."""

    entry: str
    job: dict[str, Any]
    context: ProcessContext


def parse_order(value: Mapping[str, Any]) -> ForkOrder:
    """The order that a fork server received; raises `MalformedMessage`."""
    return json_messages.parse(value, ForkOrder)


def parse_report(value: Mapping[str, Any]) -> ForkReport:
    """The report that a launcher received; raises `MalformedMessage`."""
    return json_messages.parse(value, ForkReport)


def parse_entry(value: Mapping[str, Any]) -> RunEntry:
    """A worker's first message; raises `MalformedMessage`."""
    return json_messages.parse(value, RunEntry)
