"""Extracts members of a stack as single runs: a member's rows of the stack's checkpoint become its own.

It is separate from `members_file.py` and `stacks.py` because checkpoints need JAX, and listing members does not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from runnel.errors import UserError
from runnel.recording import members_file, run_directory, stacks
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.checkpoint_directory import REPLAY, STATE, Unreadable
from runnel.recording.stacks import NAME, StackCounters


def directory_of(directory: Path | str, member: int) -> Path:
    """The directory of one member, by its number; a member of a stack gets the stack's newest checkpoint."""
    members = members_file.read(directory)
    if not 0 <= member < len(members):
        raise UserError(
            f"member={member}: found {len(members)} members in {directory}, expected a number from 0 to "
            f"{len(members) - 1}",
            keywords=("member",),
        )
    found = Path(directory) / members[member].directory
    if stacks.read(directory, len(members)):
        _unstack(Path(directory), member, found)
    return found


def take_out(directory: Path | str) -> None:
    """Gives a member of a stack, named by its path, the newest checkpoint of that; does nothing for any other run."""
    directory = Path(directory).absolute()
    if not members_file.holds_members(directory.parent) or not run_directory.exists(directory.parent, stacks.FILE):
        return
    names = [member.directory for member in members_file.read(directory.parent)]
    if directory.name in names:
        directory_of(directory.parent, names.index(directory.name))


def _unstack(directory: Path, member: int, member_dir: Path) -> None:
    """Gives a member the newest checkpoint of its stack, unless it has one that is as new."""
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
