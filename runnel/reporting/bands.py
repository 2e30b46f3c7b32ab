"""Bands of learning curves: what several members of one directory reached, as a line and its interval."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.errors import UserError
from runnel.recording import members_file, stack_logs, stacks
from runnel.recording.members_file import Member
from runnel.recording.population_file import is_population
from runnel.reporting.curves import RETURN, Curve, NoCurve, curve_of, read_curve
from runnel.reporting.statistics import interquartile_intervals, interquartile_means

GRID: Final = 200
"""Points of a band."""

FEW: Final = 4
"""Of fewer members a band shows the lowest and the highest: an interval of so few says little."""

MOST_NAMED: Final = 6
"""How many members a line names."""


class Band(NamedTuple):
    """Members that share their settings."""

    line: Curve  # the interquartile mean, [N]
    low: np.ndarray  # [N]
    high: np.ndarray  # [N]


def read_bands(directory: Path | str, metric: str, note: Callable[[str], None] = lambda text: None) -> list[Band]:
    """The bands of a directory of members, one for each of their settings.

    Members without a curve are left out, which `note` is called with; where no member has one, `NoCurve` is raised.
    """
    found: list[Band] = []
    missing: list[str] = []
    reason: NoCurve | None = None
    listed = members_file.read(directory)
    stacked = _stacked_points(Path(directory), listed, metric)
    for members in by_settings(listed):
        curves = []
        for member in members:
            path = Path(directory) / member.directory
            try:
                if stacked is None:
                    curves.append(read_curve(path, metric))
                else:
                    curves.append(curve_of(path, stacked.get(member.directory), metric))
            except NoCurve as error:
                missing.append(member.directory)
                reason = reason or error
        if curves:
            found.append(band(Path(directory), curves, population=is_population(directory)))
    if not found:
        raise UserError(f"no member of {directory} has a curve: {reason}", keywords=reason.keywords if reason else ())
    if missing:
        note(f"{directory}: left out, without a curve yet: {_some(missing)}")
    return found


def _stacked_points(
    directory: Path, members: Sequence[Member], metric: str
) -> dict[str, tuple[np.ndarray, np.ndarray]] | None:
    """By directory: the curves of members that are recorded together; None where each has a record of its own."""
    listed = stacks.read(directory, len(members))
    if not listed:
        return None
    logs = {RETURN: stack_logs.RETURNS, "eval/return": stack_logs.EVALUATIONS}
    if metric not in logs:
        raise UserError(
            f"metric={metric}: {directory} keeps {' and '.join(logs)} of its members, expected one of these",
            keywords=("metric",),
        )
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for stack in range(len(listed)):
        found |= stack_logs.read_curves(directory / stacks.name_of(stack), logs[metric])
    return {members[number].directory: points for number, points in found.items() if 0 <= number < len(members)}


def by_settings(members: Sequence[Member]) -> list[list[Member]]:
    """Members that differ in their seeds alone together, in the order of the first of each."""
    found: dict[str, list[Member]] = {}
    for member in members:
        found.setdefault(json.dumps(member.settings, sort_keys=True), []).append(member)
    return list(found.values())


def band(directory: Path, curves: Sequence[Curve], population: bool = False) -> Band:
    """Curves at common environment steps, from where all have begun to where the first of them ends.

    `population`: their settings changed while they trained, and are those of none of them.
    """
    sorted_curves = [_in_order(curve) for curve in curves]
    end = min(env_steps[-1] for env_steps, _ in sorted_curves)
    start = min(end, max(env_steps[0] for env_steps, _ in sorted_curves))
    grid = np.linspace(start, end, GRID) if start < end else np.array([end])
    values = np.stack([np.interp(grid, *curve) for curve in sorted_curves], axis=1)  # [N, members]
    low, high = interquartile_intervals(values) if len(curves) >= FEW else (values.min(1), values.max(1))
    first = curves[0]
    seeds = f"{len(curves)} seed" + ("" if len(curves) == 1 else "s")
    if population:
        seeds = f"population of {len(curves)}"
    alike = {name for name in first.settings if all(each.settings.get(name) == first.settings[name] for each in curves)}
    settings = {name: value for name, value in first.settings.items() if name in alike}
    line = Curve(directory, first.names, settings, seeds, grid, interquartile_means(values))
    return Band(line, low, high)


def _in_order(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(curve.env_steps, kind="stable")
    return curve.env_steps[order], curve.values[order]


def _some(names: Sequence[Any]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
