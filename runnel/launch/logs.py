"""Limits the size of workers' logs: the first and the last lines are kept, those in between are removed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 8 << 20
"""A log that is longer is shortened,"""

HEAD_BYTES, TAIL_BYTES = 1 << 20, 1 << 20
"""to so much of its beginning and of its end."""

LOOK_S: Final = 2.0
"""How often logs are looked at."""


class WorkerLogs:
    """Those of one host's workers."""

    def __init__(self) -> None:
        self._looked = 0.0

    def look(self, paths: Iterable[Path]) -> None:
        """Shortens the logs that have grown too long; to be called often."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            for path in paths:
                with contextlib.suppress(OSError):  # a log is not worth a run
                    shorten(path)


def shorten(path: Path) -> None:
    """Leaves out the middle of a log that is too long. Its worker may go on writing: it appends."""
    if os.lstat(path).st_size <= MOST_BYTES:
        return
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        tail = os.pread(fd, TAIL_BYTES, size - TAIL_BYTES)
        tail = tail[tail.find(b"\n") + 1 :]
        left_out = size - HEAD_BYTES - len(tail)
        os.ftruncate(fd, HEAD_BYTES)
        os.write(fd, f"\n... {left_out:,} bytes were left out here ...\n".encode() + tail)
    finally:
        os.close(fd)
