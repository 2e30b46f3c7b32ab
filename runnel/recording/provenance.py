"""`provenance.json`: the commands, versions and machines by which a run was trained."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runnel import __version__
from runnel.recording.files import read_json, write_json_atomically

FILE: Final = "provenance.json"
MOST_STARTS: Final = 20
"""The number of newest starts that are kept, besides the first, of a run that is resumed often."""

LIBRARIES: Final = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "gymnax", "brax", "pgx", "ray")


def record(run_dir: Path, devices: Mapping[str, Any]) -> None:
    """Adds a start of a run, or of several. `devices`: those of its machines."""
    starts = [*read(run_dir), {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command(),
        "versions": versions(),
        "machine": {"system": _system(), "cpus": os.cpu_count(), **devices},
    }]  # fmt: skip
    kept = [starts[0], *starts[1:][-MOST_STARTS:]]
    write_json_atomically(run_dir / FILE, {"starts": kept})


def read(run_dir: Path | str) -> list[dict[str, Any]]:
    """The starts of a run, oldest first; none if they cannot be read."""
    try:
        found = read_json(run_dir, FILE)
    except (OSError, ValueError, RecursionError):
        return []
    starts = found.get("starts") if isinstance(found, dict) else None
    return [each for each in starts if isinstance(each, dict)][: MOST_STARTS + 1] if isinstance(starts, list) else []


def command() -> str | None:
    """The command line of this process, where it is one of `runnel`."""
    name = Path(sys.argv[0]).name if sys.argv else ""
    own = name == "runnel" or (name == "__main__.py" and Path(sys.argv[0]).parent.name == "runnel")
    return shlex.join(["runnel", *sys.argv[1:]])[:8000] if own else None


def versions() -> dict[str, str]:
    """The versions of Python, of Runnel, and of the listed libraries that this process has imported."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in LIBRARIES}
    known = {name: version for name, version in found.items() if isinstance(version, str)}
    return {"runnel": __version__, "python": platform.python_version(), **known}


def _system() -> str:
    """`Linux 6.1.0 x86_64`. `platform.platform()` would start a process to find out more."""
    found = os.uname()
    return f"{found.sysname} {found.release} {found.machine}"
