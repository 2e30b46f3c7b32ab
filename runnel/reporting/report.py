"""`report.html`: a run directory's view and the page that shows it, in one file that needs no network.

It is written at the end of a run, however that was, and a failure to write it changes nothing of the run.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError
from runnel.recording import members_file, run_directory
from runnel.reporting.group_view import MOST_REPORTS
from runnel.reporting.run_view import POINTS, run_view
from runnel.reporting.series import Series

FILE: Final = "report.html"
PAGE: Final = Path(__file__).parent / "page"
MODULES: Final = ("elements.js", "chart.js", "plan.js", "timeline.js", "sections.js", "panel.js", "report.js")
"""In the order in which they need each other. Their names at the top level are all different."""

MOST_NUMBERS: Final = 24_000
"""Of all curves together: with the rest, the file stays below 500 KB."""

LOOKS: Final = 16
"""How often a long record of metrics is read on: 256 MiB in all."""


def write(run_dir: Path) -> None:
    """Writes the report of a run, or those of a directory of several. Never fails: it may be missing."""
    with contextlib.suppress(Exception, KeyboardInterrupt):
        if members_file.holds_members(run_dir):
            with contextlib.suppress(UserError):  # the report of all says why
                for member in members_file.read(run_dir)[:MOST_REPORTS]:
                    path = run_dir / member.directory
                    if _is_due(path):
                        _write_one(path)
        _write_one(run_dir)


def _is_due(run_dir: Path) -> bool:
    """Whether a member has ended since its report was written: some write their own."""
    try:
        ended = os.stat(run_dir / "result.json", follow_symlinks=False).st_mtime_ns
    except OSError:
        return False
    try:
        return os.stat(run_dir / FILE, follow_symlinks=False).st_mtime_ns < ended
    except OSError:
        return True


def _write_one(run_dir: Path) -> None:
    with contextlib.suppress(Exception):
        run_directory.replace(run_dir, FILE, html(ended_view(run_dir)).encode(), durable=False)


def ended_view(run_dir: Path) -> dict[str, Any]:
    """The view of a run that has ended, though its lock may still be held."""
    series = Series(run_dir)
    for _ in range(LOOKS):
        before = series.seen
        with contextlib.suppress(OSError):
            series.read()
        if series.seen == before:
            break
    points = max(40, min(POINTS, MOST_NUMBERS // max(1, len(series.columns))))
    return run_view(run_dir, series, points=points, ended=True)


def html(view: Mapping[str, Any]) -> str:
    """The page of a report. What a run has written is data in it: `<` is escaped, so that nothing ends the element."""
    script, style = _script(), _style()
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'"
    data = json.dumps(view, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{escape(str(view.get("name", "run")))} - Runnel</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<header class="top"><span class="brand">Runnel</span><span class="dim">report</span></header>
<main id="main"></main>
<noscript>This page needs JavaScript.</noscript>
<script type="application/json" id="view">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


@functools.cache
def _script() -> str:
    """The modules of the page as one script."""
    text = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in MODULES)
    return re.sub(r"^import .*;\n", "", re.sub(r"^export ", "", text, flags=re.M), flags=re.M)


@functools.cache
def _style() -> str:
    return (PAGE / "style.css").read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
