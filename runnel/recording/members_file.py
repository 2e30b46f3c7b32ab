"""`members.json`: the runs in a directory of several, each in its own subdirectory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from runnel import __version__
from runnel.config.run_config import FORMAT, MOST_MEMBERS, check_format
from runnel.errors import UserError
from runnel.recording import run_directory
from runnel.recording.files import read_json, read_wanted, write_json_atomically

FILE: Final = "members.json"


class Member(NamedTuple):
    """One of several runs."""

    directory: str  # inside the directory of all
    seed: int
    settings: dict[str, Any]  # of its algorithm, where members differ in them


def name_of(index: int, members: int) -> str:
    """`member-03`, as wide as the last one's."""
    return f"member-{index:0{len(str(members - 1))}d}"


def holds_members(directory: Path | str) -> bool:
    """Whether a directory is one of several runs."""
    return Path(directory).is_dir() and run_directory.exists(Path(directory), FILE)


def write(directory: Path, members: list[Member]) -> None:
    listed = [member._asdict() for member in members]
    write_json_atomically(directory / FILE, {"runnel_version": __version__, "format": FORMAT, "members": listed})


def read(directory: Path | str) -> list[Member]:
    """The members of a directory, checked: the file may have been edited."""
    path = Path(directory) / FILE
    found = read_wanted(directory, FILE, f"{directory} holds no members: there is no {FILE} in it")
    check_format(path, found)
    listed = found.get("members") if isinstance(found, dict) else None
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_MEMBERS or not all(map(_well_formed, listed)):
        raise UserError(f"{path} does not list members as runs write them; was the file edited?")
    members = [Member(each["directory"], each["seed"], each["settings"]) for each in listed]
    if len({member.directory for member in members}) < len(members):
        raise UserError(f"{path} names one directory twice; was the file edited?")
    for member in members:
        if (Path(directory) / member.directory).is_symlink():
            raise UserError(f"{Path(directory) / member.directory} is a link, expected a directory")
    return members


def read_result(directory: Path | str) -> dict[str, Any]:
    """The result.json of all members; empty if it cannot be read, or was written by something else."""
    try:
        found = read_json(directory, "result.json")
    except (OSError, ValueError, RecursionError):
        return {}
    numbers = ("members", "finished", "env_steps", "wall_seconds")
    proper = isinstance(found, dict) and all(type(found.get(name)) in (int, float) for name in numbers)
    return found if proper and isinstance(found.get("runs"), list) else {}


def refuse_several(directory: Path | str) -> None:
    """Refuses a directory of several runs where one run is expected."""
    if holds_members(directory):
        members = read(directory)
        raise UserError(
            f"{directory} holds {len(members)} runs; name one of them: {Path(directory) / members[0].directory} to "
            f"{members[-1].directory}"
        )


def _well_formed(member: Any) -> bool:
    return (
        isinstance(member, dict)
        and set(member) == set(Member._fields)
        and isinstance(member["directory"], str)
        and re.fullmatch(r"member-[0-9]{1,4}", member["directory"]) is not None
        and type(member["seed"]) is int
        and isinstance(member["settings"], dict)
    )
