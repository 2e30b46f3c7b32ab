"""Facts of one run for a view: its result, its status, what it is of, and any value as plain JSON."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError, printable
from runnel.recording import run_directory, run_lock
from runnel.recording.files import read_json
from runnel.reporting.curves import configuration
from runnel.reporting.series import number
from runnel.reporting.train_again import CUT

MOST_PARTS: Final = 512
"""Entries of an object; of a list four times as many."""

LONGEST: Final = 2000
"""Letters of a text."""

UNREADABLE: Final = (
    OSError, UserError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading a file may raise that no run has written."""


def result(run_dir: Path) -> dict[str, Any]:
    found = read_json(run_dir, "result.json")
    return plain(found) if isinstance(found, dict) else {}


def status(run_dir: Path, result: Mapping[str, Any], ended: bool = False) -> str:
    """`running`, how it ended, or `gone` where a process was killed before it could say."""
    if not ended and not _surely_ended(run_dir) and run_lock.in_use(run_dir):
        return "running"
    found = result.get("status")
    return found if found in ("finished", "interrupted", "failed") else "gone"


def _surely_ended(run_dir: Path) -> bool:
    """Whether no process has taken the directory since its result was written: then its lock is left alone."""
    with contextlib.suppress(OSError), run_directory.directory(run_dir) as here:
        written, taken = (os.stat(name, dir_fd=here, follow_symlinks=False) for name in ("result.json", run_lock.FILE))
        return written.st_mtime_ns > taken.st_mtime_ns and written.st_mtime + 60 < time.time()
    return False


def about(run_dir: Path) -> dict[str, Any]:
    """What a run is of, with all settings in words."""
    (algorithm, environment, distribution), settings, seed = configuration(run_dir)
    config = read_json(run_dir, "config.json")
    asked = {name: text(str(config[name])) for name in ("steps", "stop_at_return", "eval_every") if config.get(name)}
    return {
        "algorithm": text(algorithm), "environment": text(environment), "distribution": text(distribution),
        "seed": text(seed.removeprefix("seed ")), "settings": dict(list(settings.items())[:300]), "asked": asked,
        "steps": number(config.get("steps")), "version": text(str(config.get("runnel_version", ""))),
    }  # fmt: skip


def plain(value: Any, depth: int = 6) -> Any:
    """A value as the page takes it: texts that show what they hide, and nothing without bounds."""
    if isinstance(value, dict):
        return {text(str(k)): plain(v, depth - 1) for k, v in list(value.items())[:MOST_PARTS]} if depth else "..."
    if isinstance(value, list):
        return [plain(each, depth - 1) for each in value[: 4 * MOST_PARTS]] if depth else "..."
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, bool):
        return value
    return number(value) if isinstance(value, float) or abs(value) > 2**53 else value


def text(value: str) -> str:
    return printable(value if len(value) <= LONGEST else f"{value[:LONGEST]} {CUT}")
