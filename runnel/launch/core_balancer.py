"""Workers that wait for each other, kept abreast: who falls behind on a slow core changes places with who is ahead.

Cores of a machine differ: two of them may be one in hardware, some are built slower, a neighbour takes its part of
others. The system leaves a worker that is always busy on the core that it has, and where all wait for the slowest of
them every unroll, the run is as slow as the slowest core. Where workers change places in time, all of them come to the
end of an unroll together, as fast as the cores are on average; where cores are even, few are moved.

A worker is moved by allowing it one core only and, at once, again all that it was allowed before: whatever else the
system wants to do with it, it may.
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
"""How often to look who is behind."""

NEWEST = 0.3
"""The weight of what was seen last in how fast a worker is."""

APART = 2
"""Workers that are fewer steps apart count as abreast."""

LEEWAY = 0.5
"""So do those apart by less than this share of the steps from look to look, which is noise where steps are short."""

NODES = Path("/sys/devices/system/node")


class StepProgress(NamedTuple):
    """How far a worker has come."""

    steps: int
    waits: bool = False  # for the others, or for anything else


class CoreBalancer:
    """Looks after workers from `start` to `close`. `standings` tells of each by its process id."""

    def __init__(self, standings: Callable[[], Mapping[int, StepProgress]]):
        self._standings = standings
        self._steps: dict[int, int] = {}  # at the last look
        self._pace: dict[int, float] = {}  # steps from look to look, of each worker where it is now
        self._node = {core: node for node, cores in enumerate(nodes(os.sched_getaffinity(0))) for core in cores}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runnel-abreast", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(TURN_S):
            self.look()

    def look(self) -> None:
        """Lets those change places who should: the last with the first, the next to last with the second."""
        now = self._standings()
        self._measure(now)
        order = sorted(now, key=lambda pid: now[pid].steps)
        for behind, ahead in zip(order, reversed(order), strict=True):
            if now[ahead].steps - now[behind].steps < max(APART, LEEWAY * self._pace.get(ahead, 0.0)):
                break
            slower = self._pace.get(behind, math.inf) < self._pace.get(ahead, 0.0)  # who has none is new
            if slower and not now[behind].waits and self._swap(behind, ahead):
                self._pace[behind], self._pace[ahead] = self._pace[ahead], self._pace[behind]

    def _measure(self, now: Mapping[int, StepProgress]) -> None:
        before, self._steps = self._steps, {pid: standing.steps for pid, standing in now.items()}
        self._pace = {pid: pace for pid, pace in self._pace.items() if pid in now}
        for pid, standing in now.items():
            gained = standing.steps - before.get(pid, standing.steps + 1)
            if gained >= 0 and not standing.waits:  # else it is new, or begins again, or its core is not to blame
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
    """Where a process was last at work."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])
    return None


def nodes(cores: Iterable[int]) -> list[list[int]]:
    """Cores by the memory that is near to them."""
    left, found = set(cores), []
    for path in sorted(NODES.glob("node[0-9]*/cpulist")):
        with contextlib.suppress(OSError, ValueError):
            near = left & _numbers(path.read_text())
            found += [sorted(near)] if near else []
            left -= near
    return [*found, sorted(left)] if left else found


def _numbers(text: str) -> set[int]:
    """Of a list like 0-3,8."""
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return {number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)}
