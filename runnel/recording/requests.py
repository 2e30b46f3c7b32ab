"""Requests to a run in progress from other processes: to write a checkpoint soon, or to end as after Ctrl-C.

    requests.ask(run_dir, requests.STOP)      # another process, such as `runnel dash`
    waiting = requests.Waiting(run_dir)       # the run
    if requests.STOP in waiting.taken(): ...

A request is an empty file in the run directory, which the run removes when it takes it. So every user who may write
into the directory may ask, no signal can reach another process that has taken over a number, and it works wherever the
directory is mounted. A run removes requests from before its beginning.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runnel.recording import run_directory

CHECKPOINT: Final = "checkpoint"
STOP: Final = "stop"
ALL: Final = (CHECKPOINT, STOP)

LOOK_S: Final = 0.25
"""The interval in seconds at which a run checks for requests."""


def file_of(what: str) -> str:
    return f".asked-{what}"


def ask(run_dir: Path | str, what: str) -> None:
    """Asks a run for one of `ALL`. Raises OSError where nothing can be written."""
    if what not in ALL:
        raise ValueError(f"a run cannot be asked for {what!r}")
    os.close(run_directory.open_to_append(run_dir, file_of(what)))


def clear(run_dir: Path | str) -> None:
    """Drops requests to an earlier run in the directory."""
    for what in ALL:
        _take(Path(run_dir), what)


class Waiting:
    """The pending requests of a run. Several threads may check them."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic):
        self._run_dir, self._clock, self._looked_at = run_dir, clock, float("-inf")
        self._lock = threading.Lock()

    def taken(self) -> set[str]:
        """The requests since the last call, each once; nothing if that was a moment ago."""
        with self._lock:
            if self._clock() - self._looked_at < LOOK_S:
                return set()
            self._looked_at = self._clock()
            return {what for what in ALL if _take(self._run_dir, what)}


def _take(run_dir: Path, what: str) -> bool:
    with contextlib.suppress(OSError), run_directory.directory(run_dir) as here:
        os.unlink(file_of(what), dir_fd=here)
        return True
    return False
