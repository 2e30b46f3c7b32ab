"""Which of several directories of members did better: the probability of improvement for each pair."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.recording import members_file
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.files import read_json
from runnel.recording.metrics import records
from runnel.reporting.bands import by_settings
from runnel.reporting.curves import MOST, read_names
from runnel.reporting.statistics import probability_of_improvement

MOST_COMPARED: Final = 8
"""Of more groups of members there are too many pairs to read."""


class Scores(NamedTuple):
    """The final returns of members that share their settings."""

    name: str
    environment: str
    values: np.ndarray  # [members that have one]
    members: int
    env_steps: int = 0  # of the member that has trained longest; 0 where that is not known


def comparisons(run_dirs: Sequence[Path | str]) -> list[str]:
    """A line for each pair of groups of members among run directories, of their final returns.

    A group is a directory of members, or those of its members that share their settings.
    """
    groups = [group for run_dir in run_dirs if members_file.holds_members(run_dir) for group in read_scores(run_dir)]
    if len(groups) < 2:
        return []
    if len(groups) > MOST_COMPARED:
        return [f"{len(groups)} groups of members: found more than {MOST_COMPARED}, which are not compared in pairs"]
    lines = [_lacking(group) for group in groups if len(group.values) < group.members]
    lines.append("probability of improvement of the final return:")
    return lines + [_compared(first, second) for first, second in itertools.combinations(groups, 2)]


def read_scores(directory: Path | str) -> list[Scores]:
    """The final returns of a directory's members, by their settings."""
    directory = Path(directory)
    stored, steps = _stored_returns(directory)
    groups = by_settings(members_file.read(directory))
    found = []
    for members in groups:
        names = [member.directory for member in members]
        each = [stored[name] if name in stored else _last_return(directory / name) for name in names]
        values = np.array([value for value in each if value is not None], np.float64)
        settings = ", ".join(f"{name}={value}" for name, value in members[0].settings.items())
        name = f"{directory} ({settings or 'no settings'})" if len(groups) > 1 else str(directory)
        taken = max((steps.get(name, 0) for name in names), default=0)
        found.append(Scores(name, read_names(directory / names[0])[1], values, len(members), taken))
    return found


def _stored_returns(directory: Path) -> tuple[dict[str, float | None], dict[str, int]]:
    """By member: the returns and the steps in the directory's result.json, which may be missing, damaged or edited."""
    try:
        result: Any = read_json(directory, "result.json")
    except (OSError, ValueError, RecursionError):
        return {}, {}
    runs = result.get("runs") if isinstance(result, Mapping) else None
    listed = [run for run in runs if isinstance(run, Mapping)] if isinstance(runs, list) else []
    steps = {str(run.get("directory")): run.get("env_steps") for run in listed}
    returns = {str(run.get("directory")): _number(run.get("return")) for run in listed}
    return returns, {name: taken for name, taken in steps.items() if type(taken) is int and 0 <= taken < 2**62}


def _last_return(run_dir: Path) -> float | None:
    """Of a member that trains still: the return of its newest evaluation, or that of its newest record."""
    evaluated = [found["mean_return"] for found in read_evaluations(run_dir)]
    found = evaluated or [record.get("mean_return") for record in records(run_dir)]
    numbers = [number for value in found if (number := _number(value)) is not None]
    return numbers[-1] if numbers else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) <= MOST else None


def _lacking(group: Scores) -> str:
    return f"{group.name}: {group.members - len(group.values)} of {group.members} members have no return: left out"


def _compared(first: Scores, second: Scores) -> str:
    pair = f"{second.name} over {first.name}"
    if first.env_steps != second.env_steps and first.env_steps and second.env_steps:
        pair += f", after {second.env_steps:,} and {first.env_steps:,} steps"
    if first.environment != second.environment:
        return f"{pair}: not compared, environments differ"
    if not len(first.values) or not len(second.values):
        return f"{pair}: not compared, no member has a return"
    found = probability_of_improvement(first.values, second.values)
    if min(len(first.values), len(second.values)) < 2:
        return f"{pair}: {found.probability:.2f} (one member alone has no interval)"
    return f"{pair}: {found.probability:.2f} ({found.low:.2f} to {found.high:.2f}, 95%)"
