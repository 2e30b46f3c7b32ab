"""Which fault a lost worker had, whether it can be replaced alone, and after how many faults a run ends."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from runnel.errors import EnvironmentFailed, OutOfDescriptors, StateLost, UserError, WorkerFailed
from runnel.graph.nodes import Graph
from runnel.planning.cuts import PlacedFragment
from runnel.planning.pace import gathers
from runnel.planning.plan import Plan
from runnel.runtime.control_messages import Failed
from runnel.system.tracebacks import Frame, compiles, place, read, waits_for_device

DESCRIPTORS_S = 30.0
"""How long a run without free file descriptors waits for some to be closed."""

T = TypeVar("T")


def retry_for_descriptors(do: Callable[[], T], seconds: float = DESCRIPTORS_S) -> T:
    """Calls a function that opens file descriptors; repeats that while there are none left, for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return do()
        except OutOfDescriptors:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


NO_MEMORY: Final = ("RESOURCE_EXHAUSTED", "memory ran out")
"""Words in the reason of a fault for want of memory: of a device's, and of this machine's."""


class Fault(NamedTuple):
    """The failure of a worker."""

    worker: str
    reason: str  # in one line
    detail: str  # its own traceback, its stacks, or the end of its log
    crashed: bool  # by itself; not if it was killed from outside
    error: Exception | None = None  # ends the run: a replacement would fail in the same way
    lost: bool = False  # a replacement found no journal to continue from: only a checkpoint has the state

    def failure(self, more: str = "") -> Exception:
        """The error that ends a run."""
        if self.error is not None:
            return self.error
        detail = f"\n{self.detail}" if self.detail else "; it left no word in its log"
        page = "troubleshooting#out-of-memory" if any(words in self.reason for words in NO_MEMORY) else ""
        return WorkerFailed(f"{self.worker} {self.reason}{more}{detail}", page=page)


def raised(worker: str, failed: Failed) -> Fault:
    """A worker that reported its own failure."""
    error: Exception | None = None
    if failed.user:
        error = UserError(failed.message)
    elif failed.final:
        error = EnvironmentFailed(f"{worker}: {failed.message}")
    lost = failed.error == StateLost.__name__
    reason = f"failed: {failed.message.strip()}"
    return Fault(worker, reason, failed.traceback, crashed=not lost, error=error, lost=lost)


def ended(worker: str, status: int, log: str, oom: bool = False) -> Fault:
    """A process that ended without a report."""
    if status >= 0:
        return Fault(worker, f"ended with status {status}", log, crashed=True)
    name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
    reason = f"was killed by signal {-status} ({name})" + (", perhaps because memory ran out" if oom else "")
    return Fault(worker, reason, log, crashed=-status not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT))


def hung(worker: str, seconds: float, phase: str, stacks: str, stopped: bool) -> Fault:
    """A worker without heartbeats; `stopped`: by a signal from outside."""
    how = "was stopped and " if stopped else ""
    at = place(read(stacks))
    where = "" if at is None or stopped else f", in {at}"
    reason = f"{how}sent no heartbeat for {seconds:.0f} s while {phase} (--hang-after){where}"
    return Fault(worker, reason, stacks, crashed=not stopped)


def to_blame(stacks: Mapping[str, str]) -> str:
    """The first of silent learners, one program together, that does not wait for the others on a device, if any."""
    return next((name for name, text in stacks.items() if not waits_for_device(read(text))), next(iter(stacks)))


def stuck(silent: Mapping[str, Sequence[Frame]]) -> dict[str, Sequence[Frame]]:
    """Those of workers without heartbeats that hang, by their stacks: not one that compiles, and not one that waits
    for others on a device, unless all do."""
    late = {name: stack for name, stack in silent.items() if not compiles(stack)}
    return {name: stack for name, stack in late.items() if not waits_for_device(stack)} or late


def replaceable(fragment: PlacedFragment, plan: Plan, graph: Graph) -> bool:
    """Whether a worker can be replaced while the others continue: exactly, or nearly where staleness is allowed.

    That is so if its whole state is in its journal, its streams and the parameter stores:
    - A worker that steps environments and acts repeats the unroll from its first step.
    - A worker that steps environments, for others that act and assemble the trajectories, repeats the steps that these
      have seen.
    - A worker that only acts starts with new recurrent memories. This needs an asynchronous group, and requests that
      it answers one by one, not in step.
    - A worker that also computes from its own unrolls continues with the next one, if the receiver takes values as they
      arrive. This needs an asynchronous run.
    Any other worker has state that is only in a checkpoint.
    """
    nodes = [graph.nodes[name] for name in fragment.nodes]
    if any(node.traits.has_state for node in nodes):
        return False
    kinds, steps_envs = {node.kind for node in nodes}, "environment" in fragment.nodes
    everyone = set(graph.spec.groups)
    groups = everyone if steps_envs else {node.group for node in nodes}
    on_request = not groups & plan.step_synchronous
    free = all(plan.limit_iterations[group] for group in groups)
    if not steps_envs:
        return free and on_request and kinds == {"act"}
    acts = {node.group for node in nodes if node.kind == "act"}
    if any(node.traits.trains for node in nodes):
        return free and acts == everyone and gathers(fragment)
    return acts == everyone or (not acts and ("rollout" not in kinds or (free and on_request)))


@dataclass
class RestartBudget:
    """How many replacements a run tolerates before it ends."""

    most: int = 10
    window_s: float = 600.0
    in_a_row: int = 5  # of one worker, with nothing learnt in between
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._at: deque[float] = deque()
        self._row: dict[str, int] = {}
        self._learnt = -1

    def spend(self, fault: Fault, learnt: int) -> None:
        """Counts one replacement; raises the error that ends the run if that was one too many.

        `learnt`: environment steps learnt from so far, those repeated after a rollback included.
        """
        if fault.error is not None:
            raise fault.error
        now = self.clock()
        if learnt > self._learnt:
            self._row.clear()
            self._learnt = learnt
        if fault.crashed:  # a worker that was killed from outside is not to blame
            self._row[fault.worker] = self._row.get(fault.worker, 0) + 1
        self._at.append(now)
        while now - self._at[0] > self.window_s:
            self._at.popleft()
        if len(self._at) > self.most:
            so_far = f"after {self.most} within {self.window_s / 60:.0f} minutes" if self.most else "with --restarts 0"
            raise fault.failure(f", and is not replaced {so_far}; --restarts allows more")
        if self._row.get(fault.worker, 0) >= self.in_a_row:
            raise fault.failure(
                f", {self._row[fault.worker]} times in a row without an update in between; if an environment is "
                "the cause, `--distribution inline` shows its traceback"
            )
