"""A run directory as one plain JSON object, which the page of `runnel dash` and `report.html` show.

    view = run_view(Path("runs/mine"))
    json.dumps(view)

It is a function of the files alone: nothing in the directory is imported, executed or followed through a link, and all
that is read is bounded. A part that cannot be read is missing, and `problems` says why.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.planning.placed import PlanUsage
from runnel.planning.svg import picture
from runnel.recording import evaluation_log, events, members_file, provenance, run_directory, sweep_file, usage_file
from runnel.recording.files import one_line, read_json
from runnel.recording.metrics import FILE as METRICS
from runnel.reporting import group_view, plan_file
from runnel.reporting.run_facts import UNREADABLE, about, plain, result, status, text
from runnel.reporting.series import Series, number, spread
from runnel.reporting.train_again import again, again_together, first_command

POINTS: Final = 400
MOST_EVENTS: Final = 300
MOST_EVALUATIONS: Final = 400
MOST_FILES: Final = 500
MOST_WORKERS: Final = 512

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
    if not several:
        parts.add("about", ["config.json"], lambda: about(run_dir), {})
    parts.add("starts", [provenance.FILE], lambda: plain(provenance.read(run_dir)), [])
    parts.add("events", [events.FILE, events.OLDER], lambda: recent_events(run_dir), [])
    parts.add("logs", None, lambda: files(run_dir, "logs", (".log", "")), [])
    parts.add("videos", None, lambda: films(run_dir), [])
    view["until"] = until(run_dir, view["status"])
    if several:
        found = group_view.add(parts.add, run_dir, view, ended)
        view["now"], view["of_member"] = found.now, found.of_member
        view["winner"] = run_directory.exists(run_dir, f"{sweep_file.WINNER}/{members_file.FILE}")
        _add_usage_and_plan(parts, run_dir / found.of_member, found.one)
        view["command"] = first_command(view["starts"], found.steps_of_each, several=True)
        view["again"] = again_together(run_dir.absolute(), found.listed, view["kind"])
        view["result"] = _without(view["result"], "runs")
        return view
    series = series or Series(run_dir)
    parts.add("curves", None, lambda: curves(series, points), {"steps": [], "columns": {}, "returns": []})
    view["now"] = {text(name): plain(value) for name, value in list(series.last.items())[:300] if name != "curve"}
    _add_usage_and_plan(parts, run_dir, view)
    view["result"] = _without(view["result"], "workers", "streams")
    parts.add("evaluations", [evaluation_log.FILE], lambda: evaluations(run_dir), [])
    parts.add("payoffs", [group_view.MATCHES], lambda: group_view.payoffs(run_dir), [])
    config = parts.add("config", ["config.json"], lambda: plain(read_json(run_dir, "config.json", 1 << 17), 12), None)
    steps = config.get("steps") if isinstance(config, dict) else None
    view["command"] = first_command(view["starts"], steps) or again(run_dir.absolute())
    view["again"] = again(run_dir.absolute()) if isinstance(config, dict) else ""
    return view


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


def _add_usage_and_plan(parts: _Parts, run_dir: Path, one: Mapping[str, Any]) -> None:
    """Workers, streams and plan of one run: `one` is its view, or of a member the status, result and newest metrics."""
    empty = {"workers": [], "streams": [], "bottleneck": None}
    found = parts.add("usage", None, lambda: usage(run_dir, one) if one else empty, empty)
    parts.add("plan", None, lambda: drawn(run_dir, {**one, "usage": found}) if one else None, None)


def _without(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def until(run_dir: Path, status: str) -> float | None:
    """When a run ended, in seconds since 1970; without a result, when it last wrote its metrics."""
    if status == "running":
        return None
    for name in ("result.json", METRICS):
        with contextlib.suppress(OSError), run_directory.directory(run_dir) as here:
            return os.stat(name, dir_fd=here, follow_symlinks=False).st_mtime
    return None


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
    names = (
        "env_steps", "mean_return", "std_return", "return_interval", "episodes", "mean_length", "score", "version",
        "group_returns",
    )  # fmt: skip
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


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
