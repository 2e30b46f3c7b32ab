"""Writes files atomically, and reports failures as plain errors."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError
from runnel.recording import run_directory

MOST_DIGITS: Final = 40
"""The largest integer that is read; larger ones overflow as floats."""

MOST_JSON_BYTES: Final = 1 << 24
"""The largest JSON file that is read, larger than any configuration or result."""


def clean(value: Any) -> Any:
    """A value as JSON: plain numbers, and None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(name): clean(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [clean(part) for part in value]
    if hasattr(value, "item"):  # a scalar of NumPy or JAX
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, bool | int | str | None) else str(value)


def write_json_atomically(path: Path | str, value: Any) -> None:
    """Writes a JSON file atomically."""
    text = json.dumps(clean(value), indent=2, allow_nan=False) + "\n"
    write_atomically(Path(path), text.encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file by another atomically, even if power is lost."""
    with as_user_error(path):
        run_directory.replace(path.parent, path.name, content)


def read_json(root: Path | str, name: str, most_bytes: int = MOST_JSON_BYTES) -> Any:
    """Reads a JSON file of a run directory. Raises OSError, ValueError or RecursionError; see `run_directory`."""
    return json.loads(run_directory.read(root, name, most_bytes), parse_constant=_no_number, parse_int=_integer)


def read_wanted(root: Path | str, name: str, missing: str = "") -> Any:
    """Reads a required JSON file; raises `UserError` if that fails. `missing`: the error if it does not exist."""
    try:
        return read_json(root, name)
    except (OSError, ValueError, RecursionError) as error:
        if missing and isinstance(error, FileNotFoundError):
            raise UserError(missing) from None
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{Path(root) / name} cannot be read: {why}") from None


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"found an integer of {len(text):,} digits, expected at most {MOST_DIGITS}")
    return int(text)


def _no_number(text: str) -> Any:
    raise ValueError(f"found {text}, expected a finite number")


class AppendOnlyFile:
    """A file that grows by whole records: an incomplete write is undone, so that no record is ever truncated."""

    def __init__(self, path: Path):
        self._file = os.fdopen(run_directory.open_to_append(path.parent, path.name), "ab", buffering=0)

    def write(self, piece: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        try:
            while piece:
                piece = piece[self._file.write(piece) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), size)
            raise

    def sync(self) -> None:
        """Returns once the written data survives a loss of power."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def as_user_error(path: Path, what: str = "write") -> Iterator[None]:
    """Converts errors that the user can fix, such as a full disk or a missing permission, to UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {what} {path}: {error.strerror or error}") from error


OF_THE_MACHINE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENOMEM)
"""Errors that are caused by the machine, which is short of some resource, and not by the run."""


def one_line(error: BaseException) -> str:
    """The reason of a failure, in one line."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    for number in OF_THE_MACHINE:  # libraries wrap these
        if os.strerror(number).lower() in str(error).lower():
            text = os.strerror(number)
    line = str(text).splitlines()[0].rstrip(".")
    return line if len(line) <= 200 else line[:197] + "..."


WRITTEN: Final = (
    "config.json",
    "result.json",
    "metrics.jsonl",
    "events.jsonl",
    "events.older.jsonl",
    "evaluations.jsonl",
    "plan.json",
    "provenance.json",
    "usage.json",
    "report.html",
    ".wandb-id",
    ".lock",
)
HOLDS: Final = ("checkpoints", "policies", "logs", "wandb", ".wandb")


def check_layout(run_dir: Path) -> None:
    """Refuses a directory in which a run's files would be anything but plain files."""
    try:
        str(run_dir.absolute()).encode()
    except UnicodeEncodeError:
        found = str(run_dir).encode(errors="backslashreplace").decode()
        raise UserError(
            f"cannot write a run into {found}: found a path that is not UTF-8, which checkpoints need; choose another",
            keywords=("run_dir",),
        ) from None
    with as_user_error(run_dir, "write a run into"):
        for name in WRITTEN:
            run_directory.check_file(run_dir, name, written=True)
        for name in HOLDS:
            run_directory.check_directory(run_dir, name)
        for name in run_directory.names(run_dir, "logs"):
            run_directory.check_file(run_dir, f"logs/{name}", written=True)
