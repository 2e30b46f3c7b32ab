"""The runs below the directories that a page shows: found, named, and read no more often than they change."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.dash.discovery import MOST_LOOKED_AT, holds_run, runs_below, signature
from runnel.dash.summary import FILES, summary
from runnel.errors import UserError, printable
from runnel.recording import evaluation_log, members_file, requests, run_directory, run_lock
from runnel.recording.sweep_file import WINNER
from runnel.reporting import group_curves
from runnel.reporting.curves import RETURN
from runnel.reporting.run_facts import UNREADABLE, about, status, text
from runnel.reporting.run_view import run_view
from runnel.reporting.series import Series, five_digits, thinned

MOST_RUNS: Final = 2000
MOST_OPEN: Final = 32
"""So many runs' curves are kept in memory, those that were looked at last."""

MOST_KEPT: Final = 4 * MOST_RUNS
MOST_COMPARED: Final = 40
MOST_LINES: Final = 80
"""Curves and bands over one another: directories of several runs may have a band for each of their settings."""

COMPARED_POINTS: Final = 300
LONGEST_METRIC: Final = 1000
LOG_BYTES: Final = 1 << 16
MOST_VIDEO_BYTES: Final = 1 << 26


class NoSuchRun(UserError):
    """A name that is no run's."""


