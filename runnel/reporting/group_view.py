"""What a view shows of a directory of several runs, and of the policies that play against each other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from runnel.errors import UserError, printable
from runnel.recording import (
    match_log,
    members_file,
    population_file,
    run_directory,
    stack_logs,
    stacks,
    sweep_file,
)  # fmt: skip
from runnel.recording.members_file import Member
from runnel.recording.metrics import FILE as METRICS
from runnel.reporting.bands import by_settings
from runnel.reporting.payoff_report import evenly_spaced, read_payoffs
from runnel.reporting.series import five_digits, glance, spread
from runnel.reporting.statistics import interquartile_means

MATCHES: Final = match_log.FILE
MOST_LOG_BYTES: Final = 1 << 26
"""Longer records, of evaluations, matches or stacked members, are not shown."""

MOST_MEMBERS: Final = 1000
MOST_BANDS: Final = 12
MOST_IN_BAND: Final = 64
"""Curves of more members of one kind are not read: the band is of so many of them."""

MOST_ROUNDS: Final = 200
MOST_PLAYERS: Final = 16
GRID: Final = 120

Add = Callable[[str, Sequence[str] | None, Callable[[], Any], Any], Any]


def kind(directory: Path) -> str:
    """What a directory of members is: `members`, `population` or `sweep`."""
    if sweep_file.holds_sweep(directory):
        return "sweep"
    return "population" if population_file.is_population(directory) else "members"


def add(add: Add, directory: Path, result: Mapping[str, Any]) -> None:
    """Adds the parts of a directory of several runs to a view."""
    listed: list[Member] = []

    def read() -> list[dict[str, Any]]:
        listed.extend(members_file.read(directory))
        return members(listed, result)

    add("members", None, read, [])
    if not listed:
        add("bands", None, list, [])
        add("lineage", None, lambda: None, None)
        return
    add("bands", _curves(directory, listed), lambda: bands(directory, listed), [])
    add("lineage", [population_file.FILE, population_file.LINEAGE], lambda: lineage(directory, len(listed)), None)


def _curves(directory: Path, listed: Sequence[Member]) -> list[str]:
    """The files that hold the curves of members."""
    count = 0
    with contextlib.suppress(UserError):  # `bands` says why it cannot be read
        count = len(stacks.read(directory, len(listed)))
    recorded = [f"{stacks.name_of(k)}/{stack_logs.RETURNS}" for k in range(count)]
    return recorded or [f"{member.directory}/{METRICS}" for member in listed[: MOST_BANDS * MOST_IN_BAND]]


def members(listed: Sequence[Member], result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each member with what the result of all says of it."""
    runs = result.get("runs")
    ended = {run.get("directory"): run for run in runs if isinstance(run, dict)} if isinstance(runs, list) else {}
    found = []
    for member in listed[:MOST_MEMBERS]:
        run = ended.get(member.directory, {})
        settings = {printable(str(name))[:80]: printable(str(value))[:80] for name, value in member.settings.items()}
        names = ("status", "env_steps", "return", "reason")
        found.append({
            "directory": member.directory, "seed": member.seed, "settings": settings,
            **{name: run.get(name) for name in names},
        })  # fmt: skip
    return found


def bands(directory: Path, listed: Sequence[Member]) -> list[dict[str, Any]]:
    """The interquartile mean and the quartiles of members that differ in their seeds alone."""
    stacked = _stacked(directory, listed)
    found = []
    for group in by_settings(listed)[:MOST_BANDS]:
        curves = [_points(directory, each, stacked) for each in group[:MOST_IN_BAND]]
        curves = [curve for curve in curves if len(curve[0])]
        if not curves:
            continue
        settings = ", ".join(f"{name}={value}" for name, value in group[0].settings.items())
        found.append({"name": printable(settings)[:200] or "all members", "members": len(curves), **band(curves)})
    return found


def band(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """Curves at common steps, as far as all of them go."""
    start, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    grid = np.linspace(min(start, end), end, GRID) if start < end else np.array([end])
    values = np.stack([np.interp(grid, steps, values) for steps, values in curves], axis=1)
    low, high = np.quantile(values, [0.25, 0.75], axis=1)
    lines = {"values": interquartile_means(values), "low": low, "high": high}
    return {"steps": grid.tolist(), **{name: [five_digits(x) for x in line] for name, line in lines.items()}}


def _points(
    directory: Path, member: Member, stacked: Mapping[str, tuple[np.ndarray, np.ndarray]] | None
) -> tuple[np.ndarray, np.ndarray]:
    if stacked is not None:
        steps, values = stacked.get(member.directory, (np.zeros(0), np.zeros(0)))
    else:
        found = np.array(glance(directory, f"{member.directory}/{METRICS}").returns or np.zeros((0, 2)), np.float64)
        steps, values = found[:, 0], found[:, 1]
    order = np.argsort(steps, kind="stable")
    return steps[order], values[order]


def _stacked(directory: Path, listed: Sequence[Member]) -> dict[str, tuple[np.ndarray, np.ndarray]] | None:
    """By directory: the curves of members that are recorded together."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    recorded = stacks.read(directory, len(listed))
    for stack in range(len(recorded)):
        with run_directory.open_to_read(directory, f"{stacks.name_of(stack)}/{stack_logs.RETURNS}", MOST_LOG_BYTES):
            pass
        read = stack_logs.read_curves(directory / stacks.name_of(stack), stack_logs.RETURNS)
        found |= {listed[number].directory: points for number, points in read.items() if 0 <= number < len(listed)}
    return found if recorded else None


def lineage(directory: Path, count: int) -> dict[str, Any] | None:
    """The decisions of a population."""
    if not population_file.is_population(directory):
        return None
    config = population_file.read(directory, count)
    rounds = population_file.read_lineage(directory, count)
    chosen = [rounds[i] for i in spread(len(rounds), MOST_ROUNDS)]
    return {
        "steps": config.steps, "first": config.settings,
        "rounds": [
            {"round": each.round, "env_steps": each.env_steps, "parents": list(each.parents),
             "scores": list(each.scores), "settings": list(each.settings)}
            for each in chosen
        ],
    }  # fmt: skip


def payoffs(run_dir: Path) -> list[dict[str, Any]]:
    """Scores of policies against each other, by role, with ratings."""
    with run_directory.open_to_read(run_dir, MATCHES, MOST_LOG_BYTES):
        pass
    if not match_log.payoffs_of(match_log.read_matches(run_dir)).results:
        return []
    found = []
    for report in read_payoffs(run_dir):
        players, opponents = (evenly_spaced(keys, MOST_PLAYERS) for keys in (report.players, report.opponents))
        scores = report.scores(players, opponents)
        ratings = [report.ratings[key].rating for key in players]
        found.append({
            "role": printable(report.role), "players": [printable(key)[:80] for key in players],
            "opponents": [printable(key)[:80] for key in opponents],
            "scores": [[five_digits(float(score)) for score in row] for row in scores],
            "games": report.games(players, opponents),
            "ratings": [None if math.isnan(rating) else round(rating, 1) for rating in ratings],
        })  # fmt: skip
    return found
