"""When a worker is to be given up, whether it can be replaced alone, and when a run has had enough of it."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from runnel.errors import EnvironmentFailed, OutOfDescriptors, StateLost, UserError, WorkerFailed
from runnel.graph.nodes import Graph
from runnel.planning.pace import gathers
from runnel.planning.plan import PlacedFragment, learns
from runnel.runtime.control_messages import Failed
from runnel.system.stacks import Frame, compiles, place, read, waits_for_device

DESCRIPTORS_S = 30.0
"""How long a run that is short of descriptors waits for some to be given back."""

T = TypeVar("T")


def patiently(do: Callable[[], T], seconds: float = DESCRIPTORS_S) -> T:
    """Does something that takes descriptors, again and again while there are none, for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return do()
        except OutOfDescriptors:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


class Fault(NamedTuple):
    """What happened to a worker."""

    worker: str
    reason: str  # in one line
    detail: str  # its own traceback, its stacks, or the end of its log
    crashed: bool  # by itself, against: it was killed from outside
    error: Exception | None = None  # where it makes no sense to go on
    lost: bool = False  # a replacement found no state to go on from: only a checkpoint has it

    def failure(self, more: str = "") -> Exception:
        """The error that ends a run."""
        if self.error is not None:
            return self.error
        detail = f"\n{self.detail}" if self.detail else "; it left no word in its log"
        return WorkerFailed(f"{self.worker} {self.reason}{more}{detail}")


def raised(worker: str, failed: Failed) -> Fault:
    """A worker that told of its own end."""
    error: Exception | None = None
    if failed.user:
        error = UserError(failed.message)
    elif failed.final:
        error = EnvironmentFailed(f"{worker}: {failed.message}")
    lost = failed.error == StateLost.__name__
    reason = f"failed: {failed.message.strip()}"
    return Fault(worker, reason, failed.traceback, crashed=not lost, error=error, lost=lost)


def ended(worker: str, status: int, log: str, oom: bool = False) -> Fault:
    """A worker that ended without a word."""
    if status >= 0:
        return Fault(worker, f"ended with status {status}", log, crashed=True)
    name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
    reason = f"was killed by signal {-status} ({name})" + (", perhaps because memory ran out" if oom else "")
    return Fault(worker, reason, log, crashed=-status not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT))


def hung(worker: str, seconds: float, phase: str, stacks: str, stopped: bool) -> Fault:
    """A worker that gave no sign of life; `stopped`: by a signal from outside."""
    how = "was stopped and " if stopped else ""
    at = place(read(stacks))
    where = "" if at is None or stopped else f", in {at}"
    reason = f"{how}gave no sign of life for {seconds:.0f} s while {phase} (--hang-after){where}"
    return Fault(worker, reason, stacks, crashed=not stopped)


def to_blame(stacks: Mapping[str, str]) -> str:
    """Of silent workers that are one program, the first that does not wait for the others on a device, if any."""
    return next((name for name, text in stacks.items() if not waits_for_device(read(text))), next(iter(stacks)))


def stuck(silent: Mapping[str, Sequence[Frame]]) -> dict[str, Sequence[Frame]]:
    """Of workers without a sign of life, by where they stand, those that hang: not who compiles, and not who waits for
    the others on a device where there is somebody else."""
    late = {name: stack for name, stack in silent.items() if not compiles(stack)}
    return {name: stack for name, stack in late.items() if not waits_for_device(stack)} or late


def replaceable(fragment: PlacedFragment, graph: Graph, free: bool) -> bool:
    """Whether a worker can be replaced while the others go on, exactly or, where staleness is allowed, nearly.

    That is so where all it knows is in its journal, its streams and the parameter stores:
    - who plays, and acts there too, plays the unroll again from its first step;
    - who plays for others who put the trajectories together takes the steps again that they have seen;
    - who acts for whoever asks begins with new memories (where nobody must wait for anybody);
    - who computes from what it plays goes on with the next unroll, where others take what they are given as it comes.
    All others know what only a checkpoint can tell them.
    """
    nodes = [graph.nodes[name] for name in fragment.nodes]
    kinds = {node.kind for node in nodes}
    if learns(fragment, graph) or "replay" in kinds:
        return False
    if "environment" not in kinds:
        return free and kinds == {"act"}
    acts = {node.group for node in nodes if node.kind == "act"}
    rolls = {node.group for node in nodes if node.kind == "rollout"}
    everybody = set(graph.spec.groups)
    if not kinds <= {"environment", "act", "rollout"}:
        return free and acts == everybody and gathers(fragment)
    return acts == everybody or (not acts and (not rolls or free))


