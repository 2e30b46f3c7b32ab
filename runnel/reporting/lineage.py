"""A picture of a population: what its members reached, and the settings they did it with, with all copies.

The ancestors of the member that is best in the end are drawn in a colour: the line that led to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.errors import UserError
from runnel.recording import members_file, population_file
from runnel.recording.population_file import Round
from runnel.reporting.curves import Curve, NoCurve, read_curve

MOST_PANELS: Final = 4
"""So many settings are drawn."""

BEST, OTHERS, COPY = "#d55e00", "#9a9a9a", "#0072b2"

WIDE: Final = 10.0
"""Settings whose highest value is so many times their lowest are drawn by their logarithms."""


class Lineage(NamedTuple):
    """A population as it is drawn."""

    curves: list[Curve | None]  # [M] of a metric; None where a member has none yet
    rounds: list[Round]
    settings: list[list[dict[str, float]]]  # [R + 1][M] from the beginning, and from each decision on
    best: int | None  # the member that is best in the end
    env_steps: list[int]  # [R + 2] where each of these begins, and where the last one ends

    @property
    def names(self) -> list[str]:
        """The settings that differ somewhere."""
        known = dict.fromkeys(name for now in self.settings for one in now for name in one)
        return [n for n in known if len({one.get(n) for now in self.settings for one in now}) > 1][:MOST_PANELS]

    def ancestors(self) -> list[int]:
        """[R + 1] whose learner state the best member's became, in each stretch; nothing without a best member."""
        if self.best is None:
            return []
        line = [self.best]
        for each in reversed(self.rounds):
            line.append(each.parents[line[-1]])
        return line[::-1]


def read(directory: Path | str, metric: str, note: Callable[[str], None] = lambda text: None) -> Lineage:
    members = members_file.read(directory)
    config = population_file.read(directory, len(members))
    rounds = population_file.read_lineage(directory, len(members))
    curves: list[Curve | None] = []
    for member in members:
        try:
            curves.append(read_curve(Path(directory) / member.directory, metric))
        except NoCurve:
            curves.append(None)
            note(f"{directory}: {member.directory} has no curve yet")
    known = [curve for curve in curves if curve is not None]
    if not known:
        raise UserError(f"no member of {directory} has a curve yet; let it train for longer")
    end = max(int(curve.env_steps[-1]) for curve in known)
    marks = [0, *(each.env_steps for each in rounds), max([end, *(each.env_steps for each in rounds)])]
    settings = [config.settings, *(each.settings for each in rounds)]
    return Lineage(curves, rounds, settings, _best(directory, len(members)), marks)


def _best(directory: Path | str, members: int) -> int | None:
    best = members_file.read_result(directory).get("best")
    found = best.get("member") if isinstance(best, dict) else None
    return found if type(found) is int and 0 <= found < members else None


def draw(lineage: Lineage, label: str, plain: Callable[[str], str]) -> Any:
    """The picture. `label` is that of the metric; `plain` makes a text what is drawn letter by letter."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    panels = 1 + len(lineage.names)
    figure = Figure(figsize=(7.2, 2.6 + 1.7 * (panels - 1)), layout="constrained")
    above, *below = figure.subplots(
        panels, 1, sharex=True, squeeze=False, height_ratios=[2.0, *[1.3] * (panels - 1)]
    ).ravel()
    _draw_returns(above, lineage, plain(label))
    names = next(curve.names for curve in lineage.curves if curve is not None)
    above.set_title(plain(", ".join([*names, f"{len(lineage.curves)} members"])), loc="left", fontsize=11)
    for axes, setting in zip(below, lineage.names, strict=True):
        _draw_setting(axes, lineage, setting)
        axes.set_ylabel(plain(setting))
    for axes in (above, *below):
        axes.grid(color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    last = (above, *below)[-1]
    last.set_xlabel("environment steps of each member")
    last.xaxis.set_major_formatter(EngFormatter(sep=""))
    last.set_xlim(left=0)
    above.legend(frameon=False, fontsize=9, loc="best")
    return figure


def _draw_returns(axes: Any, lineage: Lineage, label: str) -> None:
    line, marks = lineage.ancestors(), lineage.env_steps
    for number, curve in enumerate(lineage.curves):
        if curve is not None:
            shown = "members" if number == 0 else None
            axes.plot(curve.env_steps, curve.values, color=OTHERS, linewidth=0.8, alpha=0.8, label=shown)
    for stretch, member in enumerate(line):
        curve = lineage.curves[member]
        if curve is None:
            continue
        shown = "ancestors of the best" if stretch == len(line) - 1 else None
        steps, values = _between(curve, marks[stretch], marks[stretch + 1])
        axes.plot(steps, values, color=BEST, linewidth=2.0, label=shown)
    for number, each in enumerate(lineage.rounds):
        copied = [each.scores[parent] for _, parent in each.copied if each.scores[parent] is not None]
        shown = "copied" if number == 0 else None
        axes.scatter([each.env_steps] * len(copied), copied, color=COPY, s=14, zorder=3, label=shown)
    axes.set_ylabel(label)


def _between(curve: Curve, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """A part of a curve, up to its very ends: points of the curve need not lie on them."""
    order = np.argsort(curve.env_steps, kind="stable")
    steps, values = curve.env_steps[order], curve.values[order]
    inside = (steps > start) & (steps < end)
    ends = np.array([max(start, steps[0]), min(end, steps[-1])])
    if ends[0] > ends[1]:
        return steps[:0], values[:0]
    at = np.concatenate([ends[:1], steps[inside], ends[1:]])
    return at, np.interp(at, steps, values)


def _draw_setting(axes: Any, lineage: Lineage, name: str) -> None:
    marks, line = lineage.env_steps, lineage.ancestors()
    values = np.array([[one.get(name, np.nan) for one in now] for now in lineage.settings])  # [R + 1, M]
    for member in range(values.shape[1]):
        axes.stairs(values[:, member], marks, baseline=None, color=OTHERS, linewidth=0.8)
    for stretch, member in enumerate(line):
        axes.plot(marks[stretch : stretch + 2], [values[stretch, member]] * 2, color=BEST, linewidth=2.0)
    for number, each in enumerate(lineage.rounds):
        for member, parent in each.copied:
            between = [values[number, parent], values[number + 1, member]]
            axes.plot([each.env_steps] * 2, between, color=COPY, linewidth=0.8, marker=".", markersize=4)
    if _is_wide(values.ravel()):
        axes.set_yscale("log")


def _is_wide(values: Sequence[float] | np.ndarray) -> bool:
    found = np.asarray(values)[np.isfinite(values)]
    return len(found) > 0 and found.min() > 0 and found.max() >= WIDE * found.min()
