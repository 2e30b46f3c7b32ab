"""Balances workers that synchronise at a barrier: a worker that lags on a slow core swaps cores with one that is ahead.

Cores of a machine differ: two may be hyperthreads of one, some are slower by design, some are shared with other
programs. The scheduler leaves a busy worker on its core, and if all workers wait for the slowest at every unroll, the
run is as slow as the slowest core. If workers swap cores in time, all of them reach the barrier together, at the
average speed of the cores; if the cores are equal, few workers are moved.

A worker is moved by setting its affinity to one core, and at once back to all cores that it had before: the scheduler
remains free to move it.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

TURN_S = 0.01
"""How often the workers' step counts are compared."""

NEWEST = 0.3
"""The weight of the last measurement in a worker's pace."""

APART = 2
"""Workers that are fewer steps apart are not swapped."""

LEEWAY = 0.5
"""Nor are those apart by less than this share of the steps between two measurements: with short steps that is noise."""

NODES = Path("/sys/devices/system/node")


class StepProgress(NamedTuple):
    """The progress of a worker."""

    steps: int
    waits: bool = False  # for the others, or for anything else


class CoreBalancer:
    """Balances workers from `start` to `close`. `progress` returns the progress of each, by process id."""

    def __init__(self, progress: Callable[[], Mapping[int, StepProgress]]):
        self._progress = progress
        self._steps: dict[int, int] = {}  # at the last measurement
        self._pace: dict[int, float] = {}  # steps between two measurements, of each worker on its present core
        self._node = {core: node for node, cores in enumerate(nodes(os.sched_getaffinity(0))) for core in cores}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runnel-core-balancer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(TURN_S):
            self.look()

    def look(self) -> None:
        """Swaps the slowest worker with the fastest, the second slowest with the second fastest, and so on."""
        now = self._progress()
        self._measure(now)
        order = sorted(now, key=lambda pid: now[pid].steps)
        for behind, ahead in zip(order, reversed(order), strict=True):
            if now[ahead].steps - now[behind].steps < max(APART, LEEWAY * self._pace.get(ahead, 0.0)):
                break
            slower = self._pace.get(behind, math.inf) < self._pace.get(ahead, 0.0)  # a worker without a pace is new
            if slower and not now[behind].waits and self._swap(behind, ahead):
                self._pace[behind], self._pace[ahead] = self._pace[ahead], self._pace[behind]

    def _measure(self, now: Mapping[int, StepProgress]) -> None:
        before, self._steps = self._steps, {pid: worker.steps for pid, worker in now.items()}
        self._pace = {pid: pace for pid, pace in self._pace.items() if pid in now}
        for pid, worker in now.items():
            gained = worker.steps - before.get(pid, worker.steps + 1)
            if gained >= 0 and not worker.waits:  # else it is new, or has restarted, or does not depend on its core
                self._pace[pid] = NEWEST * gained + (1 - NEWEST) * self._pace.get(pid, gained)

    def _swap(self, behind: int, ahead: int) -> bool:
        slow, fast = core_of(behind), core_of(ahead)
        if slow is None or fast is None or slow == fast or self._node.get(slow) != self._node.get(fast):
            return False
        move(behind, fast)
        move(ahead, slow)
        return True


def move(pid: int, core: int) -> None:
    """Puts a process on a core that it may use."""
    with contextlib.suppress(OSError):  # it has ended
        allowed = os.sched_getaffinity(pid)
        if core in allowed:
            os.sched_setaffinity(pid, {core})
            os.sched_setaffinity(pid, allowed)


def core_of(pid: int) -> int | None:
    """The core that a process last ran on."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])
    return None


def nodes(cores: Iterable[int]) -> list[list[int]]:
    """Cores by NUMA node."""
    left, found = set(cores), []
    for path in sorted(NODES.glob("node[0-9]*/cpulist")):
        with contextlib.suppress(OSError, ValueError):
            near = left & _numbers(path.read_text())
            found += [sorted(near)] if near else []
            left -= near
    return [*found, sorted(left)] if left else found


def _numbers(text: str) -> set[int]:
    """The numbers in a list such as `0-3,8`."""
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return {number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)}
