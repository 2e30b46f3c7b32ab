"""What `runnel versus` and `runnel policies --payoffs` print."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.reporting.number_words import short
from runnel.reporting.payoff_report import PayoffReport, evenly_spaced

SHOWN: Final = 12
"""Rows and columns of a table of scores."""


# Two policies


def versus_lines(found: Mapping[str, Any]) -> list[str]:
    lines = [f"A against B on {found['environment']}, seed {found['seed']}"]
    for side in ("a", "b"):
        each = found[side]
        what = f"{each['algorithm']}, version {each['version']}, {each['env_steps']:,} steps"
        lines.append(f"  {side.upper()}  {each['policy']}  ({what})")
    lines.append(f"  {_how(found)}")
    rows = [["A's seat", "games", "wins", "draws", "losses", "score", "95% interval", "return"]]
    rows += [_row(each["seat"], each) for each in (*found["seats"], {**found, "seat": "all"})]
    return [*lines, *aligned(rows)]


def _how(found: Mapping[str, Any]) -> str:
    count, moves = found["openings"], found["opening_moves"]
    begin = "1 opening" if count == 1 else f"{count} openings"
    openings = f"{begin} of {'1 random move' if moves == 1 else f'{moves} random moves'}" if count else ""
    if not found["deterministic"]:
        acting = "acting as in training" if found["explore"] else "acting greedily"
        return f"{acting}, {openings}, each from every seat" if openings else f"{acting}, each deal from every seat"
    if openings:
        return f"{openings}: players are deterministic, so each opening was played once per seat"
    return "players and game are deterministic: played once per seat; --openings N plays different games"


def _row(seat: str, each: Mapping[str, Any]) -> list[str]:
    low_high = each["interval"]
    interval = "-" if low_high is None else f"{low_high[0]:.3f} to {low_high[1]:.3f}"
    counts = [f"{each[name]:,}" for name in ("games", "wins", "draws", "losses")]
    return [seat, *counts, f"{each['score']:.3f}", interval, short(each["mean_return"])]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    right = [[cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)] for row in rows]
    return ["  ".join(["", row[0].ljust(widths[0]), *cells]) for row, cells in zip(rows, right, strict=True)]


# A run's payoffs


def payoff_lines(report: PayoffReport) -> list[str]:
    players, opponents = evenly_spaced(report.players, SHOWN), evenly_spaced(report.opponents, SHOWN)
    role = f"{report.role}: " if report.role else ""
    head = f"{role}scores of rows against columns (wins and half the draws; - without games)"
    several = [
        f"{len(shown)} of {len(every)} {what}"
        for what, shown, every in (("players", players, report.players), ("opponents", opponents, report.opponents))
        if len(shown) < len(every)
    ]
    lines = [head, *([f"shown: {', '.join(dict.fromkeys(several))}, evenly spaced"] if several else [])]
    scores = report.scores(players, opponents)
    names = [_short_key(key) for key in opponents]
    cells = [[_score(value) for value in row] for row in scores]
    lines += aligned([["", *names], *([_short_key(key), *row] for key, row in zip(players, cells, strict=True))])
    lines += ["", f"{role}ratings (400 more is ten times the odds; {_short_key(report.anchor)} has 0)"]
    rows = [["", "steps", "rating", "95% interval", "games"]]
    for key in players:
        rated, steps = report.ratings[key], report.env_steps.get(key)
        known = math.isfinite(rated.rating)
        interval = f"{rated.low:.0f} to {rated.high:.0f}" if known else "-"
        rows.append([
            _short_key(key), "-" if steps is None else f"{steps:,}", f"{rated.rating:.0f}" if known else "-", interval,
            f"{rated.games:,.0f}",
        ])  # fmt: skip
    return [*lines, *aligned(rows), ""]


def _score(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _short_key(key: str) -> str:
    return key if len(key) <= 32 else f"...{key[-29:]}"


def payoffs_json(found: Sequence[PayoffReport], run_dir: Path) -> dict[str, Any]:
    return {"run_dir": str(run_dir), "roles": [_json(report) for report in found]}


def _json(report: PayoffReport) -> dict[str, Any]:
    return {
        "role": report.role,
        "players": list(report.players),
        "opponents": list(report.opponents),
        "scores": [
            [_finite(value) for value in row] for row in report.scores(report.players, report.opponents).tolist()
        ],
        "games": report.games(report.players, report.opponents),
        "anchor": report.anchor,
        "ratings": [
            {
                "player": key,
                "env_steps": report.env_steps.get(key),
                **{name: _finite(value) for name, value in report.ratings[key]._asdict().items()},
            }
            for key in report.players
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
