"""Curves of several runs by any metric: bands over those that differ in their seeds alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from runnel.errors import UserError, printable
from runnel.recording import evaluation_log, run_directory, stack_logs, stacks
from runnel.recording.members_file import Member
from runnel.recording.metrics import FILE as METRICS
from runnel.reporting.bands import by_settings
from runnel.reporting.curves import EVALUATION, RETURN
from runnel.reporting.series import LONGEST_NAME, MOST_NAMES, five_digits, glance, number
from runnel.reporting.statistics import flat, interquartile_means

MOST_LOG_BYTES: Final = 1 << 26
"""Longer records, of evaluations, matches or stacked members, are not shown."""

MOST_BANDS: Final = 12
MOST_IN_BAND: Final = 64
"""Curves of more members of one kind are not read: the band is of so many of them."""

GRID: Final = 120
COARSEST: Final = 24
"""OrderedPoints of a band: so many of a few metrics, and no fewer than that of many."""

MOST_NUMBERS: Final = 24_000
"""Of the bands of all metrics together, so that a report stays below 500 KB; the last metrics are left out."""

MOST_CLOCKS: Final = 16
"""Members whose times are read."""

NOT_DRAWN: Final = frozenset({"env_steps", "iterations", "updates", "episodes", "wall_seconds", "curve"})
"""What only counts up is no metric of a curve."""

OrderedPoints = tuple[np.ndarray, np.ndarray]
"""Environment steps, in order, and values."""


def files(directory: Path, listed: Sequence[Member]) -> list[str]:
    """The files that hold the curves of members."""
    count = 0
    with contextlib.suppress(UserError):  # reading them says why it cannot be
        count = len(stacks.read(directory, len(listed)))
    if count:
        return [f"{stacks.name_of(k)}/{name}" for k in range(count) for name in _OF_STACKS.values()]
    inside = [member.directory for member in listed[: MOST_BANDS * MOST_IN_BAND]]
    return [f"{member}/{name}" for member in inside for name in (METRICS, evaluation_log.FILE)]


def bands(directory: Path, listed: Sequence[Member]) -> dict[str, list[dict[str, Any]]]:
    """By metric, the return first: a band of each of the settings that members have."""
    stacked = _stacked(directory, listed)
    groups = by_settings(listed)[:MOST_BANDS]
    read = [[_of_member(directory, each, stacked) for each in group[:MOST_IN_BAND]] for group in groups]
    names = _in_order(metric for curves in read for found in curves for metric in found)
    kept = names[: MOST_NUMBERS // (4 * COARSEST * len(groups))]
    grid = min(GRID, MOST_NUMBERS // (4 * len(groups) * max(1, len(kept))))
    found: dict[str, list[dict[str, Any]]] = {}
    for metric in kept:
        for place, (group, curves) in enumerate(zip(groups, read, strict=True)):
            points = [curve[metric] for curve in curves if metric in curve]
            if points:
                name = called(group[0])
                counts = {"members": len(points), "colour": place}
                found.setdefault(printable(metric), []).append({"name": name, **counts, **band(points, grid)})
    return found


def clock(directory: Path, listed: Sequence[Member]) -> dict[str, list[float | None]] | None:
    """After how many seconds members have taken how many steps: the median of some; None where they do not say."""
    recorded = stacks.read(directory, len(listed))
    inside = [stacks.name_of(k) for k in range(len(recorded))] or [member.directory for member in listed]
    found = []
    for name in inside[:MOST_CLOCKS]:
        rows = [
            (number(r.get("env_steps")), number(r.get("wall_seconds")))
            for r in glance(directory, f"{name}/{METRICS}").records
        ]
        curve = _curves({"wall_seconds": rows})
        found += curve.values()
    if not found:
        return None
    grid = np.unique(np.concatenate([steps for steps, _ in found]))[:: max(1, sum(len(s) for s, _ in found) // GRID)]
    times = [np.interp(grid, steps, seconds, left=np.nan, right=np.nan) for steps, seconds in found]
    middle = np.nanmedian(np.stack(times), axis=0)
    return {"steps": grid.tolist(), "seconds": list(map(five_digits, middle.tolist()))}


def compared(
    directory: Path, listed: Sequence[Member], metric: str
) -> tuple[list[tuple[dict[str, Any], dict[str, str]]], set[str]]:
    """By a metric: a band of each of the settings that members have, without points where none has the metric, and
    these settings; and the names of all their metrics."""
    stacked = _stacked(directory, listed)
    found: list[tuple[dict[str, Any], dict[str, str]]] = []
    names: set[str] = set()
    for group in by_settings(listed)[:MOST_BANDS]:
        curves = [_of_member(directory, each, stacked) for each in group[:MOST_IN_BAND]]
        names |= {printable(name) for curve in curves for name in curve}
        points = [own for curve in curves for name, own in curve.items() if printable(name) == metric]
        settings = {printable(str(name))[:80]: printable(str(v))[:80] for name, v in group[0].settings.items()}
        found.append(({"name": called(group[0]), **(band(points, GRID) if points else {})}, settings))
    return found, names


def called(member: Member) -> str:
    """The settings in which a member differs from others of its directory; empty where it differs in none."""
    return printable(", ".join(f"{name}={value}" for name, value in member.settings.items()))[:200]


def band(curves: Sequence[OrderedPoints], grid: int) -> dict[str, Any]:
    """Curves at common steps, as far as all of them go."""
    start, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    places = np.unique(np.rint(np.linspace(min(start, end), end, grid)))
    values = np.stack([np.interp(places, steps, values) for steps, values in curves], axis=1)
    low, high = np.quantile(values, [0.25, 0.75], axis=1)
    lines = {"values": interquartile_means(values), "low": low, "high": high}
    return {"steps": places.tolist(), **{name: [five_digits(x) for x in line] for name, line in lines.items()}}


def of_evaluations(directory: Path, name: str = "") -> dict[str, OrderedPoints]:
    """By metric: the evaluations of a run, or of one in the directory."""
    try:
        with run_directory.open_to_read(directory, f"{name}/{evaluation_log.FILE}".lstrip("/"), MOST_LOG_BYTES):
            pass
    except FileNotFoundError:
        return {}
    points: dict[str, list[tuple[Any, Any]]] = {}
    for found in evaluation_log.read_evaluations(directory / name):
        for metric, value in flat(found).items():
            points.setdefault(metric, []).append((found["env_steps"], value))
    return _curves(points)


def _of_member(
    directory: Path, member: Member, stacked: Mapping[str, dict[str, OrderedPoints]] | None
) -> dict[str, OrderedPoints]:
    """By metric: some points of a member, evenly spread over its record."""
    if stacked is not None:
        return stacked.get(member.directory, {})
    seen = glance(directory, f"{member.directory}/{METRICS}")
    points: dict[str, list[tuple[Any, Any]]] = {RETURN: list(seen.returns)}
    for record in seen.records:
        for name, value in record.items():
            if name != RETURN and name not in NOT_DRAWN and len(name) <= LONGEST_NAME:
                points.setdefault(name, []).append((record.get("env_steps"), value))
    return {**_curves(points), **of_evaluations(directory, member.directory)}


def _curves(points: Mapping[str, Sequence[tuple[Any, Any]]]) -> dict[str, OrderedPoints]:
    """Those points that are numbers; metrics without any are left out."""
    found: dict[str, OrderedPoints] = {}
    for name, pairs in list(points.items())[:MOST_NAMES]:
        numbers = [(x, y) for x, y in ((number(x), number(y)) for x, y in pairs) if x is not None and y is not None]
        if numbers:
            steps, values = np.array(numbers, np.float64).T
            order = np.argsort(steps, kind="stable")
            found[name] = steps[order], values[order]
    return found


_OF_STACKS: Final = {RETURN: stack_logs.RETURNS, f"{EVALUATION}return": stack_logs.EVALUATIONS}
"""What a stack keeps of each of its members, by metric."""


def _stacked(directory: Path, listed: Sequence[Member]) -> dict[str, dict[str, OrderedPoints]] | None:
    """By directory and metric: the curves of members that are recorded together."""
    recorded = stacks.read(directory, len(listed))
    if not recorded:
        return None
    found: dict[str, dict[str, OrderedPoints]] = {}
    for stack in map(stacks.name_of, range(len(recorded))):
        for metric, file in _OF_STACKS.items():
            for member, (steps, values) in _of_stack(directory, stack, file):
                if 0 <= member < len(listed):
                    order = np.argsort(steps, kind="stable")
                    found.setdefault(listed[member].directory, {})[metric] = steps[order], values[order]
    return found


def _of_stack(directory: Path, stack: str, file: str) -> Iterator[tuple[int, OrderedPoints]]:
    try:
        with run_directory.open_to_read(directory, f"{stack}/{file}", MOST_LOG_BYTES):
            pass
    except FileNotFoundError:
        return
    yield from stack_logs.read_curves(directory / stack, file).items()


def _in_order(names: Iterator[str]) -> list[str]:
    """Each once: returns, then names without a `/`, then the rest."""
    first = (RETURN, f"{EVALUATION}return")
    return sorted(set(names), key=lambda name: (first.index(name) if name in first else 2, "/" in name, name))
