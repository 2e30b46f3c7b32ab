"""The commands that train the same as a run once more, in a directory of its own."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.errors import printable

CUT: Final = "..."
"""The end of a text that a view has cut."""


OF_SEVERAL: Final = ("--seeds", "--population")
"""The flags of `runnel train` for several runs."""


def again(run_dir: Path) -> str:
    """The command that trains with every setting as recorded."""
    return f"runnel train --config {shlex.quote(printable(str(run_dir / 'config.json')))}"


def first_command(starts: Sequence[Mapping[str, Any]], steps: Any, several: bool = False) -> str:
    """The command that a run, or `several` together, were begun with; nothing where a program began it, where it is
    not there as a whole, or where it trains others too.

    Without `--run-dir`, which would name a directory that exists, and for as many `steps` as the run has now: it may
    have been resumed for more.
    """
    command = starts[0].get("command") if starts else None
    if not isinstance(command, str):
        return ""
    words: list[str] = []
    with contextlib.suppress(ValueError):  # no words that a shell reads
        words = _without(shlex.split(command), "--run-dir")
    if words[:1] != ["runnel"] or words[1:2] not in (["train"], ["sweep"]) or words[-1] == CUT:
        return ""
    if several != (words[1] == "sweep" or any(word.split("=")[0] in OF_SEVERAL for word in words)):
        return ""
    if len(starts) > 1 and type(steps) is int:
        words = [*_without(words, "--steps"), "--steps", str(steps)]
    return shlex.join(words)


def _without(words: Sequence[str], flag: str) -> list[str]:
    """Words without a flag and its value."""
    kept, is_value = [], False
    for word in words:
        if not is_value and word != flag and not word.startswith(f"{flag}="):
            kept.append(word)
        is_value = not is_value and word == flag
    return kept
