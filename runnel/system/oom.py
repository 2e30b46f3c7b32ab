"""Counts the processes that the kernel has killed because memory ran out: a killed process cannot report it itself."""

from __future__ import annotations

from pathlib import Path


def oom_kills(root: Path | str = "/") -> int | None:
    """The number of OOM kills so far among the processes that share this one's memory limit; None if it is unknown.

    Compared before and after a worker's end by signal 9, it shows whether memory may have been the reason.
    """
    root = Path(root)
    group = root / "sys/fs/cgroup" / _group(root)
    for path, name in (
        (group / "memory.events", "oom_kill"),
        (root / "sys/fs/cgroup/memory.events", "oom_kill"),  # in a container whose own group is the root it sees
        (root / "sys/fs/cgroup/memory/memory.oom_control", "oom_kill"),  # version 1
        (root / "proc/vmstat", "oom_kill"),  # of the whole machine
    ):
        count = _count(path, name)
        if count is not None:
            return count
    return None


def _group(root: Path) -> str:
    """This process's control group (version 2), relative to the mount point."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")), "")


def _count(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None
