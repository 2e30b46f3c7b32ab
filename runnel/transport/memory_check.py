"""Checks that there is memory for a plan's streams: the kernel takes pages of shared memory when they are first
touched, and when none are left it kills a process, without an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runnel.errors import UserError


def _number_after(text: str, key: str) -> int | None:
    """`MemAvailable:  123 kB` or `inactive_file 123`: the number behind `key`."""
    for line in text.splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[0] == key:
            return int(words[1])
    return None


def _left_in(group: Path, limit_name: str, used_name: str, cache_key: str) -> int | None:
    """The bytes that a control group may still allocate, counting its clean file cache as free; None without a
    limit."""
    with suppress(OSError, ValueError):  # an unlimited group of version 2 says "max"
        limit = int((group / limit_name).read_text())
        used = int((group / used_name).read_text())
        cache = 0
        with suppress(OSError, ValueError):
            cache = _number_after((group / "memory.stat").read_text(), cache_key) or 0
        return max(0, limit - max(0, used - cache))
    return None


def _limits(proc: Path, cgroups: Path) -> Iterator[tuple[int, str]]:
    with suppress(OSError, ValueError):
        available_kb = _number_after((proc / "meminfo").read_text(), "MemAvailable")
        if available_kb is not None:
            yield available_kb * 1024, "this machine has"
    memberships = ""
    with suppress(OSError):
        memberships = (proc / "self/cgroup").read_text()
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroups, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Every group above holds too. Inside a container the path may be the host's: then the root is our own group.
        group = root / path.lstrip("/")
        for place in (group, *group.parents):
            left = _left_in(place, *names)
            if left is not None:
                yield left, "this job's memory limit leaves"
            if place == root:
                break


def _in_units(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def check_room(total_bytes: int, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
    """Raises UserError if `total_bytes` of new memory exceed the free memory of the machine, or of the job."""
    left, whose = min(_limits(proc, cgroups), default=(total_bytes, ""))
    if total_bytes > left:
        raise UserError(
            f"the streams of this plan need {_in_units(total_bytes)} of shared memory and {whose} {_in_units(left)}; "
            "use fewer environments, shorter unrolls or fewer workers",
            page="troubleshooting#out-of-memory",
        )
