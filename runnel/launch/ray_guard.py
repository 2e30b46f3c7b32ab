"""Runs the link to Ray, and removes its processes and its folder, however it ends.

Everything that the link starts stays a descendant of this process, which the kernel makes the parent of orphaned
descendants (PR_SET_CHILD_SUBREAPER). Most of Ray's own processes end with their parents, but not all.

    python -m runnel.launch.ray_guard COMMAND...     its standard input and output are those of the command
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PRIVATE = "runnel-ray-"
"""The prefix of the folders of private clusters, under /tmp; the process id of their guard follows."""

FOLDERS = Path("/tmp")  # short: paths of sockets are limited

NEW_S = 60.0
"""How old a folder is before it is removed: it is made before it is marked as in use."""

NOW = signal.SIGUSR1
"""The signal on which the guard ends the link at once."""

END_S = 10.0
"""How long the processes that the link has left may take to end: an agent has workers to end."""

_PR_SET_CHILD_SUBREAPER = 36


FOLDER = "RUNNEL_RAY_FOLDER"
"""The variable that names a link's folder, for the link and for every process that Ray starts for it."""


def hold(folder: str | Path) -> int:
    """Marks a folder as in use, until the descriptor is closed: by this process, or by its end."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(held)
        raise
    return held


def sweep() -> None:
    """Removes folders whose link and guard were killed, and ends the processes that still use them."""
    for folder in FOLDERS.glob(f"{PRIVATE}*"):
        with contextlib.suppress(OSError):  # in use, as most are; process ids would differ in a container
            about = folder.lstat()
            if about.st_uid == os.getuid() and time.time() > about.st_mtime + NEW_S:
                held = hold(folder)
                for pid in running_in(folder):
                    _signal(pid, signal.SIGKILL)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def running_in(folder: Path) -> list[int]:
    """Processes that were started with this folder in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"{FOLDER}={folder}\0".encode() in path.read_bytes() + b"\0":
                found.append(int(path.parent.name))
    return found


def run(command: Sequence[str]) -> int:
    """Runs the command to its end, then ends the processes that it has left; returns its exit status."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # as the link: the driver closes its standard input
        signal.signal(number, signal.SIG_IGN)
    folder = FOLDERS / f"{PRIVATE}{os.getpid()}-{secrets.token_hex(4)}"  # which the link makes if it needs it
    link = subprocess.Popen(command, env={**os.environ, FOLDER: str(folder)})
    signal.signal(NOW, lambda *_: link.kill())
    for stream in (0, 1):  # so that the driver sees the end of the link, and not of this process
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    status = link.wait()
    _end_all(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return status if status >= 0 else 128 - status


def _end_all(folder: Path) -> None:
    """Ends all descendants: Ray's by force, agents and their workers once they had time to end by themselves."""
    for pid in running_in(folder):
        _signal(pid, signal.SIGKILL)
    deadline = time.monotonic() + END_S
    while (left := descendants(os.getpid())) and time.monotonic() < deadline + END_S:
        if time.monotonic() > deadline:
            for pid in left:
                _signal(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
