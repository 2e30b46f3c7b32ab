"""`returns.jsonl` and `evaluations.jsonl` of a stack: the curves of all its members, a list per line.

{"env_steps": 4096, "members": [0, 1, 2], "returns": [21.5, 19.0, null]}
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from runnel.recording import run_directory
from runnel.recording.files import AppendOnlyFile, as_user_error, clean, write_atomically

RETURNS, EVALUATIONS = "returns.jsonl", "evaluations.jsonl"
MOST_BYTES: Final = 1 << 31
EVERY_S: Final = 1.0
LINES_AN_AGE: Final = 200
"""The number of lines per age: a log that is t seconds old grows by a line every t / LINES_AN_AGE seconds."""


class ReturnsLog:
    """Appends the mean returns of all members: at most a line a second, less often later, and always the last."""

    def __init__(self, directory: Path, keep_until_env_steps: int | None = None):
        """`keep_until_env_steps`: later lines are dropped: they will be made again."""
        rewind(directory, RETURNS, keep_until_env_steps)
        with as_user_error(directory / RETURNS):
            self._file = AppendOnlyFile(directory / RETURNS)
        self._began, self._written_at, self._pending = time.monotonic(), -math.inf, b""

    def write(self, env_steps: int, returns: Mapping[int, float | None]) -> None:
        line = {"env_steps": env_steps, "members": list(returns), "returns": [_short(v) for v in returns.values()]}
        self._pending = (json.dumps(clean(line), allow_nan=False) + "\n").encode()
        now = time.monotonic()
        if now - self._written_at >= max(EVERY_S, (now - self._began) / LINES_AN_AGE):
            self._flush(now)

    def _flush(self, now: float) -> None:
        """Writes a line; a full disk does not end a run, and the next line is written as usual."""
        with contextlib.suppress(OSError):
            self._file.write(self._pending)
        self._pending, self._written_at = b"", now

    def close(self) -> None:
        self._flush(time.monotonic())
        self._file.close()


def add_evaluation(directory: Path, found: Mapping[str, Any]) -> None:
    """Appends an evaluation: its `env_steps` and `members`, and lists of their results."""
    with as_user_error(directory / EVALUATIONS):
        file = AppendOnlyFile(directory / EVALUATIONS)
        try:
            file.write((json.dumps(clean(found), allow_nan=False) + "\n").encode())
        finally:
            file.close()


def rewind(directory: Path, name: str, env_steps: int | None) -> None:
    """Drops lines of later steps, and truncated ones; all of them if `env_steps` is None."""
    if run_directory.exists(directory, name):
        limit = -1 if env_steps is None else env_steps
        kept = [line for line in _lines(directory, name) if line["env_steps"] <= limit]
        write_atomically(directory / name, "".join(json.dumps(line) + "\n" for line in kept).encode())


def read_evaluations(directory: Path) -> list[dict[str, Any]]:
    """Evaluations as a stack writes them, in order: the `returns` of each member are those of its episodes."""

    def proper(line: dict[str, Any]) -> bool:
        scores, returns = line.get("scores"), line["returns"]
        if not isinstance(scores, list) or len(scores) != len(returns) or not all(map(_is_number, scores)):
            return False
        return all(
            isinstance(each, list) and any(map(_is_number, each)) and all(v is None or _is_number(v) for v in each)
            for each in returns
        )

    return [line for line in _lines(directory, EVALUATIONS) if proper(line)]


def read_curves(directory: Path, name: str) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """By member: environment steps, and the mean return of its newest episodes, or of an evaluation."""
    found: dict[int, list[tuple[float, float]]] = {}
    for line in _lines(directory, name):
        for member, value in zip(line["members"], line["returns"], strict=True):
            value = _mean(value)
            if value is not None:
                found.setdefault(member, []).append((line["env_steps"], value))
    return {member: (np.array(points).T[0], np.array(points).T[1]) for member, points in found.items()}


def _lines(directory: Path, name: str) -> Iterator[dict[str, Any]]:
    """Lines as a run writes them; others are left out."""
    if not run_directory.exists(directory, name):
        return
    with as_user_error(directory / name, "read"):
        for text in run_directory.lines(directory, name, MOST_BYTES):
            try:
                line = json.loads(text)
                members, returns = line["members"], line["returns"]
                proper = all(type(n) is int for n in [line["env_steps"], *members]) and len(members) == len(returns)
            except (ValueError, RecursionError, KeyError, TypeError):
                continue
            if proper and 0 <= line["env_steps"] < 2**62:
                yield line


def _mean(value: Any) -> float | None:
    """A number, or the mean of an evaluation's episodes."""
    values = [x for x in (value if isinstance(value, list) else [value]) if _is_number(x)]
    return float(np.mean(values)) if values else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e100


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
