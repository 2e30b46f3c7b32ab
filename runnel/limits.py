"""How many files this process may open: checked before anything starts, for libraries fail without."""

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
