"""A picture of who scored what against whom, and of ratings over environment steps with their 95% intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from runnel.errors import printable
from runnel.reporting.payoff_report import PayoffReport, evenly_spaced, read_payoffs
from runnel.reporting.plot import COLOURS, plain, save

MOST: Final = 64
"""Players along a side of the matrix; of more, evenly spaced ones are drawn."""
LABELLED: Final = 12
"""Players whose names are drawn along a side."""


def plot_payoffs(run_dir: Path | str, out: Path | str) -> Path:
    """Draws the results of a run and returns the path of the picture, whose ending says of what kind it is."""
    return save(out, lambda: _draw(read_payoffs(run_dir)))


def _draw(reports: Sequence[PayoffReport]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.4, 4.6 * len(reports)), layout="constrained")
    axes = figure.subplots(len(reports), 2, squeeze=False)
    for report, (left, right) in zip(reports, axes, strict=True):
        _draw_scores(figure, left, report)
        _draw_ratings(right, report)
    return figure


def _draw_scores(figure: Any, axes: Any, report: PayoffReport) -> None:
    rows, columns = evenly_spaced(report.players, MOST), evenly_spaced(report.opponents, MOST)
    drawn = axes.imshow(report.scores(rows, columns), vmin=0, vmax=1, cmap="RdBu", aspect="auto")
    axes.set_facecolor("#c8c8c8")  # where there are no games
    figure.colorbar(drawn, ax=axes, label="score of the row")
    several = len(rows) < len(report.players)
    shown = f", {len(rows)} of {len(report.players)} policies" if several else ""
    axes.set_title(_titled(f"scores{shown}", report), loc="left", fontsize=11)
    for keys, ticks, named in ((rows, axes.set_yticks, True), (columns, axes.set_xticks, False)):
        places = np.unique(np.linspace(0, len(keys) - 1, min(len(keys), LABELLED)).round().astype(int))
        labels = [_label(keys[k]) for k in places]
        ticks(places, labels, fontsize=7, **({} if named else {"rotation": 45, "ha": "right"}))


def _draw_ratings(axes: Any, report: PayoffReport) -> None:
    from matplotlib.ticker import EngFormatter

    own = [key for key in report.players if key in report.env_steps and np.isfinite(report.ratings[key].rating)]
    groups = sorted({key.rpartition(":")[0] for key in own})
    for group, colour in zip(groups, np.resize(COLOURS, len(groups)), strict=True):
        keys = [key for key in own if key.rpartition(":")[0] == group]
        steps = [report.env_steps[key] for key in keys]
        found = [report.ratings[key] for key in keys]
        axes.fill_between(
            steps, [each.low for each in found], [each.high for each in found], color=colour, alpha=0.2, linewidth=0
        )
        marker = "o" if len(keys) <= 32 else None
        axes.plot(
            steps, [each.rating for each in found], color=colour, linewidth=1.8, marker=marker, markersize=3,
            label=plain(printable(group)),
        )  # fmt: skip
    others = [key for key in report.players if key not in report.env_steps]
    for key in [key for key in others if np.isfinite(report.ratings[key].rating)]:
        axes.axhline(report.ratings[key].rating, color="#444444", linestyle="--", linewidth=1, label=_label(key))
    axes.set_title(_titled("ratings, with 95% intervals", report), loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(f"rating ({_label(report.anchor)} has 0)")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if len(groups) + len(others) > 1:
        axes.legend(frameon=False, fontsize=8, loc="best")


def _titled(text: str, report: PayoffReport) -> str:
    return plain(printable(f"{report.role}: {text}" if report.role else text))


def _label(key: str) -> str:
    """Long names of other runs' policies by their end."""
    return plain(printable(key if len(key) <= 24 else f"...{key[-21:]}"))
