"""Checks file descriptors and memory before a run starts."""

from __future__ import annotations

import contextlib
import math
import resource
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError
from runnel.system.platform import memory_bytes

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup")
"""The directory of a container's own limits."""
CGROUP_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
"""For cgroups v2 and v1: the limit, the usage, and the part of it that is reclaimable pages of files."""

LEAST = 32
"""The descriptors of every command, which imports libraries, and reads or writes a few files."""

RUN = 64
"""The descriptors of a run of one process: JAX, environments, metrics and, for a moment, the many files of a
checkpoint."""

WORKER = 6
"""The descriptors of each worker: its bell, its journal, its process and its connection."""


def check_descriptors(needed: int) -> None:
    """Refuses to start if too few files can be opened; raises the limit if this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard == resource.RLIM_INFINITY or hard >= needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise UserError(
        f"found a limit of {hard} file descriptors, expected {needed} or more; raise it with `ulimit -n {needed}`, "
        "or use fewer workers",
        page="command-line#doctor",
    )


def check_memory(needed_bytes: int, on_cpus: bool) -> None:
    """Refuses a run whose arrays exceed the memory of this machine, or of a GPU, which may have more."""
    have = memory_bytes()
    if needed_bytes > (have if on_cpus else 2 * have):
        raise UserError(
            f"found states, unrolls and replays of {needed_bytes / 2**30:,.0f} GiB, and this machine has "
            f"{have / 2**30:,.0f} GiB of memory; use a smaller network, a shorter unroll, fewer environments or a "
            "replay of less capacity",
            page="troubleshooting#out-of-memory",
        )


def free_memory(device: Any) -> float:
    """The free bytes of a device of JAX; for a CPU, those of this machine, or all of them if that is unknown."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"]) - int(stats.get("bytes_in_use", 0))
    return free_host_memory()


def free_host_memory() -> float:
    """The free bytes of this machine or of this process's container, whichever has fewer."""
    free = memory_bytes()
    with contextlib.suppress(OSError):  # not Linux
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    return min(free, _free_in_container())


def _free_in_container() -> float:
    """The free bytes of this process's control group, such as that of a container; infinity without one."""
    free = math.inf
    for limit, used, files in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # "max", or control groups of the other version
            left = int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text())
            stat = (CGROUP / limit).parent / "memory.stat"
            known = dict(line.split() for line in stat.read_text().splitlines()) if stat.exists() else {}
            free = min(free, max(0, left + int(known.get(files, 0))))
    return free