@dataclass
class RestartBudget:
    """How many replacements a run puts up with."""

    most: int = 10
    window_s: float = 600.0
    in_a_row: int = 5  # of one worker, without anything learnt in between
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._at: deque[float] = deque()
        self._row: dict[str, int] = {}
        self._learnt = -1

    def spend(self, fault: Fault, learnt: int) -> None:
        """Takes one; raises what ends the run where there is none left. `learnt`: how much was up to now, all told."""
        if fault.error is not None:
            raise fault.error
        now = self.clock()
        if learnt > self._learnt:
            self._row.clear()
            self._learnt = learnt
        if fault.crashed:  # who is killed from outside is not to blame
            self._row[fault.worker] = self._row.get(fault.worker, 0) + 1
        self._at.append(now)
        while now - self._at[0] > self.window_s:
            self._at.popleft()
        if len(self._at) > self.most:
            so_far = f"after {self.most} within {self.window_s / 60:.0f} minutes" if self.most else "with --restarts 0"
            raise fault.failure(f", and is not replaced {so_far}; --restarts allows more")
        if self._row.get(fault.worker, 0) >= self.in_a_row:
            raise fault.failure(
                f", {self._row[fault.worker]} times in a row with nothing learnt in between; where that is an "
                "environment's doing, `--distribution inline` shows how"
            )


class HeartbeatMonitor:
    """Notices who gives no sign of life for longer than its phase may take.

    A worker that works beats with every step, and one that waits ten times a second. Starting and compiling take as
    long as they take; but who is stopped altogether is not at it.
    """

    def __init__(self, working_s: float, clock: Callable[[], float] = time.monotonic):
        self.limits = {"working": working_s, "starting": max(300.0, working_s), "compiling": max(600.0, working_s)}
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}  # by worker: its beats, and when they last changed

    def begin(self, worker: str) -> None:
        """A process has just been started."""
        self._seen.pop(worker, None)

    def since(self, worker: str) -> float:
        """For how long it has given no sign of life, as far as that was looked at."""
        before = self._seen.get(worker)
        return 0.0 if before is None else self._clock() - before[1]

    def silent(self, worker: str, beats: int, phase: str, stopped: Callable[[], bool]) -> float | None:
        """For how long it has given no sign of life, where that is too long."""
        before, now = self._seen.get(worker), self._clock()
        if before is None or before[0] != beats:
            self._seen[worker] = (beats, now)
            return None
        passed = now - before[1]
        late = passed > self.limits[phase] or (passed > self.limits["working"] and stopped())
        return passed if late else None


class DeadlockDetector:
    """Notices when everybody waits for everybody: each gives signs of life, and none will ever do anything."""

    FRESH_S = 5.0  # who waits says so several times a second
    SURE_S = 1.0  # for so long it must look like one: what ends a wait may be on its way

    def __init__(self, most_s: float, clock: Callable[[], float] = time.monotonic):
        self.most_s, self._clock = most_s, clock
        self._noticed: float | None = None
        self._waits: dict[str, tuple[float, float, str]] = {}  # by worker: when it was told, for how long, for what

    def hear(self, worker: str, waits: tuple[str, float] | None) -> None:
        """A worker told what it waits for, and for how long it has, or that it does not."""
        self._waits.pop(worker, None)
        if waits is not None:
            cause, seconds = waits
            self._waits[worker] = (self._clock(), seconds, cause)

    def waits(self, worker: str) -> bool:
        """Whether a worker waits for another."""
        told = self._waits.get(worker)
        return told is not None and told[0] > self._clock() - self.FRESH_S

    def fault(self, workers: Collection[str]) -> Fault | None:
        """Where all of these have waited for too long."""
        now = self._clock()
        told = {name: self._waits[name] for name in workers if name in self._waits}
        late = (at > now - self.FRESH_S and seconds > self.most_s for at, seconds, _ in told.values())
        if len(told) < len(workers) or not all(late):
            self._noticed = None
            return None
        self._noticed = now if self._noticed is None else self._noticed
        if now - self._noticed < self.SURE_S:
            return None
        causes = ", ".join(f"{name} for {cause}" for name, (_, _, cause) in told.items())
        return Fault("everybody", f"has waited for {self.most_s:.0f} s (--hang-after): {causes}", "", crashed=True)
