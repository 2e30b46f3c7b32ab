"""Files that are whole or not there, and failures to write them told in words."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runnel.errors import UserError


def clean(value: Any) -> Any:
    """A value as JSON has it: plain numbers, and None for what is not finite."""
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
    """Writes a JSON file that is there whole or not at all."""
    text = json.dumps(clean(value), indent=2, allow_nan=False) + "\n"
    write_atomically(Path(path), text.encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces a file by another in one step that survives a loss of power."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with told_plainly(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


class Appended:
    """A file that grows by whole pieces: what does not fit is taken back, so that nothing in it is ever cut short."""

    def __init__(self, path: Path):
        self._file = path.open("ab", buffering=0)

    def write(self, piece: bytes) -> None:
        size = os.fstat(self._file.fileno()).st_size
        try:
            while piece:
                piece = piece[self._file.write(piece) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), size)
            raise

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def told_plainly(path: Path, what: str = "write") -> Iterator[None]:
    """A full disk or a missing right is the user's to mend."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {what} {path}: {error.strerror or error}") from error


def one_line(error: BaseException) -> str:
    """Why something failed, in words that fit a line."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENOMEM):  # libraries wrap these
        if os.strerror(number).lower() in str(error).lower():
            text = os.strerror(number)
    line = str(text).splitlines()[0].rstrip(".")
    return line if len(line) <= 200 else line[:197] + "..."
