"""`population.json` and `lineage.jsonl`: the settings of a population, and its copies of members.

A decision is a line of lineage.jsonl before any member is changed. `applied` in population.json counts the decisions
that all members follow, so that one which was cut short is found and applied again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from runnel import __version__
from runnel.config.run_config import FORMAT, MOST_SEED, MOST_STEPS, check_format
from runnel.errors import UserError
from runnel.recording import run_directory
from runnel.recording.files import as_user_error, clean, read_wanted, write_atomically, write_json_atomically

FILE: Final = "population.json"
LINEAGE: Final = "lineage.jsonl"
MOST_BYTES: Final = 1 << 30


@dataclass(frozen=True)
class PopulationConfig:
    """The settings of a population."""

    steps: int  # of each member, in the end
    seed: int  # of decisions
    rule: dict[str, Any]  # its class and fields
    settings: list[dict[str, float]]  # [M] those that the rule chooses, as members began with them
    applied: int = 0  # how many decisions all members follow
    code: dict[str, Any] | None = None  # the user's code that the rule names, signed


class Round(NamedTuple):
    """One decision: all lists have an entry for each member."""

    round: int  # from 1 on
    env_steps: int  # after which it was made
    scores: list[float | None]  # None: it has failed, or has no score
    failed: list[int]  # the members that have failed
    parents: list[int]  # whose learner state each continues from
    settings: list[dict[str, float]]  # that each continues with

    @property
    def copied(self) -> list[tuple[int, int]]:
        """Members that became a copy, and their parents."""
        return [(member, parent) for member, parent in enumerate(self.parents) if member != parent]


def is_population(directory: Path | str) -> bool:
    return Path(directory).is_dir() and run_directory.exists(Path(directory), FILE)


def write(directory: Path, config: PopulationConfig) -> None:
    head = {"runnel_version": __version__, "format": FORMAT}
    write_json_atomically(directory / FILE, {**head, **asdict(config)})


def read(directory: Path | str, members: int) -> PopulationConfig:
    """Reads and checks the settings of a population: the file may have been edited."""
    path = Path(directory) / FILE
    found = read_wanted(directory, FILE)
    check_format(path, found)
    found = found if isinstance(found, dict) else {}
    problem = _problem(found, members)
    if problem:
        raise UserError(f"{path} is not as populations write it: {problem}; was the file edited?")
    names = [field.name for field in fields(PopulationConfig)]
    return PopulationConfig(**{name: value for name, value in found.items() if name in names})


def _problem(found: dict[str, Any], members: int) -> str:
    for name, least, most in (("steps", 1, MOST_STEPS), ("seed", 0, MOST_SEED), ("applied", 0, MOST_STEPS)):
        value = found.get(name)
        if type(value) is not int or not least <= value <= most:
            return f"found {name} {str(value)[:40]!r}, expected a whole number from {least} to {most}"
    if not isinstance(found.get("rule"), dict):
        return "found no rule"
    if not isinstance(found.get("code"), dict | None):
        return "found no signature in code"
    return "" if _are_settings(found.get("settings"), members) else f"found no settings of {members} members"


def read_lineage(directory: Path | str, members: int) -> list[Round]:
    """The decisions of a population in order, checked."""
    path = Path(directory) / LINEAGE
    if not run_directory.exists(Path(directory), LINEAGE):
        return []
    rounds: list[Round] = []
    with as_user_error(path, "read"):
        for line in run_directory.lines(directory, LINEAGE, MOST_BYTES):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict) or not _is_round(found, len(rounds) + 1, members):
                raise UserError(f"{path}, line {len(rounds) + 1}, is not as populations write it; was the file edited?")
            rounds.append(Round(**{name: found[name] for name in Round._fields}))
    return rounds


def write_lineage(directory: Path, rounds: Sequence[Round]) -> None:
    lines = "".join(json.dumps(clean(each._asdict()), allow_nan=False) + "\n" for each in rounds)
    write_atomically(directory / LINEAGE, lines.encode())


def settings_now(config: PopulationConfig, rounds: Sequence[Round]) -> list[dict[str, float]]:
    """[M] the settings that a rule has chosen last."""
    return [dict(each) for each in (rounds[-1].settings if rounds else config.settings)]


def with_applied(config: PopulationConfig, applied: int) -> PopulationConfig:
    return replace(config, applied=applied)


def _is_round(found: dict[str, Any], number: int, members: int) -> bool:
    numbers = [found.get("round"), found.get("env_steps")]
    if set(found) != set(Round._fields) or any(type(n) is not int or not 0 <= n <= MOST_STEPS for n in numbers):
        return False
    parents, scores, failed = found["parents"], found["scores"], found["failed"]
    return (
        found["round"] == number
        and isinstance(scores, list) and len(scores) == members and all(s is None or _is_number(s) for s in scores)
        and isinstance(failed, list) and all(_is_member(m, members) for m in failed)
        and isinstance(parents, list) and len(parents) == members and all(_is_member(m, members) for m in parents)
        and all(parents[parent] == parent for parent in parents)
        and _are_settings(found["settings"], members)
    )  # fmt: skip


def _are_settings(value: Any, members: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == members
        and all(isinstance(one, dict) and all(map(_is_number, one.values())) for one in value)
    )


def _is_member(value: Any, members: int) -> bool:
    return type(value) is int and 0 <= value < members


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # JSON has longer integers
