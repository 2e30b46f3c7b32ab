"""Metrics of a run: `metrics.jsonl`, TensorBoard events and other sinks.

    with MetricsLog(run_dir) as log:
        while training:
            log.write({"env_steps": 1024, "mean_return": 21.5, "learn/loss": 0.3})

A record is flat: names to numbers, or None where there is no value yet.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from runnel.errors import UserError
from runnel.recording import run_directory
from runnel.recording.events import EventLog
from runnel.recording.files import AppendOnlyFile, as_user_error, clean, one_line, write_atomically
from runnel.recording.sinks import Record, RewindableSink, Sink, TensorBoard, WandB

FILE: Final = "metrics.jsonl"
EVERY_S: Final = 1.0
"""The interval in seconds at which the file grows by at most one line; one more is written at the end."""

LINES_AN_AGE: Final = 3600
"""The number of lines per age: a run that is t seconds old writes a line every t / LINES_AN_AGE seconds, some 27,000
lines in a month."""

TAIL_BYTES: Final = 1 << 16
"""The bytes that are read at the end of the file, more than a few lines."""

MOST_BYTES: Final = 1 << 28
MOST_LINES: Final = 1_000_000
"""Limits of a file that is read, more than a run writes in a hundred years."""

CURVE_POINTS: Final = 16
"""The largest number of points between the last line and the next that a line carries."""


class MetricsLog:
    """Writes records to every sink: at most one a second, less often as a run grows old, and always the last.

    After a successful start, a failure to write never ends a run: it is reported once, the next record is written as
    usual, and lost lines are counted.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        keep_until_env_steps: int | None = None,
        wandb: Mapping[str, Any] | None = None,
        events: EventLog | None = None,
        sinks: Sequence[Sink] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        """`keep_until_env_steps`: on resuming, later records are dropped, because they will be repeated. `wandb`: the
        run's configuration, if it is to be shown at Weights & Biases. `events`: records failures to write. `sinks`: the
        user's own; they are closed with the log."""
        run_dir = Path(run_dir)
        path = run_dir / FILE
        self.lost = 0
        """Records that are not in the file."""
        self._events, self._clock = events, clock
        self._began = clock()
        self._written_at = -math.inf
        self._pending: Record | None = None
        self._curve = _Curve()
        self._failing: set[str] = set()
        self._sinks: dict[str, Sink] = {}
        # The optional one is first, so that nothing is created if it is missing.
        if wandb is not None:
            self._sinks["Weights & Biases"] = WandB(run_dir, wandb)
        with as_user_error(path):
            _repair(path, keep_until_env_steps)
            self._file = AppendOnlyFile(path)
        self._sinks["TensorBoard"] = TensorBoard(run_dir, keep_until_env_steps)
        self._path = path
        for number, sink in enumerate(sinks):
            name = f"sink {number} ({type(sink).__name__})"
            self._sinks[name] = sink
            if keep_until_env_steps is not None:
                self._rewind(name, keep_until_env_steps)

    def write(self, record: Mapping[str, Any]) -> None:
        """Keeps a record, and writes it unless one was written a moment ago."""
        self._pending = kept = clean(record)
        self._curve.add(kept.get("env_steps"), kept.get("mean_return"))
        now = self._clock()
        age = kept.get("wall_seconds") or now - self._began
        if now - self._written_at >= max(EVERY_S, age / LINES_AN_AGE):
            self._flush()

    def rewind(self, env_steps: int) -> None:
        """Drops records later than this, which will be repeated."""
        if self._pending is not None and (self._pending.get("env_steps") or 0) > env_steps:
            self._pending = None
        self._curve.rewind(env_steps)
        self._try(f"the shortened {FILE}", lambda: _repair(self._path, env_steps))
        for name in self._sinks:
            self._rewind(name, env_steps)

    def _rewind(self, name: str, env_steps: int) -> None:
        sink = self._sinks[name]
        if isinstance(sink, RewindableSink):
            self._try(name, lambda: sink.rewind(env_steps))

    def close(self) -> None:
        """Writes the last record, if it waits, and closes every sink."""
        self._flush()
        if self.lost and FILE in self._failing and self._events is not None:
            self._events.record("metrics_failed", reason=f"{self.lost:,} lines of {FILE} are lost", lost=self.lost)
        with contextlib.suppress(OSError):
            self._file.close()
        for name, sink in self._sinks.items():
            self._try(name, sink.close, "close")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _flush(self) -> None:
        if self._pending is None:
            return
        record, self._pending = self._pending, None
        self._written_at = self._clock()
        # The points since the last line: a run of a few seconds has a curve too.
        between = self._curve.take()
        line = {**record, "curve": between} if between else record
        if not self._try(FILE, lambda: self._file.write((json.dumps(line, allow_nan=False) + "\n").encode())):
            self.lost += 1
        for name, sink in self._sinks.items():
            self._try(name, lambda sink=sink: sink.write(dict(record)))

    def _try(self, what: str, do: Callable[[], None], verb: str = "write") -> bool:
        """Runs a call of a sink; returns whether it succeeded. A full disk or a sink that fails never ends the run.

        The first failure is recorded, and the first success after it.
        """
        details: dict[str, Any] | None = None
        try:
            do()
        except (Exception, SystemExit) as error:  # a sink may raise anything
            if what not in self._failing:
                action = "training continues; the next record is tried again" if verb == "write" else ""
                details = {"reason": f"cannot {verb} {what}: {one_line(error)}", "action": action}
            self._failing.add(what)
        else:
            if what in self._failing and verb == "write":
                lost = f"; {self.lost:,} lines were lost" if what == FILE else ""
                details = {"reason": f"{what} can be written again{lost}", "lost": self.lost}
            self._failing.discard(what)
        if details is not None and self._events is not None:
            self._events.record("metrics_failed", **details)
        return what not in self._failing


