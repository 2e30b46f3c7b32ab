"""Wraps calls that depend on the operating system. Linux supports all of Runnel; others, such as macOS, one process."""

from __future__ import annotations

import importlib
import math
import os
import sys
from pathlib import Path
from typing import Final

from runnel.errors import UserError

WORKERS_USE: Final = (
    ("os", "eventfd"),  # bells
    ("os", "memfd_create"),  # streams, journals and long messages
    ("fcntl", "F_ADD_SEALS"),
    ("os", "pidfd_open"),  # the ends of workers
    ("signal", "pidfd_send_signal"),
    ("socket", "MSG_CMSG_CLOEXEC"),  # descriptors that are sent to workers
)
"""Linux calls that only worker processes use."""


def check_worker_processes(what: str, instead: str, keywords: tuple[str, ...] = ()) -> None:
    """Refuses to start worker processes on a system that lacks a call that they need."""
    lacking = _lacking()
    if lacking:
        here = {"darwin": "macOS"}.get(sys.platform, sys.platform)
        raise UserError(
            f"{what}: found {here}, which has no {lacking}, expected Linux; {instead}",
            keywords=keywords,
            page="index#other-systems",
        )


def has_worker_processes() -> bool:
    """Whether this system supports worker processes."""
    return not _lacking()


def _lacking() -> str:
    """The first of those calls that this system lacks."""
    has = {module: importlib.import_module(module) for module, _ in WORKERS_USE}
    return next((name for module, name in WORKERS_USE if not hasattr(has[module], name)), "")


def cpus() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> float:
    """The memory of this machine; infinity if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return math.inf


def open_descriptors() -> int:
    """The number of files that this process has open."""
    for own in ("/proc/self/fd", "/dev/fd"):  # of Linux, and of other systems
        if os.path.isdir(own):
            return len(os.listdir(own))
    return 0


def directory_of(fd: int) -> Path | None:
    """A path to the directory of a descriptor itself, whatever its name is now; None where the system has no such path.

    Once that directory is removed nothing can be made through this path.
    """
    path = Path(f"/proc/self/fd/{fd}")
    return path if path.is_dir() else None


def is_running(pid: int) -> bool:
    """Whether a process with this number exists, of any user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return pid > 0  # 0 is a group, the own one
