"""`evaluations.jsonl`: every evaluation of a run, with the return of each episode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runnel.recording import run_directory
from runnel.recording.files import AppendOnlyFile, as_user_error, clean, write_atomically

FILE: Final = "evaluations.jsonl"
MOST_BYTES: Final = 1 << 30


class EvaluationLog:
    """Appends evaluations, and drops those that a run makes again."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir

    def add(self, found: Mapping[str, Any]) -> None:
        with as_user_error(self.run_dir / FILE):
            file = AppendOnlyFile(self.run_dir / FILE)
            try:
                file.write((json.dumps(clean(found), allow_nan=False) + "\n").encode())
            finally:
                file.close()

    def rewind(self, env_steps: int) -> None:
        """Drops evaluations of later parameters."""
        kept = [found for found in read_evaluations(self.run_dir) if found["env_steps"] <= env_steps]
        lines = "".join(json.dumps(found, allow_nan=False) + "\n" for found in kept)
        if run_directory.exists(self.run_dir, FILE):
            write_atomically(self.run_dir / FILE, lines.encode())


def read_evaluations(run_dir: Path | str) -> list[dict[str, Any]]:
    """The evaluations of a run in order. Lines that no run writes are left out."""
    if not run_directory.exists(run_dir, FILE):
        return []
    found = []
    with as_user_error(Path(run_dir) / FILE, "read"):
        for line in run_directory.lines(run_dir, FILE, MOST_BYTES):
            try:
                each = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(each, dict) and type(each.get("env_steps")) is int:
                found.append(each)
    return found
