"""A sweep for people: a table of its best trials, and a picture of what each setting does."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.config.search_space import Choice, LogUniform, Space
from runnel.config.settings import default_text
from runnel.errors import printable
from runnel.recording.files import write_atomically
from runnel.reporting.number_words import duration, short
from runnel.reporting.run_summary import to_look_at

SHOWN: Final = 10
"""Trials in the table."""

PICTURE: Final = "sweep.svg"
COLOURS: Final = {"complete": "#0072b2", "pruned": "#999999", "failed": "#d55e00"}


def ranked(trials: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The best first: those that were trained furthest, then by their objective, then by their number."""
    return sorted(trials, key=lambda t: (-t["steps"], t["objective"] is None, -(t["objective"] or 0.0), t["trial"]))


def table(trials: Sequence[Mapping[str, Any]], most: int = SHOWN) -> list[str]:
    """Lines of a table, the best trials first."""
    if not trials:
        return []
    names = [*trials[0]["settings"]]
    rows = [["trial", "objective", "steps", "status", *names]]
    for trial in ranked(trials)[:most]:
        value = "-" if trial["objective"] is None else short(trial["objective"])
        settings = [setting_text(trial["settings"][name]) for name in names]
        rows.append([str(trial["trial"]), value, f"{trial['steps']:,}", trial["status"], *settings])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    more = len(trials) - most
    return [*lines, f"and {more} more in result.json"] if more > 0 else lines


def setting_text(value: Any) -> str:
    return short(value) if isinstance(value, float) else default_text(value)


def sweep_summary(result: Mapping[str, Any], run_dir: Path | str) -> str:
    """What is printed when a sweep has ended."""
    trials, asked = result["trials"], result["trials_asked"]
    begun = f"{len(trials)} of {asked} trials" if len(trials) < asked else f"{asked} trial{'s' * (asked != 1)}"
    what = f"{result['algorithm']} on {result['environment']}, " if "algorithm" in result else ""
    lines = [f"{result['status']}: sweep of {what}{begun}", *(f"  {line}" for line in table(trials))]
    best, winner = result["best"], result["winner"]
    if best is not None:
        settings = ", ".join(f"{name}={setting_text(value)}" for name, value in best["settings"].items())
        lines.append(f"  best        trial {best['trial']}: {settings}")
    if winner is not None and winner.get("iqm_return") is not None and winner["finished"] == len(winner["seeds"]):
        low, high = map(short, winner["iqm_interval"])
        lines.append(
            f"  winner      {short(winner['iqm_return'])} ({low} to {high}, 95%), interquartile mean of "
            f"{len(winner['seeds'])} unseen seeds"
        )
    lines.append(f"  steps       {result.get('env_steps', 0):,} in {duration(result['wall_seconds'])}")
    if result.get("reason"):
        lines.append(f"  reason      {result['reason']}")
    lines += [f"  sweep       {run_dir}", *to_look_at(run_dir)]
    quoted = shlex.quote(str(run_dir))
    if best is not None and result["status"] == "finished":
        lines.append(f"  train by    runnel train --config {quoted}/best.json")
    if result["status"] != "finished":
        lines.append(f"  resume by   runnel resume {quoted}")
    return printable("\n".join(lines))


def draw(space: Space, trials: Sequence[Mapping[str, Any]], run_dir: Path) -> Path:
    """Draws the objective over each setting, a point for every trial."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(4.2, 3.0 * len(space)), 3.6), layout="constrained")
    panels = figure.subplots(1, len(space), sharey=True, squeeze=False)[0]
    for axes, (name, values) in zip(panels, space.items(), strict=True):
        places = {repr(value): i for i, value in enumerate(values.values)} if isinstance(values, Choice) else None
        for status, colour in COLOURS.items():
            own = [t for t in trials if t["status"] == status and t["objective"] is not None]
            if not own:
                continue
            at = [t["settings"][name] if places is None else places[repr(t["settings"][name])] for t in own]
            axes.scatter(at, [t["objective"] for t in own], s=18, color=colour, alpha=0.8, label=status)
        if isinstance(values, Choice):
            labels = [default_text(value)[:20].replace("$", r"\$") for value in values.values]
            axes.set_xticks(range(len(values.values)), labels)
        elif isinstance(values, LogUniform):
            axes.set_xscale("log")
        axes.set_xlabel(name.replace("$", r"\$"))
        axes.grid(color="#e4e4e4", linewidth=0.7)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("objective: mean return of the seeds")
    handles, labels = panels[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, frameon=False, fontsize=8, ncols=len(labels), loc="outside upper right")
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    write_atomically(run_dir / PICTURE, picture.getvalue())
    return run_dir / PICTURE
