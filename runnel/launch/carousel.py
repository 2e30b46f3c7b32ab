"""A carousel: workers that wait for each other move on from core to core, so that none is always on a slow one.

Cores of a machine differ: two of them may be one in hardware, some are built slower, a neighbour takes its part of
others. The system leaves a worker that is always busy on the core that it has, and where all wait for the slowest of
them every unroll, the run is as slow as the slowest core. In turns each worker is as fast as the cores are on average.

A worker is moved by allowing it one core only and, at once, again all that it was allowed before: whatever else the
system wants to do with it, it may.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

TURN_S = 0.01
"""How long a worker stays on a core."""

SHARE = 20
"""A turn comes that many times the time after the last one that it took: moving many takes time too."""

LOOK_S, CROWDED = 1.0, 0.1
"""How often to look whether somebody else is at work here: then workers wait for a core for a tenth of their time."""

REST_S = 30.0
"""How long they are left alone then, for the system knows better: a second first, then twice as long, up to this."""

NODES = Path("/sys/devices/system/node")


class Carousel:
    """Moves workers from `start` to `close`. `riders` gives the process ids of those who are there."""

    def __init__(self, riders: Callable[[], Iterable[int]]):
        self._riders = riders
        self._rings = [Ring(cores) for cores in nodes(os.sched_getaffinity(0))]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runnel-carousel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        rest = LOOK_S
        while not self._over.is_set():
            if self.crowded_after(LOOK_S):
                self._over.wait(rest)
                rest = min(2 * rest, REST_S)
            else:
                rest = LOOK_S

    def crowded_after(self, seconds: float) -> bool:
        """Makes turns for so long, and says whether workers had to wait for a core meanwhile."""
        began, before, pause = time.monotonic(), self._delays(), TURN_S
        while not self._over.wait(pause) and time.monotonic() < began + seconds:
            started = time.monotonic()
            self.turn()
            pause = max(TURN_S, SHARE * (time.monotonic() - started))
        elapsed, after = time.monotonic() - began, self._delays()
        grown = [after[pid] - before[pid] for pid in after.keys() & before.keys()]
        return sum(grown) > CROWDED * elapsed * len(grown)

    def _delays(self) -> dict[int, float]:
        return {pid: delay_of(pid) for pid in self._riders()}

    def turn(self) -> None:
        """Seats who has come, forgets who has gone, and moves everybody on."""
        riders = set(self._riders())
        for ring in self._rings:
            ring.keep(riders)
        for pid in sorted(riders.difference(*(ring.places for ring in self._rings))):
            self._seat(pid)
        for ring in self._rings:
            ring.turn()

    def _seat(self, pid: int) -> None:
        """Where its memory is likely to be, if there is room."""
        core = core_of(pid)
        roomy = [ring for ring in self._rings if ring.room]
        if roomy:
            max(roomy, key=lambda ring: (core in ring.cores, ring.room)).seat(pid)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class Ring:
    """Cores that workers move around on."""

    def __init__(self, cores: Sequence[int]):
        self.cores = list(cores)
        self.places: list[int | None] = [None] * len(cores)

    @property
    def room(self) -> int:
        return self.places.count(None)

    def seat(self, pid: int) -> None:
        self.places[self.places.index(None)] = pid

    def keep(self, pids: set[int]) -> None:
        self.places = [pid if pid in pids else None for pid in self.places]

    def turn(self) -> None:
        """Moves everybody to the next core, first who finds it empty, then who finds it left."""
        count = len(self.cores)
        empty = self.places.index(None) if None in self.places else 0
        for place in ((empty - 1 - k) % count for k in range(count)):
            pid = self.places[place]
            if pid is not None:
                move(pid, self.cores[(place + 1) % count])
        self.places.insert(0, self.places.pop())


def move(pid: int, core: int) -> None:
    """Puts a process on a core that it may use."""
    with contextlib.suppress(OSError):  # it has ended
        allowed = os.sched_getaffinity(pid)
        if core in allowed:
            os.sched_setaffinity(pid, {core})
            os.sched_setaffinity(pid, allowed)


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


def core_of(pid: int) -> int | None:
    """Where a process was last at work."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[36])
    return None


def delay_of(pid: int) -> float:
    """For how many seconds a process could have worked and had no core; 0 where the system does not count it."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return 0.0
