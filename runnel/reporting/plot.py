"""A picture of learning curves: mean return, or another metric, over environment steps.

A run is a line; a directory of members is the interquartile mean of its members with a band around it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from runnel.errors import UserError, printable
from runnel.ops.episode_window import WINDOW
from runnel.recording.files import write_atomically
from runnel.recording.members_file import holds_members
from runnel.recording.population_file import is_population
from runnel.reporting import lineage
from runnel.reporting.bands import Band, read_bands
from runnel.reporting.curves import RETURN, Curve, labels, read_curve

FORMATS: Final = ("png", "svg", "pdf")
COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#999933")
"""Okabe and Ito's, which the colour-blind can distinguish."""

NOISY: Final = 8.0
"""A curve that goes up and down by this many times its own range is smoothed."""


def plot(
    run_dirs: Sequence[Path | str], out: Path | str, metric: str = RETURN,
    note: Callable[[str], None] = lambda text: None,
) -> Path:  # fmt: skip
    """Draws the runs into one picture and returns its path; the ending of `out` says what kind of picture.

    A directory of members is drawn as a band, or as one for each of their settings; a population alone, as its members
    with their settings and copies. `metric` is a name in
    metrics.jsonl, such as `env/is_success`, or one of evaluations, such as `eval/return`. `note` is called with what
    the user should know, such as that a member has no curve yet.
    """
    return save(out, lambda: _figure(run_dirs, metric, note))


def save(out: Path | str, draw: Callable[[], Any]) -> Path:
    """Writes the figure that `draw` returns; the ending of `out` says what kind of picture."""
    out = Path(out)
    kind = out.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise UserError(
            f"out={out}: found ending '{out.suffix}', expected .{', .'.join(FORMATS[:-1])} or .{FORMATS[-1]}",
            keywords=("out",),
        )
    if not out.absolute().parent.is_dir():
        raise UserError(f"out={out}: there is no directory {out.parent}; make it first", keywords=("out",))
    picture = io.BytesIO()
    draw().savefig(picture, format=kind, dpi=160)
    write_atomically(out, picture.getvalue())
    return out


def _figure(run_dirs: Sequence[Path | str], metric: str, note: Callable[[str], None]) -> Any:
    if len(run_dirs) == 1 and is_population(run_dirs[0]):
        found = lineage.read(run_dirs[0], metric, note)
        return lineage.draw(found, "mean return" if metric == RETURN else _label(metric), plain)
    drawn: list[Curve | Band] = []
    for run_dir in run_dirs:
        drawn += read_bands(run_dir, metric, note) if holds_members(run_dir) else [read_curve(run_dir, metric)]
    return _draw(drawn, metric)


def _label(metric: str) -> str:
    return f"mean return of the last {WINDOW} episodes" if metric == RETURN else printable(metric)


def plain(text: str) -> str:
    """As matplotlib draws it letter by letter: between two dollars it would read a formula."""
    return text.replace("$", r"\$")


def _draw(drawn: Sequence[Curve | Band], metric: str) -> Any:
    # The object-oriented way: pyplot would look for a display and keep every figure.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.subplots()
    curves = [each.line if isinstance(each, Band) else each for each in drawn]
    shared, labelled = labels(curves)
    for number, (each, curve) in enumerate(zip(drawn, curves, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        style = ("-", "--", ":", "-.")[number // len(COLOURS) % 4]
        label = plain(labelled[number]) or None
        smooth = curve.values if isinstance(each, Band) else smoothed(curve.values)
        if isinstance(each, Band):
            # Of a single point, an area would have no width.
            width = 0 if len(curve.env_steps) > 1 else 6
            axes.fill_between(curve.env_steps, each.low, each.high, color=colour, alpha=0.2, linewidth=width)
        if smooth is not curve.values:
            axes.plot(curve.env_steps, curve.values, color=colour, alpha=0.25, linewidth=0.8)
        marker = "o" if len(curve.env_steps) == 1 else None
        axes.plot(curve.env_steps, smooth, color=colour, linestyle=style, linewidth=1.8, label=label, marker=marker)
    axes.set_title(plain(shared), loc="left", fontsize=11)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(plain(_label(metric)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#888888")
    axes.tick_params(color="#888888")
    if any(labelled):
        axes.legend(frameon=False, fontsize=9, loc="best")
    return figure


def smoothed(values: np.ndarray) -> np.ndarray:
    """The curve itself, or a running mean over 1/30 of it where it jumps about."""
    span = np.ptp(values)
    if len(values) < 30 or np.abs(np.diff(values)).sum() <= NOISY * span:
        return values
    width = max(3, len(values) // 30) | 1
    padded = np.pad(values, width // 2, mode="edge")
    return np.convolve(padded, np.ones(width) / width, mode="valid")
