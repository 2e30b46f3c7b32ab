"""What every training script here is told, and what it tells while it trains."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

STEPS = 50_000_000
"""More than any scenario lets pass: runs are ended from outside."""

SAVE_EVERY_S = 5.0
"""Every library saves a checkpoint this often, or as near to it as it can be told to."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="from the newest checkpoint, as the library does it")
    parser.add_argument("--tolerant", action="store_true", help="with what the library has against faults turned on")
    return parser.parse_args()


class Telling:
    """Appends how far training has come to DIR/progress.jsonl, at most twice a second."""

    def __init__(self, directory: Path):
        self._path = directory / "progress.jsonl"
        self._told_at = 0.0

    def tell(self, steps: int, finite: bool = True) -> None:
        """`finite`: whether all parameters are."""
        if time.monotonic() - self._told_at < 0.5:
            return
        self._told_at = time.monotonic()
        with self._path.open("a") as file:
            file.write(json.dumps({"time": time.time(), "steps": int(steps), "finite": bool(finite)}) + "\n")
