"""The control protocol: messages between the supervisor of a run and its workers.

The supervisor sends commands, a worker sends reports. Each is a JSON object over the worker's control socket
(`launch.control`); `Load` and `Saved` have arrays attached. A worker's life as a sequence of messages:

    supervisor:  Load                Go              Pause           Save           Go ...  Stop
    worker:            Status, Phase    ProgressReport      Paused          Saved
                                        EpisodesEnded

After `Reset` a worker drops its work, answers `ReadyToLoad` and waits for the next `Load`. Both ends have the same
version. Standard library only: environment workers import this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runnel.config import json_messages
from runnel.config.json_messages import JsonMessage

PhaseName = Literal["starting", "compiling", "working"]


# Commands: from the supervisor to a worker


@dataclass(frozen=True)
class Load(JsonMessage):
    """Asks to begin from the attached arrays of a checkpoint, or from the beginning if there are none."""

    rejoins: bool
    """Whether the worker replaces another during training: it then continues from that worker's journal."""
    suspect: bool
    """Whether the replaced worker crashed, maybe because of the environment's state or the actions in the journal."""


@dataclass(frozen=True)
class Go(JsonMessage):
    """Asks to train."""

    until_env_steps: int
    """The environment steps, over all environments, at which learners pause."""
    target_return: float | None
    """The mean return at which learners pause."""


@dataclass(frozen=True)
class Pause(JsonMessage):
    """Asks to pause between two unrolls or iterations, and to report `Paused`."""

    at_iteration: int = 0
    """The earliest iteration of the pause. Learners in lockstep must pause at the same one, and asynchronous workers
    beside them catch up with them."""


@dataclass(frozen=True)
class Save(JsonMessage):
    """Asks for this worker's part of a checkpoint. Only sent while the worker is paused."""


@dataclass(frozen=True)
class TakeSnapshot(JsonMessage):
    """Asks for a `SnapshotTaken` of each group at the next boundary. Only sent to learners."""


@dataclass(frozen=True)
class Reset(JsonMessage):
    """Asks to drop the present work and wait for `Load`; the process and its environments stay."""


@dataclass(frozen=True)
class Stop(JsonMessage):
    """Asks the worker to end."""


Command = Load | Go | Pause | Save | TakeSnapshot | Reset | Stop


# Reports: from a worker to the supervisor


@dataclass(frozen=True)
class Phase(JsonMessage):
    """The worker has entered a phase; `Status` repeats the phase several times a second."""

    phase: PhaseName


@dataclass(frozen=True)
class Status(JsonMessage):
    """The activity of a worker and its waiting times, as sums since the phase began."""

    phase: PhaseName
    elapsed_s: float
    waited_s: dict[str, float]
    """Seconds by cause."""
    counts: dict[str, float]
    """Environment steps and updates; since the worker began."""
    waiting: tuple[str, float] | None = None
    """The cause of the present wait, and its seconds so far."""


@dataclass(frozen=True)
class EpisodeWindow:
    """Sums over the newest episodes that a worker has seen end."""

    filled: int
    """The number of episodes; at most `ops.episode_window.WINDOW`."""
    length: float
    returns: dict[str, float]
    """Sums of returns by group."""
    counts: dict[str, int]
    """By group: the episodes in which it played."""


@dataclass(frozen=True)
class StalenessSums:
    """The staleness of all samples that were learnt from, in versions."""

    total: int
    count: int
    most: int


@dataclass(frozen=True)
class ProgressReport(JsonMessage):
    """The progress of training (from learners), and the episodes that have ended (from workers that count them).

    Its fields are one list because they hold at one moment: a driver that had some of them without the others would
    count an update twice, or not at all.
    """

    iterations: int
    env_steps: int
    rank: int
    """The rank among learners that are one program. All report the same numbers; only those of rank 0 count."""
    target_reached: bool
    updates: int
    """Versions of all groups that this worker learns, since the run began."""
    updates_by_node: dict[str, int]
    """By node; since the last report, like the next two."""
    out_sums: dict[str, dict[str, float]]
    """By learning node: sums of its outputs over its updates."""
    refused_updates: dict[str, int]
    """The number of refused updates by the first quantity that was not finite."""
    episodes: int
    """Since the worker began."""
    window: EpisodeWindow | None
    staleness: StalenessSums
    repeated: int
    """Updates, since the worker began, from unrolls that had been learnt from before."""
    dropped: int
    """Batches of unrolls, since the worker began, that a pause released before they were reused as often as asked."""


@dataclass(frozen=True)
class EpisodesEnded(JsonMessage):
    """Metrics of the episodes that have ended since the worker's last message of this kind.

    It never includes an episode that a replacement of the worker would repeat: an unroll is reported once it has been
    handed over.
    """

    sums: dict[str, tuple[float, int]]
    """By metric: the sum over episodes, and the number of episodes."""


@dataclass(frozen=True)
class Paused(JsonMessage):
    """The worker has paused."""

    iteration: int | None
    """The iteration of a worker that trains, unless it is a learner at the end of training; otherwise None."""


@dataclass(frozen=True)
class Saved(JsonMessage):
    """The worker's part of a checkpoint: the attached arrays."""


@dataclass(frozen=True)
class SnapshotTaken(JsonMessage):
    """One group's parameters, in the attached arrays."""

    group: str
    mark: int
    """The multiple of environment steps at which it was due; -1: it was asked for by `TakeSnapshot`."""
    env_steps: int
    version: int


@dataclass(frozen=True)
class SnapshotLeftOut(JsonMessage):
    """A snapshot that was due is left out, because newer ones waited to be sent."""

    mark: int


@dataclass(frozen=True)
class ReadyToLoad(JsonMessage):
    """The worker was reset, and waits for `Load`."""


@dataclass(frozen=True)
class Event(JsonMessage):
    """A line for `events.jsonl`: an environment failed, or an episode was truncated."""

    event: str
    details: dict[str, Any]


@dataclass(frozen=True)
class Failed(JsonMessage):
    """The worker's entry raised; the process ends."""

    error: str
    """The class of the exception."""
    message: str
    traceback: str
    user: bool = False
    """Whether the user can fix it (`UserError`): the run ends with the message alone."""
    final: bool = False
    """Whether an environment failed for good (`EnvironmentFailed`): a restart would not help."""


Report = (
    Phase | Status | ProgressReport | EpisodesEnded | Paused | Saved | SnapshotTaken | SnapshotLeftOut | ReadyToLoad
    | Event | Failed
)  # fmt: skip


def parse_command(value: Mapping[str, Any]) -> Command:
    """Parses a command that a worker received; raises `MalformedMessage`."""
    return json_messages.parse(value, Command)


def parse_report(value: Mapping[str, Any]) -> Report:
    """Parses a report that a supervisor received; raises `MalformedMessage`."""
    return json_messages.parse(value, Report)
