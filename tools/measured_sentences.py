"""Writes sentences with measured numbers into docs/performance.md, from the newest results.

    python benchmarks/startup.py --only-lines
    python benchmarks/dash.py
    python tools/measured_sentences.py

The paragraph after `<!-- measured: NAME -->` is made from `benchmarks/results/NAME-*.json`. A test compares them.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
PARAGRAPH = re.compile(r"(<!-- measured: (\w+) -->\n)(.+?)(?=\n\n|\n*\Z)", re.S)


def newest(name: str, results: Path = RESULTS) -> dict[str, Any]:
    """The result of the latest date."""
    found = sorted(results.glob(f"{name}-*.json"), key=lambda path: path.stem[-len("2026-01-01") :])
    if not found:
        raise SystemExit(f"found no {name}-*.json in {results}; expected a result: run the script that measures it")
    return json.loads(found[-1].read_text())


def first_words(found: Mapping[str, Any]) -> str:
    """How long the help takes to its end, and training to its first line."""
    runs = list(found["first_words"]["commands"].values())
    help_s, help_cpu_s, line_s, line_cpu_s = (_median(each, what) for each in runs for what in ("wall_s", "cpu_s"))
    return (
        f"`runnel --help` ends after {help_s} s, {help_cpu_s} s of them processor time. The first line of\n"
        f"`runnel train` comes after {line_s} s, {line_cpu_s} s of them processor time\n"
        f"(`benchmarks/startup.py --only-lines`, {_where(found, len(runs[0]))})."
    )


def dash(found: Mapping[str, Any]) -> str:
    """How soon the page of runs is there."""
    opened = found["opened"]
    first_s, first_cpu_s, again_s = (_median(opened, what) for what in ("first_s", "first_cpu_s", "again_s"))
    return (
        f"`runnel dash` shows a directory of {found['runs']} runs, each with {found['lines']:,} lines of metrics,\n"
        f"{first_s} s after a browser opens its address for the first time, and {again_s} s after it is opened\n"
        f"again. The first time takes {first_cpu_s} s of processor time of server and browser (`benchmarks/dash.py`,\n"
        f"{_where(found, len(opened))})."
    )


SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {"first_words": first_words, "dash": dash}


def written(text: str, results: Path = RESULTS) -> str:
    """A page with the sentences as the newest results have them."""
    return PARAGRAPH.sub(lambda found: found[1] + SENTENCES[found[2]](newest(found[2], results)), text)


def _median(runs: list[dict[str, float]], what: str) -> str:
    return f"{statistics.median(run[what] for run in runs):.2f}"


def _where(found: Mapping[str, Any], runs: int) -> str:
    machine = found["machine"]
    python = ".".join(machine["python"].split(".")[:2])
    return f"medians of {runs} on {machine['cores']} cores, {machine['date']}, Python {python}"


def main() -> int:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
