"""Trackio: `runnel train ppo CartPole-v1 --sink trackio`.

Trackio decides where it records: in TRACKIO_DIR of this machine, unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL name
another place. `trackio show --project runnel` shows it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trackio

from runnel.recording.files import clean
from runnel.recording.sinks import Record


class TrackioSink:
    """A run at Trackio, whose steps are environment steps. A resumed run continues the same Trackio run."""

    def __init__(self, run_dir: Path, config: Mapping[str, Any]):
        # Two directories may have one name. The hash of the path keeps their runs apart, and finds one that is resumed.
        place = run_dir.resolve()
        name = f"{place.name}-{hashlib.sha256(str(place).encode()).hexdigest()[:8]}"
        project = os.environ.get("TRACKIO_PROJECT", "runnel")
        with _without_its_lines():
            self._run = trackio.init(
                project, name, config=clean(config), resume="allow", embed=False, auto_log_cpu=False, auto_log_gpu=False
            )

    def write(self, record: Record) -> None:
        known = {name: value for name, value in record.items() if value is not None}
        self._run.log(known, step=int(record.get("env_steps") or 0))

    def close(self) -> None:
        with _without_its_lines():
            trackio.finish()  # of the run, which it would otherwise finish again as Python exits


def _without_its_lines() -> contextlib.AbstractContextManager[Any]:
    """Silences Trackio's printed instructions; the terminal belongs to the run."""
    return contextlib.redirect_stdout(io.StringIO())
