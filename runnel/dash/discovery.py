"""Where runs are below a directory, and whether their files have changed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.recording import members_file, run_directory, sweep_file

MOST_DEEP: Final = 3
"""Directories below a given one in which runs are looked for."""

MOST_LOOKED_AT: Final = 20_000
"""Directories in all: a directory of something else may have any number."""


def runs_below(root: Path, way: str, looked: list[int]) -> Iterator[str]:
    """The ways to all runs below a directory, in order; what is inside a run is not looked at."""
    looked[0] -= 1
    try:
        with run_directory.directory(root, way) as here:
            if holds_run(here):
                yield way
                return
            if looked[0] < 0 or way.count("/") + bool(way) >= MOST_DEEP:
                return
            with os.scandir(here) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for name in sorted(names):
        if name.isprintable() and not name.startswith("."):
            yield from runs_below(root, f"{way}/{name}" if way else name, looked)


def holds_run(here: int) -> bool:
    for name in ("config.json", members_file.FILE, sweep_file.FILE):
        with contextlib.suppress(OSError):
            os.stat(name, dir_fd=here, follow_symlinks=False)
            return True
    return False


def signature(directory: Path, files: Sequence[str]) -> tuple[Any, ...]:
    """What changes where one of the files does."""
    found: list[Any] = []
    try:
        with run_directory.directory(directory) as here:
            for name in files:
                try:
                    seen = os.stat(name, dir_fd=here, follow_symlinks=False)
                    found.append((seen.st_ino, seen.st_size, seen.st_mtime_ns))
                except OSError:
                    found.append(None)
    except OSError:
        return ()
    return tuple(found)
