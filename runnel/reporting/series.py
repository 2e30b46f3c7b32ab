"""`metrics.jsonl` as columns of bounded length: read on from where the last look ended, and thinned out as it grows."""

from __future__ import annotations

import itertools
import json
import math
import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from runnel.errors import printable
from runnel.recording import run_directory
from runnel.recording.metrics import FILE, MOST_BYTES

MOST_ROWS: Final = 2048
MOST_NAMES: Final = 256
LONGEST_NAME: Final = 120
MOST_NUMBER: Final = 1e100
"""Axes of larger numbers overflow."""

AT_ONCE: Final = 1 << 24
"""Bytes that a look reads at most: the next ones read the rest of a long file."""

LONGEST_LINE: Final = 1 << 20
MARK: Final = 64
"""So many bytes before the place where a look ended tell whether the file was rewritten meanwhile."""

TAIL_BYTES: Final = 1 << 16
"""Enough for the newest line."""

SPOTS: Final = 32
SPOT_BYTES: Final = 1 << 14
SMALL: Final = 1 << 17
"""A file of fewer bytes is glanced at as a whole, a larger one at so many spots."""

MetricsRecord = dict[str, Any]


class Series:
    """The metrics of one run: a row for each line while there are few, later two rows for several lines.

    The two rows have the first and the last of their steps, and of each metric the lowest and the highest value in the
    order in which these came: a spike of a single line is never left out.
    """

    def __init__(self, run_dir: Path, most_rows: int = MOST_ROWS):
        self._run_dir, self._most = run_dir, max(8, most_rows - most_rows % 4)  # see `_halve`
        self._reset()

    def _reset(self) -> None:
        self.steps = array("d")
        self.columns: dict[str, array[float]] = {}
        self.returns = Points(self._most)
        self.last: MetricsRecord = {}
        self.seen, self._stride, self._filled = 0, 1, 0  # lines of two rows, and those of the newest rows
        self._offset, self._mark, self._file = 0, b"", (0, 0)

    def read(self, most_bytes: int = AT_ONCE) -> None:
        """Reads what is new. OSError where the file cannot be read; nothing happens where there is none."""
        try:
            file = run_directory.open_to_read(self._run_dir, FILE, MOST_BYTES)
        except FileNotFoundError:
            return self._reset()
        with file:
            found = os.fstat(file.fileno())
            if not self._goes_on(file, found):
                self._reset()
            self._file = (found.st_dev, found.st_ino)
            file.seek(self._offset)
            content = file.read(min(most_bytes, MOST_BYTES))
            end = content.rfind(b"\n") + 1
            for line in content[:end].split(b"\n"):
                record = parsed(line)
                if record is not None:
                    self._add(record)
            self._offset += end
            if not end and len(content) > LONGEST_LINE:
                raise run_directory.NotPlain(FILE, f"it has a line of more than {LONGEST_LINE:,} bytes")
            file.seek(max(0, self._offset - MARK))
            self._mark = file.read(min(MARK, self._offset))

    def _goes_on(self, file: Any, found: os.stat_result) -> bool:
        """Whether the file is as it was up to the end of the last look. A run that goes back cuts it."""
        if self._file != (found.st_dev, found.st_ino) or found.st_size < self._offset:
            return not self._offset and not self.seen
        file.seek(max(0, self._offset - MARK))
        return file.read(len(self._mark)) == self._mark

    def _add(self, record: MetricsRecord) -> None:
        steps = number(record.get("env_steps"))
        if steps is None:
            return
        self.last = record
        for point in points_between(record):
            self.returns.add(*point)
        self.seen += 1
        self._filled = self._filled % self._stride + 1
        for name, value in record.items():
            new = name not in self.columns and len(self.columns) < MOST_NAMES and len(name) <= LONGEST_NAME
            if new and number(value) is not None:
                self.columns[name] = array("d", [math.nan] * len(self.steps))
        values = {name: math.nan if (value := number(record.get(name))) is None else value for name in self.columns}
        if self._filled > 2:
            self.steps[-1] = steps
        else:
            self.steps.append(steps)
        for name, column in self.columns.items():
            if self._filled > 2:
                column[-2], column[-1] = _ends([column[-2], column[-1], values[name]])
            elif self._filled == 2 and self._stride > 1:
                column[-1:] = array("d", _ends([column[-1], values[name]]))
            else:
                column.append(values[name])
        if len(self.steps) > self._most:
            self._halve()

    def _halve(self) -> None:
        """Makes two rows of each four. There are as many rows as these have, which 4 divides, and a newest one."""
        whole = len(self.steps) - 1
        self.steps = array("d", [self.steps[i] for at in range(0, whole, 4) for i in (at, at + 3)] + [self.steps[-1]])
        for name, column in self.columns.items():
            ends = [value for at in range(0, whole, 4) for value in _ends(column[at : at + 4])]
            self.columns[name] = array("d", [*ends, column[-1]])
        self._stride, self._filled = 4 if self._stride == 1 else 2 * self._stride, 1

    def json(self, most: int) -> dict[str, Any]:
        """Columns of at most so many rows; None where a row has no number."""
        groups = parts(len(self.steps), most // 2) if len(self.steps) > most else None
        steps = [self.steps[i] for ends in groups for i in (ends[0], ends[1] - 1)] if groups else list(self.steps)
        found = {}
        for name, column in self.columns.items():
            values = [value for low, high in groups for value in _ends(column[low:high])] if groups else column
            rounded = list(map(five_digits, values))
            if any(value is not None for value in rounded):
                found[printable(name)] = rounded
        return {"steps": steps, "columns": found, "returns": self.returns.json(most)}


def parts(count: int, most: int) -> list[tuple[int, int]]:
    """Places of `count` in at most so many parts of nearly the same size: where each begins and ends."""
    most = max(1, min(most, count))
    edges = [k * count // most for k in range(most + 1)]
    return list(itertools.pairwise(edges))


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest in their order; of a single number this one and NaN."""
    known = [value for value in values if value == value]
    if len(known) < 2:
        return (known[0] if known else math.nan), math.nan
    low, high = min(known), max(known)
    return (low, high) if known.index(low) <= known.index(high) else (high, low)


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most so many of the points in their order: the first, the last, and the lowest and highest of each part."""
    if len(points) <= most:
        return list(points)
    kept = {0, len(points) - 1}
    for begin, end in parts(len(points), max(1, most // 2 - 1)):
        kept.add(min(range(begin, end), key=lambda i: points[i][1]))
        kept.add(max(range(begin, end), key=lambda i: points[i][1]))
    return [points[i] for i in sorted(kept)]


class Points:
    """Steps and values, thinned out as they become many; the lowest and highest stay."""

    def __init__(self, most: int):
        self._most = most
        self.found: list[tuple[float, float]] = []

    def add(self, steps: float, value: float) -> None:
        self.found.append((steps, value))
        if len(self.found) >= 2 * self._most:
            self.found = thinned(self.found, self._most)

    def json(self, most: int) -> list[list[float | None]]:
        return [[steps, five_digits(value)] for steps, value in thinned(self.found, most)]


class Glance(NamedTuple):
    """What a list of runs shows of one."""

    last: MetricsRecord
    returns: list[tuple[float, float]]  # steps and mean returns, some of them
    records: list[MetricsRecord]  # some of them


def glance(run_dir: Path | str, name: str = FILE, spots: int = SPOTS) -> Glance:
    """Some of the lines of a run, evenly spread over its file, and the last; a long file is not read as a whole."""
    try:
        file = run_directory.open_to_read(run_dir, name, MOST_BYTES)
    except FileNotFoundError:
        return Glance({}, [], [])
    with file:
        size = os.fstat(file.fileno()).st_size
        if size <= SMALL:
            found = [record for line in file.read(SMALL).split(b"\n") if (record := parsed(line)) is not None]
        else:
            found = list(_at_spots(file, size, spots))
    points = [point for record in found for point in points_between(record)]
    returns = [points[i] for i in spread(len(points), 2 * spots)]
    return Glance(found[-1] if found else {}, returns, [found[i] for i in spread(len(found), 2 * spots)])


def newest(run_dir: Path | str, name: str = FILE, tail_bytes: int = TAIL_BYTES) -> MetricsRecord:
    """The newest whole line of a file, of which only the end is read; nothing where there is none."""
    try:
        file = run_directory.open_to_read(run_dir, name, MOST_BYTES)
    except FileNotFoundError:
        return {}
    with file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - tail_bytes))
        lines = file.read(tail_bytes).split(b"\n")[:-1]
    return next((record for line in reversed(lines) if (record := parsed(line)) is not None), {})


def _at_spots(file: Any, size: int, spots: int) -> Iterator[MetricsRecord]:
    for spot in range(spots):
        last = spot == spots - 1
        file.seek(size - SPOT_BYTES if last else spot * (size // spots))
        lines = file.read(SPOT_BYTES).split(b"\n")
        whole = lines[1:-1] if spot else lines[:-1]  # the first may have begun before, and the last is cut
        record = next((r for line in (reversed(whole) if last else whole) if (r := parsed(line)) is not None), None)
        if record is not None:
            yield record


def points_between(record: MetricsRecord) -> Iterator[tuple[float, float]]:
    """The points of the learning curve in a record: those before it, and its own."""
    between = record.get("curve")
    own = [record.get("env_steps"), record.get("mean_return")]
    for point in [*(between if isinstance(between, list) else ()), own]:
        if isinstance(point, list) and len(point) == 2:
            steps, value = map(number, point)
            if steps is not None and value is not None:
                yield steps, value


def parsed(line: bytes) -> MetricsRecord | None:
    """A line as a record; None where it is none."""
    if not line or len(line) > LONGEST_LINE:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def number(value: Any) -> float | None:
    """A number that can be drawn; None for anything else."""
    return float(value) if type(value) in (int, float) and abs(value) <= MOST_NUMBER else None


def five_digits(value: float) -> float | None:
    """In five digits: more are not seen."""
    return None if math.isnan(value) else float(f"{value:.5g}")


def spread(count: int, most: int) -> list[int]:
    """So many places of `count`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]
