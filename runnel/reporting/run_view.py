"""A run directory as one plain JSON object, which the page of `runnel dash` and `report.html` show.

    view = run_view(Path("runs/mine"))
    json.dumps(view)

It is a function of the files alone: nothing in the directory is imported, executed or followed through a link, and all
that is read is bounded. A part that cannot be read is missing, and `problems` says why.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError, printable
from runnel.planning.placed import PlanUsage
from runnel.planning.svg import picture
from runnel.recording import evaluation_log, events, members_file, provenance, run_directory, run_lock, usage_file
from runnel.recording.files import one_line, read_json
from runnel.reporting import group_view, plan_file
from runnel.reporting.curves import configuration
from runnel.reporting.series import Series, number, spread
from runnel.reporting.train_again import CUT, again, first_command

POINTS: Final = 400
MOST_EVENTS: Final = 300
MOST_EVALUATIONS: Final = 400
MOST_WORKERS: Final = 512
MOST_FILES: Final = 500
LONGEST: Final = 2000
"""Letters of a text."""

VIDEOS: Final = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}

Keep = Callable[[str, Sequence[str], Callable[[], Any]], Any]
"""`keep(part, files, make)`: what `make()` returns, or what it returned while these files were the same."""


def always_anew(part: str, files: Sequence[str], make: Callable[[], Any]) -> Any:
    """Keeps nothing."""
    del part, files
    return make()


def run_view(
    run_dir: Path,
    series: Series | None = None,
    *,
    keep: Keep = always_anew,
    points: int = POINTS,
    ended: bool = False,
) -> dict[str, Any]:
    """All there is to show of a run, or of a directory of several.

    `series`: what was read of its metrics before. `ended`: it is as its result says, though its lock is still held.
    """
    view: dict[str, Any] = {"problems": [], "name": text(run_dir.absolute().name), "directory": text(str(run_dir))}
    parts = _Parts(view, run_dir, keep)
    several = members_file.holds_members(run_dir)
    view["kind"] = group_view.kind(run_dir) if several else "run"
    parts.add("result", ["result.json"], lambda: result(run_dir), {})
    parts.add("status", None, lambda: status(run_dir, view["result"], ended), "unknown")
    parts.add("about", ["config.json"], lambda: {} if several else about(run_dir), {})
    parts.add("starts", [provenance.FILE], lambda: plain(provenance.read(run_dir)), [])
    parts.add("events", [events.FILE, events.OLDER], lambda: recent_events(run_dir), [])
    parts.add("logs", None, lambda: files(run_dir, "logs", (".log", "")), [])
    parts.add("videos", None, lambda: films(run_dir), [])
    if several:
        group_view.add(parts.add, run_dir, view["result"])
        view["command"] = first_command(view["starts"], _steps_of_members(run_dir, view), several=True)
        view["result"] = _without(view["result"], "runs")
        return view
    series = series or Series(run_dir)
    parts.add("curves", None, lambda: curves(series, points), {"steps": [], "columns": {}, "returns": []})
    view["now"] = {text(name): plain(value) for name, value in list(series.last.items())[:300] if name != "curve"}
    parts.add("usage", None, lambda: usage(run_dir, view), {"workers": [], "streams": [], "bottleneck": None})
    view["result"] = _without(view["result"], "workers", "streams")
    parts.add("plan", None, lambda: drawn(run_dir, view), None)
    parts.add("evaluations", [evaluation_log.FILE], lambda: evaluations(run_dir), [])
    parts.add("payoffs", [group_view.MATCHES], lambda: group_view.payoffs(run_dir), [])
    config = parts.add("config", ["config.json"], lambda: plain(read_json(run_dir, "config.json", 1 << 17), 12), None)
    steps = config.get("steps") if isinstance(config, dict) else None
    view["command"] = first_command(view["starts"], steps) or again(run_dir.absolute())
    view["again"] = again(run_dir.absolute()) if isinstance(config, dict) else ""
    return view


UNREADABLE: Final = (
    OSError, UserError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading a file may raise that no run has written."""