class Runs:
    """The runs of several directories. Requests of several threads may use it."""

    def __init__(self, roots: Sequence[Path]):
        self.roots = [root.absolute() for root in roots]
        self._kept: OrderedDict[tuple[str, str], tuple[Any, Any]] = OrderedDict()
        self._series: OrderedDict[str, tuple[Series, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    # Names

    def find(self) -> list[tuple[str, Path]]:
        """All runs, by their names: the number of the directory that was given, and the way from there."""
        found, looked = [], [MOST_LOOKED_AT]
        for place, root in enumerate(self.roots):
            for way in runs_below(root, "", looked):
                if len(found) >= MOST_RUNS:
                    return found
                found.append((f"{place}/{way}" if way else str(place), root / way if way else root))
        return found

    def directory(self, name: str) -> Path:
        """The directory of a run; only those below the given ones have names, and no link leads there."""
        place, _, way = name.partition("/")
        if not place.isascii() or not place.isdigit() or len(place) > 6 or int(place) >= len(self.roots):
            raise NoSuchRun(f"there is no run {text(name)[:80]}")
        root = self.roots[int(place)]
        try:
            with run_directory.directory(root, way) as here:
                if not holds_run(here):
                    raise NoSuchRun(f"there is no run {text(name)[:80]}")
        except OSError:
            raise NoSuchRun(f"there is no run {text(name)[:80]}") from None
        return root / way if way else root

    def is_top(self, name: str) -> bool:
        """Whether a run is none of several: those are controlled together."""
        directory = self.directory(name)
        above = directory.parent
        if directory.name == WINNER:
            return not members_file.holds_members(above)
        with contextlib.suppress(*UNREADABLE):
            return not (members_file.holds_members(above) and _is_listed(above, directory.name))
        return True

    # What is shown

    def listed(self) -> list[dict[str, Any]]:
        """Each run in a few words, those that cannot be read left out."""
        found = []
        for name, directory in self.find():
            try:
                known = self._keep(name, "summary", directory, FILES, lambda d=directory: summary(d))
                now = status(directory, {"status": known["status"]})
            except UNREADABLE:
                known, now = {"name": text(directory.name), "kind": "run", "curve": []}, "unknown"
            found.append({**known, "id": name, "status": now})
        return found

    def view(self, name: str) -> dict[str, Any]:
        """All there is to show of a run."""
        directory = self.directory(name)

        def keep(part: str, files: Sequence[str], make: Callable[[], Any]) -> Any:
            return self._keep(name, part, directory, files, make)

        series, lock = self._open(name, directory)
        with lock:
            return {**run_view(directory, series, keep=keep), "top": self.is_top(name)}

    def compared(self, names: Sequence[str], metric: str) -> dict[str, Any]:
        """Curves of runs over one another, and the settings in which they differ."""
        if len(names) > MOST_COMPARED:
            raise UserError(f"found {len(names)} runs, expected {MOST_COMPARED} or fewer")
        if len(metric) > LONGEST_METRIC:
            raise UserError("found no name of a metric")
        runs: list[dict[str, Any]] = []
        settings: list[dict[str, str]] = []
        metrics, left_out = {RETURN}, 0
        for name in names:
            directory = self.directory(name)
            called = text(directory.name) if self.is_top(name) else text(f"{directory.parent.name}/{directory.name}")
            lines, known = self._lines(name, directory, metric)
            metrics |= known
            shared, clock = self._settings(name, directory), self._clock(name, directory)
            for line, varied in lines:
                if len(runs) >= MOST_LINES:
                    left_out += 1
                    continue
                label = f"{called}: {line['name']}" if line.get("name") and len(lines) > 1 else called
                runs.append({"steps": [], "values": [], **line, "name": label, "id": name, "clock": clock})
                settings.append({**shared, **varied})
        keys = dict.fromkeys(key for each in settings for key in each)
        differing = [
            {"name": key, "values": [each.get(key) for each in settings]}
            for key in keys
            if len({each.get(key) for each in settings}) > 1
        ]
        return {"runs": runs, "metrics": sorted(metrics), "differing": differing, "left_out": left_out}

    def log(self, name: str, log: str) -> str:
        """The end of a worker's log."""
        if "/" in log:
            raise UserError("found no name of a log")
        with run_directory.open_to_read(self.directory(name), f"logs/{log}", 1 << 40) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - LOG_BYTES))
            content = file.read(LOG_BYTES).decode(errors="replace")
        return ("...\n" + content.partition("\n")[2]) if size > LOG_BYTES else content

    def video(self, name: str, video: str) -> bytes:
        return run_directory.read(self.directory(name), video, MOST_VIDEO_BYTES)

    def ask(self, name: str, what: str) -> None:
        """Asks a run in progress for a checkpoint, or to end."""
        directory = self.directory(name)
        if not self.is_top(name):
            raise UserError("found one of several runs, which are controlled together; ask the directory of all")
        if not run_lock.in_use(directory):
            raise UserError("found no run in progress there")
        requests.ask(directory, what)

    # Reading

    def _lines(
        self, name: str, directory: Path, metric: str
    ) -> tuple[list[tuple[dict[str, Any], dict[str, str]]], set[str]]:
        """What is drawn of a run, of several a band for each of their settings: each with the settings of its own; and
        the metrics that there are."""
        if members_file.holds_members(directory):
            listed = members_file.read(directory)
            files = group_curves.files(directory, listed)
            return self._keep(
                name, f"band {metric}", directory, files, lambda: group_curves.compared(directory, listed, metric)
            )
        curves = self._curves(name, directory)
        steps, values = curves.get(metric, ((), ()))
        return [({"steps": steps, "values": values}, {})], curves.keys() - group_curves.NOT_DRAWN

    def _clock(self, name: str, directory: Path) -> dict[str, Sequence[float | None]] | None:
        """After how many seconds a run, or several, had taken how many steps."""
        if members_file.holds_members(directory):
            listed = members_file.read(directory)
            files = group_curves.files(directory, listed)
            return self._keep(name, "clock", directory, files, lambda: group_curves.clock(directory, listed))
        steps, seconds = self._curves(name, directory).get("wall_seconds", ((), ()))
        return {"steps": steps, "seconds": seconds} if seconds else None

    def _curves(self, name: str, directory: Path) -> dict[str, tuple[Sequence[float], Sequence[float | None]]]:
        """By metric: the steps and values of one run."""
        series, lock = self._open(name, directory)
        with lock:
            with contextlib.suppress(OSError):
                series.read()
            found = series.json(COMPARED_POINTS)
        curves = {metric: (found["steps"], values) for metric, values in found["columns"].items()}
        if found["returns"]:
            steps, values = zip(*found["returns"], strict=True)
            curves[RETURN] = steps, values
        with contextlib.suppress(*UNREADABLE):
            curves |= self._keep(name, "evaluated", directory, (evaluation_log.FILE,), lambda: _evaluated(directory))
        return curves

    def _settings(self, name: str, directory: Path) -> dict[str, str]:
        """What a run is of, and all its settings; of several runs, what all share."""
        first = directory
        if members_file.holds_members(directory):
            listed = members_file.read(directory)
            first = directory / listed[0].directory
            varying = {key for member in listed for key in member.settings}
        else:
            varying = set()
        try:
            found = self._keep(name, "about", first, ("config.json",), lambda: about(first))
        except UNREADABLE:
            return {}
        named = {key: found[key] for key in ("algorithm", "environment", "distribution", "version")}
        seed = {} if varying or first is not directory else {"seed": found["seed"]}
        settings = {key: value for key, value in found["settings"].items() if key not in varying}
        return {**named, **found["asked"], **seed, **settings}

    def _open(self, name: str, directory: Path) -> tuple[Series, threading.Lock]:
        with self._lock:
            found = self._series.pop(name, None) or (Series(directory), threading.Lock())
            self._series[name] = found
            while len(self._series) > MOST_OPEN:
                self._series.popitem(last=False)
            return found

    def _keep(self, name: str, part: str, directory: Path, files: Sequence[str], make: Callable[[], Any]) -> Any:
        """What `make` returns, or what it returned while the files were the same."""
        key, now = (name, part), signature(directory, files)
        with self._lock:
            known = self._kept.pop(key, None)
            if known is not None and known[0] == now:
                self._kept[key] = known
                return known[1]
        made = make()
        with self._lock:
            self._kept[key] = (now, made)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return made


def _is_listed(directory: Path, name: str) -> bool:
    return any(member.directory == name for member in members_file.read(directory))


def _evaluated(directory: Path) -> dict[str, tuple[list[float], list[float | None]]]:
    """By metric: the steps and values of evaluations, as they are sent."""
    found = {}
    for metric, points in group_curves.of_evaluations(directory).items():
        kept = thinned(list(zip(*(array.tolist() for array in points), strict=True)), COMPARED_POINTS)
        found[printable(metric)] = [steps for steps, _ in kept], [five_digits(value) for _, value in kept]
    return found
