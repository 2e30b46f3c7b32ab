"""The learning table and its picture, made from the raw results that `benchmarks/learning.py` keeps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Final

from scipy.stats import ttest_ind

from benchmarks._learning_results import Record, Run
from benchmarks._learning_tasks import PAIRS, SECTIONS, Task

BEGIN: Final = "<!-- made by benchmarks/learning.py: begin -->"
END: Final = "<!-- made by benchmarks/learning.py: end -->"


def judged(task: Task, record: Record) -> float | None:
    """The figure that must hold: of the last 100 episodes of training, or of greedy ones."""
    return (record["evaluation"] or {}).get("mean_return") if task.judged_by == "evaluation" else record["mean_return"]


# Tables


def filled(page: str, runs: Sequence[Run]) -> str:
    """The page with its tables made anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has no place for the tables; expected the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{tables(runs)}{END}{after}"


def tables(runs: Sequence[Run]) -> str:
    """Markdown: a table to each section that has results, and what the rows on a GPU took."""
    parts = []
    for title, tasks in SECTIONS.items():
        here = [run for run in runs if run.task in tasks]
        if here:
            parts.append(f"### {title}\n\n{_table(_COLUMNS, map(_row, here))}")
    if differences := list(_differences(runs)):
        parts.append(f"### Running ahead against waiting\n\n{_table(_PAIRED, differences)}")
    costly = [run for run in runs if run.task.on == "gpu"]
    if costly:
        parts.append(f"### What the rows on a GPU took\n\n{_table(_COSTS, map(_cost, costly))}")
    return "\n" + "\n".join(parts) + "\n" if parts else "\n"


_COLUMNS: Final = ("algorithm", "environment", "distribution", "steps", "return in training", "greedy", "target",
                   "seeds", "reached after", "published", "machine")  # fmt: skip
_PAIRED: Final = ("algorithm", "environment", "waits", "runs ahead", "difference, 95% confidence", "of the return",
                  "steps/s, waits", "steps/s, ahead", "ratio", "staleness", "machine")  # fmt: skip
_COSTS: Final = ("task", "distribution", "frames", "seconds", "steps/s", "CPU busy", "GPU busy", "bottleneck")


def _row(run: Run) -> tuple[str, ...]:
    task, records = run.task, list(run.seeds.values())
    held = sum(task.wanted.holds(judged(task, record)) for record in records)
    reached = median(record["reached_at"] or math.inf for record in records)  # one that never did counts as endless
    greedy = _spread((record["evaluation"] or {}).get("mean_return") for record in records)
    if task.also_played:
        also = [(record["also_played"]["evaluation"] or {}).get("mean_return") for record in records]
        greedy += f"; {', '.join(f'{name} {value}' for name, value in task.also_played.items())}: {_spread(also)}"
    return (
        task.title,
        f"`{task.environment}`",
        f"`{records[-1]['distribution']}`",
        f"{max(record['env_steps'] for record in records):,}",
        _spread(record["mean_return"] for record in records),
        greedy,
        str(task.wanted),
        f"{held} of {len(records)}",
        f"{reached:,.0f}" if reached < math.inf and task.judged_by == "training" else "",
        str(task.published),
        run.machine,
    )


def _differences(runs: Sequence[Run]) -> Iterator[tuple[str, ...]]:
    """A row for each pair of which both sides were run on one kind of machine."""
    found = {(run.task.name, run.machine): run for run in runs}
    for pair in PAIRS:
        for machine in dict.fromkeys(run.machine for run in runs):
            waits, ahead = (found.get((task.name, machine)) for task in pair)
            if waits is None or ahead is None:
                continue
            returns = [[judged(run.task, r) for r in run.seeds.values()] for run in (waits, ahead)]
            first, second = ([value for value in values if value is not None] for values in returns)
            rates = [fmean(r["steps_per_second"] for r in run.seeds.values()) for run in (waits, ahead)]
            most = max(r["staleness_max"] for r in ahead.seeds.values())
            old = fmean(r["staleness_mean"] for r in ahead.seeds.values())
            yield (
                pair.ahead.algorithm.upper(), f"`{pair.ahead.environment}`", _spread(first), _spread(second),
                *difference(first, second), *map(_whole, rates), f"{rates[1] / rates[0]:.2f}x",
                f"{old:.1f}, at most {most}", machine,
            )  # fmt: skip


def difference(first: Sequence[float], second: Sequence[float]) -> tuple[str, str]:
    """Of the means of two samples, by Welch's t: with its 95% confidence interval, and as shares of the first mean."""
    if not first or not second:
        return "", ""
    mean, whole = fmean(second) - fmean(first), abs(fmean(first))
    if min(len(first), len(second)) < 2:
        return f"{_short(mean)}, of one seed", f"{mean / whole:+.1%}"
    low, high = ttest_ind(second, first, equal_var=False).confidence_interval(0.95)
    return (
        f"{_short(mean)} [{_short(low)}, {_short(high)}]",
        f"{mean / whole:+.1%} [{low / whole:+.1%}, {high / whole:+.1%}]",
    )


def _cost(run: Run) -> tuple[str, ...]:
    records = list(run.seeds.values())

    def mean(name: str, field: str | None = None) -> float | None:
        values = [record.get(name) if field is None else (record.get(name) or {}).get(field) for record in records]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    return (
        f"`{run.task.name}`",
        f"`{records[-1]['distribution']}`",
        _whole((mean("env_steps") or 0) * run.task.frames),
        _whole(mean("wall_seconds")),
        _whole(mean("steps_per_second")),
        _percent(mean("busy", "cpu")),
        _percent(mean("busy", "gpu")),
        str(records[-1]["bottleneck"] or "").partition(" (")[0],
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _spread(values: Iterable[float | None]) -> str:
    """Mean and standard deviation over seeds."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    return f"{_short(fmean(known))} ± {_short(stdev(known))}" if len(known) > 1 else _short(known[0])


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


# The picture


def draw(runs: Sequence[Run], out: Path, columns: int = 3) -> None:
    """Learning curves in small multiples: one to each environment, a colour to each algorithm, a line to each seed."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    from runnel.reporting.plot import COLOURS

    environments = list(dict.fromkeys(run.task.environment for run in runs))
    if not environments:
        raise SystemExit("there are no results to draw; run the tasks first")
    columns = min(columns, len(environments))
    height = -(-len(environments) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.7 * height), layout="constrained")
    grid = figure.subplots(height, columns, squeeze=False).flatten()
    for axes in grid[len(environments) :]:
        axes.set_visible(False)
    for axes, environment in zip(grid, environments, strict=False):
        here = [run for run in runs if run.task.environment == environment]
        for number, run in enumerate(here):
            for index, record in enumerate(run.seeds.values()):
                label = None if index else run.task.title
                colour = COLOURS[number % len(COLOURS)]
                axes.plot(*zip(*record["curve"], strict=True), color=colour, linewidth=1.1, alpha=0.85, label=label)
        for level in {run.task.wanted.least for run in here if run.task.wanted.most > run.task.wanted.least > -1e9}:
            axes.axhline(level, color="#888888", linewidth=0.8, linestyle=":")
        axes.set_title(environment.rpartition("/")[2], loc="left", fontsize=9)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(left=0)
        axes.tick_params(labelsize=7, color="#888888")
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=6, loc="best")
    figure.supxlabel("environment steps", fontsize=9)
    figure.supylabel("mean return of the last 100 episodes", fontsize=9)
    figure.savefig(out, dpi=130)
