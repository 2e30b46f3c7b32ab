"""How busy a machine's processors and its GPU are while something runs on it."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Self

EVERY_S = 1.0
QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")


class Sample(NamedTuple):
    """A look at the machine."""

    at: float  # seconds since the first
    busy: int  # ticks of all processors so far
    ticks: int
    gpu: float | None  # the mean over GPUs of the share of the last moments


class Load:
    """Looks about once a second, from a thread of its own.

    with Load() as load:
        work()
    load.shares(after_s=5.0)  # {"cpu": 0.84, "gpu": 0.31}
    """

    def __init__(self, wanted: bool = True):
        self._thread = threading.Thread(target=self._look, daemon=True) if wanted else None
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._samples: list[Sample] = []

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=30.0)

    def shares(self, after_s: float = 0.0) -> dict[str, float | None]:
        """The shares of the time since `after_s`: start-up says nothing of a long run. None where nothing is known."""
        samples = [sample for sample in self._samples if sample.at >= after_s]
        if len(samples) < 2:
            return {"cpu": None, "gpu": None}
        first, last = samples[0], samples[-1]
        known = [sample.gpu for sample in samples if sample.gpu is not None]
        cpu = (last.busy - first.busy) / max(1, last.ticks - first.ticks)
        return {"cpu": round(cpu, 4), "gpu": round(fmean(known), 4) if known else None}

    def _look(self) -> None:
        has_gpu = shutil.which(QUERY[0]) is not None
        while True:
            busy, ticks = _ticks()
            self._samples.append(Sample(time.monotonic() - self._began, busy, ticks, _gpu() if has_gpu else None))
            if self._stop.wait(EVERY_S):
                return


def _ticks() -> tuple[int, int]:
    """Of all processors since the machine began: those that did something, and all."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)  # idle, and waiting for a disk


def _gpu() -> float | None:
    try:
        told = subprocess.run(QUERY, capture_output=True, text=True, timeout=10.0, check=True).stdout
        return fmean(float(line) / 100 for line in told.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
