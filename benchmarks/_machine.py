"""What a result was measured on, and where results are kept."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"


def describe(*packages: str) -> dict[str, Any]:
    """The machine, the date and the versions of what was measured."""
    import jax

    device = jax.devices()[0]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "device": getattr(device, "device_kind", device.platform),
        "devices": jax.device_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("jax", *packages)},
    }


def describe_elsewhere(*packages: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """As `describe`, by a process that ends at once: this one takes no memory of a GPU, which its runs need."""
    code = f"import json; from benchmarks._machine import describe; print(json.dumps(describe(*{packages!r})))"
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=True
    )
    return json.loads(told.stdout.splitlines()[-1])


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def stolen_s() -> float:
    """Seconds of this machine's cores, all together, that went to others on the same hardware since it started."""
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=9)[8])
    return ticks / os.sysconf("SC_CLK_TCK")


def save(name: str, result: dict[str, Any], directory: str | None = None) -> Path:
    """Writes raw results beside the script that made them, or into another directory."""
    target = Path(directory) if directory else RESULTS
    target.mkdir(parents=True, exist_ok=True)
    device = "".join(c if c.isalnum() else "-" for c in str(result["machine"]["device"])).lower()
    path = target / f"{name}-{device}-{result['machine']['date']}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path
