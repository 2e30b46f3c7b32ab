"""What a run needs of this machine, checked before anything starts: file descriptors and memory."""

from __future__ import annotations

import os
import resource

from runnel.errors import UserError

LEAST = 32
"""Every command imports libraries, and reads or writes a file or two."""

RUN = 64
"""A run of one process: JAX, environments, metrics and, for a moment, the many files of a checkpoint."""

WORKER = 6
"""Each worker: its bell, its journal, its process and the line to it."""


def check_descriptors(needed: int) -> None:
    """Refuses to start where fewer files can be opened; a limit that this process may raise itself is raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard == resource.RLIM_INFINITY or hard >= needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    raise UserError(
        f"found a limit of {hard} file descriptors, wanted {needed} or more; raise it with `ulimit -n {needed}`, "
        "or use fewer workers"
    )


def opened() -> int:
    """How many are open now."""
    return len(os.listdir("/proc/self/fd"))


def check_memory(needed_bytes: int) -> None:
    """Refuses a run whose arrays no memory of this machine could hold. A GPU may have more than the machine itself."""
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes > 2 * have:
        raise UserError(
            f"found states and unrolls of {needed_bytes / 2**30:,.0f} GiB, and this machine has "
            f"{have / 2**30:,.0f} GiB of memory; use a smaller network, a shorter unroll or fewer environments"
        )
