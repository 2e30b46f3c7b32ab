"""`stacks.json`: which of very many members share a stack, and how one of them is taken out of its stack.

A stack is a directory `stack-K` with one checkpoint of many members: arrays with a row for each, where a single run has
one value, and plain numbers that all of them share. `unstack` writes a member's row into its own directory as a
checkpoint like that of any run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from runnel.errors import UserError
from runnel.recording import run_directory
from runnel.recording.checkpoint_directory import REPLAY, STATE, Unreadable
from runnel.recording.files import read_json, write_json_atomically

if TYPE_CHECKING:
    from runnel.recording.checkpoint import Checkpoints

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
    """What a stack's checkpoint says of its members."""

    members: list[int]  # the number of the member in each row
    rows: list[dict[str, Any]]  # its counters, as in the checkpoint of a single run
    ended: list[int]  # members that ended before the others, and have a checkpoint of their own

    @classmethod
    def of(cls, counters: Mapping[str, Any]) -> StackCounters | None:
        """None where no stack has written them."""
        members, rows = counters.get("members"), counters.get("rows")
        if not isinstance(members, list) or not isinstance(rows, list) or len(members) != len(rows) or not rows:
            return None
        ended = counters.get("ended")
        if not isinstance(ended, list) or not all(type(number) is int for number in [*members, *ended]):
            return None
        proper = len(set(members)) == len(members) and all(isinstance(row, dict) for row in rows)
        return cls(members, rows, ended) if proper else None


def unstack(directory: Path, member: int, member_dir: Path) -> None:
    """Gives a member the newest checkpoint of its stack, unless it has one that is as new."""
    from runnel.recording.checkpoint import Checkpoints  # which imports JAX: those who list members need none

    for path in sorted(directory.iterdir()):
        if not NAME.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            continue
        checkpoints = Checkpoints(path)
        newest = checkpoints.newest()
        if newest is None:
            continue
        try:
            counters = StackCounters.of(checkpoints.counters(newest))
            if counters is not None and member in set(counters.members) - set(counters.ended):
                return _take_out(checkpoints, newest, counters, member, Checkpoints(member_dir))
        except Unreadable as problem:
            raise UserError(f"{newest} cannot be read: {problem}") from None


def _take_out(checkpoints: Checkpoints, newest: Path, counters: StackCounters, member: int, own: Checkpoints) -> None:
    before = own.newest()
    if before is not None and int(before.name) >= int(newest.name):
        return
    row = counters.members.index(member)
    state = {name: _row(array, row) for name, array in checkpoints.read(newest, STATE).items()}
    replay = checkpoints.read(newest, REPLAY) if checkpoints.has_replay(newest) else {}
    replay = {name: _row(array, row) for name, array in replay.items()}
    own.save_named(int(newest.name), state, replay, counters.rows[row])


def _row(array: np.ndarray, row: int) -> np.ndarray:
    if array.ndim and row >= len(array):
        raise Unreadable(f"it has {len(array)} rows, expected one for each of its members")
    return np.array(array[row]) if array.ndim else array