class _Curve:
    """Steps and mean returns of records that were not written: all of them, or evenly thinned."""

    def __init__(self) -> None:
        self._points: list[list[Any]] = []
        self._last: Any = None
        self._seen, self._stride = 0, 1

    def add(self, env_steps: Any, mean_return: Any) -> None:
        if self._seen % self._stride == 0:
            self._points.append([env_steps, mean_return])
        self._seen += 1
        self._last = env_steps
        if len(self._points) > CURVE_POINTS:
            self._points, self._stride = self._points[::2], 2 * self._stride

    def rewind(self, env_steps: int) -> None:
        self._points = [point for point in self._points if (point[0] or 0) <= env_steps]

    def take(self) -> list[list[Any]]:
        """Returns all points except the last, which is in the line itself, and clears them."""
        points = [point for point in self._points if None not in point and point[0] != self._last]
        self._points, self._seen, self._stride = [], 0, 1
        return points


def read_metrics(run_dir: Path | str) -> list[Record]:
    """The records of a run in order; none if nothing was written yet. A truncated line is left out."""
    return list(records(run_dir))


def last_metrics(run_dir: Path | str) -> Record:
    """The newest record of a run, read from the end of the file; empty if there is none."""
    end = b""
    with (
        as_user_error(Path(run_dir) / FILE, "read"),
        contextlib.suppress(FileNotFoundError),
        run_directory.open_to_read(run_dir, FILE, MOST_BYTES) as file,
    ):
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        end = file.read(TAIL_BYTES)
    whole = (line for line in reversed(end.splitlines(keepends=True)) if line.endswith(b"\n"))
    return next(filter(None, map(_parsed, whole)), {})


def records(run_dir: Path | str) -> Iterator[Record]:
    """The records of a run, one by one: a file of this name may be long, and need not be a run's."""
    path, bad = Path(run_dir) / FILE, 0
    with as_user_error(path, "read"), contextlib.suppress(FileNotFoundError):
        for number, line in enumerate(run_directory.lines(run_dir, FILE, MOST_BYTES), 1):
            if bad or number > MOST_LINES:
                break
            record = _parsed(line)
            if record is not None:
                yield record
            else:
                bad = number
        else:
            return
        if bad:
            raise UserError(f"{path}: line {bad} is no record; delete that line")
        raise UserError(f"{path} has more than {MOST_LINES:,} lines, which no run writes")


def _repair(path: Path, keep_until_env_steps: int | None) -> None:
    """Drops truncated lines, and records later than the point of resumption."""
    limit = math.inf if keep_until_env_steps is None else keep_until_env_steps

    def kept(line: bytes) -> bool:
        record = _parsed(line)
        return record is not None and (record.get("env_steps") or 0) <= limit and line.endswith(b"\n")

    first = 0  # bytes of the lines before the first that is dropped
    dropped = later = False
    with contextlib.suppress(FileNotFoundError):
        for line in run_directory.lines(path.parent, path.name, MOST_BYTES):
            if not kept(line):
                dropped = True
            elif dropped:
                later = True
                break
            else:
                first += len(line)
    if later:
        found = run_directory.lines(path.parent, path.name, MOST_BYTES)
        write_atomically(path, b"".join(line for line in found if kept(line)))
    elif dropped:
        run_directory.truncate(
            path.parent, path.name, first
        )  # the usual case; needs no room, and others may have it open


def _parsed(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("env_steps"), int | float | None):
        return None
    return record
