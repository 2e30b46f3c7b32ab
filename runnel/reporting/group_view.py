"""What a view shows of a directory of several runs, and of the policies that play against each other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from runnel.errors import printable
from runnel.recording import match_log, members_file, population_file, run_directory, sweep_file
from runnel.recording.members_file import Member
from runnel.reporting import group_curves, group_progress
from runnel.reporting.bands import by_settings
from runnel.reporting.group_curves import MOST_BANDS, MOST_IN_BAND, MOST_LOG_BYTES
from runnel.reporting.group_progress import MemberProgress
from runnel.reporting.payoff_report import evenly_spaced, read_payoffs
from runnel.reporting.run_facts import UNREADABLE
from runnel.reporting.series import five_digits, spread

MATCHES: Final = match_log.FILE
MOST_MEMBERS: Final = 1000
MOST_REPORTS: Final = 64
"""So many members of a directory get a report beside that of all."""

MOST_ROUNDS: Final = 200
MOST_PLAYERS: Final = 16

Add = Callable[[str, Sequence[str] | None, Callable[[], Any], Any], Any]


def kind(directory: Path) -> str:
    """What a directory of members is: `members`, `population` or `sweep`."""
    if sweep_file.holds_sweep(directory):
        return "sweep"
    return "population" if population_file.is_population(directory) else "members"


class GroupView(NamedTuple):
    """What was found of a directory of several runs, beside its parts."""

    listed: Sequence[Member]
    now: Mapping[str, Any]  # what all members have reached; nothing where the result says it
    steps_of_each: Any  # that every member is trained for; None of a sweep, whose trials may differ in it
    of_member: str  # whose plan and workers stand for those of all; empty where no member has a plan
    one: Mapping[str, Any]  # this member's status, result and newest metrics


def add(add: Add, directory: Path, view: Mapping[str, Any], ended: bool = False) -> GroupView:
    """Adds the parts of a directory of several runs to a view that has `kind`, `status`, `starts` and `result`."""
    listed: list[Member] = []
    found: list[MemberProgress] = []
    running = view["status"] == "running"

    def read() -> list[dict[str, Any]]:
        listed.extend(members_file.read(directory))
        has_result = not running and "runs" in view["result"]
        found.extend([] if has_result else group_progress.standings(directory, listed[:MOST_MEMBERS], running, ended))
        return members(listed, view["result"], found)

    add("members", None, read, [])
    add("notes", None, lambda: notes(listed), [])
    if not listed:
        add("about", None, dict, {})
        add("bands", None, dict, {})
        add("clock", None, lambda: None, None)
        add("lineage", None, lambda: None, None)
        return GroupView([], {}, None, "", {})
    about = add("about", None, lambda: group_progress.about_all(directory, listed, view["kind"]), {})
    files = group_curves.files(directory, listed)
    add("bands", files, lambda: group_curves.bands(directory, listed), {})
    add("clock", files, lambda: group_curves.clock(directory, listed), None)
    add("lineage", [population_file.FILE, population_file.LINEAGE], lambda: lineage(directory, len(listed)), None)
    now = group_progress.now(found, len(listed), group_progress.seconds(found, view)) if found else {}
    each, name, one = None, "", {}
    with contextlib.suppress(*UNREADABLE):
        each = None if view["kind"] == "sweep" else int(about["asked"][group_progress.EACH])
    with contextlib.suppress(*UNREADABLE):
        place = group_progress.shown(directory, listed, found)
        if place is not None:
            name = listed[place].directory
            one = group_progress.of_one(directory / name, ended)
    return GroupView(listed, now, each, name, one)


def members(
    listed: Sequence[Member], result: Mapping[str, Any], standings: Sequence[MemberProgress]
) -> list[dict[str, Any]]:
    """Each member with what it has recorded itself, or, where nothing was read of it, what the result of all says."""
    runs = result.get("runs")
    ended = {run.get("directory"): run for run in runs if isinstance(run, dict)} if isinstance(runs, list) else {}
    found = []
    for place, member in enumerate(listed[:MOST_MEMBERS]):
        run = ended.get(member.directory, {})
        if place < len(standings):
            own = standings[place]
            run = {"status": own.status, "env_steps": own.env_steps, "return": own.value, "reason": own.reason}
        settings = {printable(str(name))[:80]: printable(str(value))[:80] for name, value in member.settings.items()}
        names = ("status", "env_steps", "return", "reason")
        found.append({
            "directory": member.directory, "seed": member.seed, "settings": settings,
            **{name: run.get(name) for name in names},
        })  # fmt: skip
    return found


def notes(listed: Sequence[Member]) -> list[str]:
    """What is left out of many members."""
    groups = by_settings(listed)
    largest = max(map(len, groups), default=0)
    found = []
    if len(listed) > MOST_MEMBERS:
        found.append(f"The table has the first {MOST_MEMBERS:,} of {len(listed):,} members.")
    if len(groups) > MOST_BANDS:
        found.append(f"There are bands of the first {MOST_BANDS} of {len(groups):,} settings.")
    if largest > MOST_IN_BAND:
        found.append(f"A band is of the first {MOST_IN_BAND} members of its settings, which up to {largest:,} share.")
    if len(listed) > MOST_REPORTS:
        found.append(f"The first {MOST_REPORTS} of {len(listed):,} members have a report of their own.")
    return found


def lineage(directory: Path, count: int) -> dict[str, Any] | None:
    """The decisions of a population."""
    if not population_file.is_population(directory):
        return None
    config = population_file.read(directory, count)
    rounds = population_file.read_lineage(directory, count)
    chosen = [rounds[i] for i in spread(len(rounds), MOST_ROUNDS)]

    def named(settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{printable(str(name))[:80]: value for name, value in each.items()} for each in settings]

    return {
        "steps": config.steps, "first": named(config.settings),
        "rounds": [
            {"round": each.round, "env_steps": each.env_steps, "parents": list(each.parents),
             "scores": list(each.scores), "settings": named(each.settings)}
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
        ratings = [report.ratings[key] for key in players]
        found.append({
            "role": printable(report.role), "players": [printable(key)[:80] for key in players],
            "opponents": [printable(key)[:80] for key in opponents],
            "scores": [[five_digits(float(score)) for score in row] for row in scores],
            "games": report.games(players, opponents),
            "ratings": [_rounded(each.rating) for each in ratings],
            "intervals": [[_rounded(each.low), _rounded(each.high)] for each in ratings],
        })  # fmt: skip
    return found


def _rounded(rating: float) -> float | None:
    return round(rating, 1) if math.isfinite(rating) else None
