"""`evaluations.jsonl`: all evaluations of a run, with the return of each episode."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from runnel.recording import run_directory
from runnel.recording.files import AppendOnlyFile, as_user_error, clean, write_atomically

FILE: Final = "evaluations.jsonl"
MOST_BYTES: Final = 1 << 30
MOST_STEPS: Final = 1 << 62


class EvaluationLog:
    """Appends evaluations, and drops those that a run repeats."""

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
            if _is_evaluation(each):
                found.append(each)
    return found


def _is_evaluation(value: Any) -> bool:
    """Whether a value is an evaluation that a run can have written, so that it can be shown and compared."""
    if not isinstance(value, dict) or type(value.get("env_steps")) is not int or type(value.get("episodes")) is not int:
        return False
    numbers = [value.get(name) for name in ("mean_return", "std_return", "mean_length")]
    numbers += [value["score"]] if value.get("score") is not None else []
    returns, tables = value.get("returns"), [value.get(name, {}) for name in ("env", "group_returns")]
    interval = value.get("return_interval")
    return (
        0 <= value["env_steps"] < MOST_STEPS
        and all(map(_is_number, numbers))
        and isinstance(interval, list) and len(interval) == 2 and all(map(_is_number, interval))
        and isinstance(returns, list) and all(v is None or _is_number(v) for v in returns)
        and all(isinstance(table, dict) and all(v is None or _is_number(v) for v in table.values()) for table in tables)
    )  # fmt: skip


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # JSON has longer integers
