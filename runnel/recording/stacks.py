"""`stacks.json`: the division of very many members into stacks.

A stack is a directory `stack-K` with one checkpoint of many members: arrays with a row for each, where a single run has
one value, and plain numbers that all of them share. `member_checkpoints.py` extracts one of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from runnel.errors import UserError
from runnel.recording import run_directory
from runnel.recording.files import read_json, write_json_atomically

FILE: Final = "stacks.json"
NAME: Final = re.compile(r"stack-[0-9]{1,4}")


def name_of(stack: int) -> str:
    return f"stack-{stack}"


def write(directory: Path, stacks: Sequence[Sequence[int]]) -> None:
    """`stacks`: the numbers of the members of each."""
    write_json_atomically(directory / FILE, {"stacks": [list(members) for members in stacks]})


def read(directory: Path | str, members: int) -> list[list[int]]:
    """The members of each stack; none where every member has checkpoints of its own. The file may have been edited."""
    if not run_directory.exists(Path(directory), FILE):
        return []
    path = Path(directory) / FILE
    try:
        found = read_json(directory, FILE)
        stacks = found["stacks"]
        listed = [number for stack in stacks for number in stack]
        proper = all(stacks) and sorted(listed) == list(range(members)) and all(type(n) is int for n in listed)
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not proper:
        raise UserError(f"{path} does not name each of {members} members once; was the file edited?")
    return stacks


class StackCounters(NamedTuple):
    """The members and counters in a stack's checkpoint."""

    members: list[int]  # the number of the member in each row
    rows: list[dict[str, Any]]  # its counters, as in the checkpoint of a single run
    ended: list[int]  # members that ended before the others, and have a checkpoint of their own

    @classmethod
    def of(cls, counters: Mapping[str, Any]) -> StackCounters | None:
        """Parses counters; None if no stack can have written them."""
        members, rows = counters.get("members"), counters.get("rows")
        if not isinstance(members, list) or not isinstance(rows, list) or len(members) != len(rows) or not rows:
            return None
        ended = counters.get("ended")
        if not isinstance(ended, list) or not all(type(number) is int for number in [*members, *ended]):
            return None
        proper = len(set(members)) == len(members) and all(isinstance(row, dict) for row in rows)
        return cls(members, rows, ended) if proper else None