class _Parts:
    """Adds parts to a view; one that fails is left out, with the reason."""

    def __init__(self, view: dict[str, Any], run_dir: Path, keep: Keep):
        self._view, self._run_dir, self._keep = view, run_dir, keep

    def add(self, name: str, files: Sequence[str] | None, make: Callable[[], Any], otherwise: Any) -> Any:
        """`files`: those that the part is made of; None: it is made at each look."""
        try:
            found = make() if files is None else self._keep(name, files, make)
        except FileNotFoundError:
            found = otherwise
        except UNREADABLE as e:
            found = otherwise
            if len(self._view["problems"]) < 20:
                self._view["problems"].append(text(f"{name}: {one_line(e)}"))
        self._view[name] = found
        return found


def _steps_of_members(run_dir: Path, view: Mapping[str, Any]) -> Any:
    """What every member is trained for; nothing for a sweep, whose trials may differ in it."""
    if view["kind"] == "sweep" or not view["members"]:
        return None
    with contextlib.suppress(*UNREADABLE):
        return read_json(run_dir, f"{view['members'][0]['directory']}/config.json").get("steps")
    return None


def _without(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def result(run_dir: Path) -> dict[str, Any]:
    found = read_json(run_dir, "result.json")
    return plain(found) if isinstance(found, dict) else {}


def status(run_dir: Path, result: Mapping[str, Any], ended: bool = False) -> str:
    """`running`, how it ended, or `gone` where a process was killed before it could say."""
    if not ended and not _surely_ended(run_dir) and run_lock.in_use(run_dir):
        return "running"
    found = result.get("status")
    return found if found in ("finished", "interrupted", "failed") else "gone"


def _surely_ended(run_dir: Path) -> bool:
    """Whether nobody has taken the directory since its result was written: then its lock is left alone."""
    with contextlib.suppress(OSError), run_directory.directory(run_dir) as here:
        written, taken = (os.stat(name, dir_fd=here, follow_symlinks=False) for name in ("result.json", run_lock.FILE))
        return written.st_mtime_ns > taken.st_mtime_ns and written.st_mtime + 60 < time.time()
    return False


def about(run_dir: Path) -> dict[str, Any]:
    """What a run is of, with all settings in words."""
    (algorithm, environment, distribution), settings, seed = configuration(run_dir)
    config = read_json(run_dir, "config.json")
    asked = {name: text(str(config[name])) for name in ("steps", "stop_at_return", "eval_every") if config.get(name)}
    return {
        "algorithm": text(algorithm), "environment": text(environment), "distribution": text(distribution),
        "seed": text(seed.removeprefix("seed ")), "settings": dict(list(settings.items())[:300]), "asked": asked,
        "steps": number(config.get("steps")), "version": text(str(config.get("runnel_version", ""))),
    }  # fmt: skip


def curves(series: Series, points: int) -> dict[str, Any]:
    series.read()
    return series.json(points)


def usage(run_dir: Path, view: Mapping[str, Any]) -> dict[str, Any]:
    """Workers, streams and the bottleneck: of a moment ago while a run is in progress, else over the whole run."""
    ended = view["result"]
    if view["status"] == "running" or not ended.get("workers"):
        try:
            found = read_json(run_dir, usage_file.FILE, 1 << 22)
        except FileNotFoundError:
            found = {}
        if isinstance(found, dict) and found.get("workers"):
            ended = plain(found)
    return {
        "workers": _dicts(ended.get("workers"))[:MOST_WORKERS],
        "streams": _dicts(ended.get("streams"))[:MOST_WORKERS],
        "bottleneck": ended["bottleneck"] if isinstance(ended.get("bottleneck"), str) else None,
    }


def drawn(run_dir: Path, view: Mapping[str, Any]) -> dict[str, Any] | None:
    """The plan as a picture, with the busy share of its workers and the rate and fill of its edges."""
    plan = plan_file.read(run_dir)
    if plan is None:
        if run_directory.exists(run_dir, plan_file.FILE):
            raise ValueError(f"{plan_file.FILE} is not as runs write it")
        return None
    busy = {
        str(worker.get("name")): min(1.0, max(0.0, share))
        for worker in view["usage"]["workers"]
        if (share := number(worker.get("busy"))) is not None
    }
    # A worker alone is always busy, which says nothing.
    found = picture(plan, PlanUsage(busy if plan.workers > 1 else {}, _edges(plan, view))).json()
    return {**found, "fragments": [{"name": f.name, "workers": f.workers()[:64]} for f in plan.fragments]}


def _edges(plan: plan_file.RecordedPlan, view: Mapping[str, Any]) -> dict[tuple[str, str, str], str]:
    """What was measured of each edge: messages and fill of a stream; parameters and gradients come with updates."""
    found = {}
    for stream in view["usage"]["streams"]:
        rate, fill = number(stream.get("messages_per_second")), number(stream.get("fill"))
        if rate is not None and fill is not None:
            key = (str(stream.get("source")), str(stream.get("target")), str(stream.get("kind")))
            found[key] = f"{_rate(rate)} messages/s, {fill:.0%} filled"
    now = {**view["result"], **view["now"]} if view["status"] == "running" else {**view["now"], **view["result"]}
    steps, updates, speed = (number(now.get(name)) for name in ("env_steps", "updates", "steps_per_second"))
    if steps and updates and speed:
        for cut in plan.cuts:
            if cut.channel in ("store", "collective"):
                what = "versions/s" if cut.channel == "store" else "updates/s"
                found[cut.source, cut.target, cut.channel] = f"{_rate(speed * updates / steps)} {what}"
    return found


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def recent_events(run_dir: Path) -> list[dict[str, Any]]:
    return [plain(event) for event in events.read_events(run_dir)[-MOST_EVENTS:]]


def evaluations(run_dir: Path) -> list[dict[str, Any]]:
    """Evaluations without the returns of their episodes."""
    _check_size(run_dir, evaluation_log.FILE)
    found = evaluation_log.read_evaluations(run_dir)
    names = ("env_steps", "mean_return", "std_return", "return_interval", "episodes", "mean_length", "score", "version")
    return [
        plain({name: found[i][name] for name in names if name in found[i]})
        for i in spread(len(found), MOST_EVALUATIONS)
    ]


def _check_size(run_dir: Path, name: str) -> None:
    with run_directory.open_to_read(run_dir, name, group_view.MOST_LOG_BYTES):
        pass


def files(run_dir: Path, name: str, endings: Sequence[str]) -> list[str]:
    """The names of plain files in a directory of the run."""
    found = []
    try:
        with run_directory.directory(run_dir, name) as here, os.scandir(here) as entries:
            for entry in entries:
                known = any(entry.name.endswith(end) for end in endings) and entry.name.isprintable()
                if known and entry.is_file(follow_symlinks=False):
                    found.append(entry.name)
                if len(found) >= MOST_FILES:
                    break
    except FileNotFoundError:
        return []
    return sorted(found)


def films(run_dir: Path) -> list[str]:
    """Videos in a run directory, and in its `videos`."""
    return files(run_dir, "", tuple(VIDEOS)) + [f"videos/{each}" for each in files(run_dir, "videos", tuple(VIDEOS))]


def plain(value: Any, depth: int = 6) -> Any:
    """A value as the page takes it: texts that show what they hide, and nothing without bounds."""
    if isinstance(value, dict):
        return {text(str(k)): plain(v, depth - 1) for k, v in list(value.items())[:MOST_WORKERS]} if depth else "..."
    if isinstance(value, list):
        return [plain(each, depth - 1) for each in value[: 4 * MOST_WORKERS]] if depth else "..."
    if isinstance(value, str):
        return text(value)
    if value is None or isinstance(value, bool):
        return value
    return number(value) if isinstance(value, float) or abs(value) > 2**53 else value


def text(value: str) -> str:
    return printable(value if len(value) <= LONGEST else f"{value[:LONGEST]} {CUT}")


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
