"""A run in a few words, as the list of runs shows it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final

from runnel.recording import members_file, run_directory, run_lock, stacks
from runnel.recording.members_file import Member
from runnel.recording.metrics import FILE as METRICS
from runnel.reporting import group_progress, group_view
from runnel.reporting.run_facts import UNREADABLE, about, plain, result, status, text
from runnel.reporting.series import five_digits, glance, number

SPARK: Final = 40
FIRST: Final = tuple(f"{name}/{METRICS}" for name in ("member-0", "member-00", "member-000", "stack-0"))
FILES: Final = ("config.json", "result.json", METRICS, members_file.FILE, run_lock.FILE, *FIRST)
"""What it is made of."""


def summary(directory: Path) -> dict[str, Any]:
    """A run in a few words: what it is of, how far it is, and its learning curve."""
    several = members_file.holds_members(directory)
    listed: list[Member] = []
    first, members, recorded = directory, 0, METRICS
    if several:
        listed = members_file.read(directory)
        members, first = len(listed), directory / listed[0].directory
        inside = stacks.name_of(0) if run_directory.exists(directory, stacks.FILE) else listed[0].directory
        recorded = f"{inside}/{METRICS}"
    ended: dict[str, Any] = {}
    with contextlib.suppress(*UNREADABLE):
        ended = result(directory)
    of = about(first)
    seen = glance(directory, recorded)
    now = {**seen.last, **ended} if ended else seen.last
    reached = now.get("mean_return")
    if several:
        running = status(directory, ended) == "running"
        now, reached = ended, ended.get("iqm_return")
        if running or not ended:
            found = group_progress.standings(directory, listed[: group_view.MOST_MEMBERS], running)
            now = group_progress.now(found, members, None)
            reached = now.get("median_return")
    changed = max(
        (os.stat(directory / name, follow_symlinks=False).st_mtime for name in _files(directory)), default=0.0
    )
    return {
        "name": text(directory.name),
        "kind": group_view.kind(directory) if several else "run",
        "members": members,
        **{key: of[key] for key in ("algorithm", "environment", "distribution")},
        "status": plain(ended.get("status")),
        "env_steps": number(now.get("env_steps")),
        "return": number(reached),
        "steps_per_second": number(now.get("steps_per_second")),
        "changed": changed,
        "curve": [[point[0], five_digits(point[1])] for point in seen.returns[:: max(1, len(seen.returns) // SPARK)]],
    }


def _files(directory: Path) -> list[str]:
    names = ("config.json", "result.json", METRICS, members_file.FILE)
    return [name for name in names if run_directory.exists(directory, name)]
