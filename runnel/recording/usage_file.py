"""`usage.json`: how busy the workers and streams of a run in progress are, and its bottleneck."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from runnel.recording import run_directory
from runnel.recording.files import clean

FILE: Final = "usage.json"
EVERY_S: Final = 2.0


class UsageFile:
    """Replaces the file periodically. A failure to write is ignored: the next one follows."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic):
        self._run_dir, self._clock, self._written_at = run_dir, clock, -math.inf

    def write(self, make: Callable[[], Mapping[str, Any]]) -> None:
        """`make` is called if the file is due."""
        if self._clock() - self._written_at < EVERY_S:
            return
        self._written_at = self._clock()
        content = json.dumps({"time": time.time(), **clean(make())}, allow_nan=False).encode()
        with contextlib.suppress(OSError):
            run_directory.replace(self._run_dir, FILE, content, durable=False)
