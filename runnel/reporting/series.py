"""`metrics.jsonl` as columns of bounded length: read on from where the last look ended, and thinned out as it grows."""

from __future__ import annotations

import json
import math
import os
from array import array
from collections.abc import Iterator
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

SPOTS: Final = 32
SPOT_BYTES: Final = 1 << 14
SMALL: Final = 1 << 17
"""A file of fewer bytes is glanced at as a whole, a larger one at so many spots."""

MetricsRecord = dict[str, Any]


class Series:
    """The metrics of one run: a row for each line, or for every second, fourth, ... once there are many."""

    def __init__(self, run_dir: Path, most_rows: int = MOST_ROWS):
        self._run_dir, self._most = run_dir, most_rows
        self._reset()

    def _reset(self) -> None:
        self.steps = array("d")
        self.columns: dict[str, array[float]] = {}
        self.returns = Points(self._most)
        self.last: MetricsRecord = {}
        self.seen, self._stride = 0, 1
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
        keep, self.seen = self.seen % self._stride == 0, self.seen + 1
        if not keep:
            return
        self.steps.append(steps)
        for name, value in record.items():
            known = self.columns.get(name)
            value = number(value)
            if known is None and value is not None and len(self.columns) < MOST_NAMES and len(name) <= LONGEST_NAME:
                known = self.columns[name] = array("d", [math.nan] * (len(self.steps) - 1))
            if known is not None:
                known.append(math.nan if value is None else value)
        for column in self.columns.values():
            if len(column) < len(self.steps):
                column.append(math.nan)
        if len(self.steps) > self._most:
            self.steps, self._stride = self.steps[::2], 2 * self._stride
            self.columns = {name: column[::2] for name, column in self.columns.items()}

    def json(self, most: int) -> dict[str, Any]:
        """Columns of at most so many rows, the newest among them; None where a row has no number."""
        places = spread(len(self.steps), most)
        columns = {printable(name): [five_digits(column[i]) for i in places] for name, column in self.columns.items()}
        columns = {name: column for name, column in columns.items() if any(value is not None for value in column)}
        return {"steps": [self.steps[i] for i in places], "columns": columns, "returns": self.returns.json(most)}


class Points:
    """Steps and values, thinned out as they become many."""

    def __init__(self, most: int):
        self._most, self._stride, self.seen = most, 1, 0
        self.found: list[tuple[float, float]] = []

    def add(self, steps: float, value: float) -> None:
        if self.seen % self._stride == 0:
            self.found.append((steps, value))
        self.seen += 1
        if len(self.found) > self._most:
            self.found, self._stride = self.found[::2], 2 * self._stride

    def json(self, most: int) -> list[list[float | None]]:
        return [[self.found[i][0], five_digits(self.found[i][1])] for i in spread(len(self.found), most)]


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
