"""Processes that a command has left behind."""

import time
from pathlib import Path


def processes_in(directory: Path) -> list[str]:
    """Processes with an open file in a directory."""
    found = []
    for fds in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(str(fd.readlink()).startswith(str(directory)) for fd in fds.iterdir()):
                found.append(fds.parent.name)
        except OSError:
            continue
    return found


def until_left(directory: Path, seconds: float = 60.0) -> None:
    """Processes of members end by themselves after the command that started them was killed."""
    deadline = time.monotonic() + seconds
    while processes_in(directory):
        assert time.monotonic() < deadline, f"{processes_in(directory)} are still there"
        time.sleep(0.1)
