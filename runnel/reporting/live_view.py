"""What a user sees of a run: a live view on a terminal, plain lines elsewhere, and a summary at the end.

They are in one module because they show the same numbers: how a count, a rate or a time is written, and which numbers
are shown in which order, is the same in all of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TextIO

from runnel.errors import printable
from runnel.ops.episodes import WINDOW
from runnel.reporting.bottleneck import label
from runnel.reporting.statistics import flat
from runnel.runtime.usage import UsageReport
from runnel.system import startup

PLAIN_EVERY_S: Final = 2.0
LOSSES: Final = 4
"""How many of the numbers that learning gives out are shown."""

ENV_METRICS: Final = 3
"""How many metrics of the environment are shown."""


class LiveView(contextlib.AbstractContextManager["LiveView"]):
    """How a run is doing, while it runs.

    with LiveView(500_000, quiet=False, title="ppo on CartPole-v1") as view:
        view.update(record, report)
        view.note("checkpoint written")
    """

    def __init__(
        self,
        total_steps: int | None,
        quiet: bool = False,
        title: str = "",
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Without `total_steps` (a run that ends by its return) there is no time left to show."""
        stream = stream or sys.stdout
        view: _View
        if quiet or stream is None:
            view = _Nothing()
        elif stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            view = _Terminal(total_steps, title, forgiving(stream))
        else:
            view = _Lines(total_steps, title, forgiving(stream), clock)
        self._view = view

    def update(self, record: Mapping[str, Any], report: UsageReport | None = None) -> None:
        """Shows a record of metrics and, of several workers, how they fare."""
        self._view.update(record, report or UsageReport())

    def note(self, text: str) -> None:
        """Says something once, such as that a checkpoint was written."""
        self._view.note(text)

    def starting(self, text: str) -> None:
        """Says what a run is at, before there is progress to show."""
        self._view.starting(text)

    def event(self, text: str) -> None:
        """Says what broke and what was done about it; the last such line stays in sight."""
        self._view.event(text)

    @contextlib.contextmanager
    def pausing(self, text: str) -> Iterator[None]:
        """Around what training waits for: a terminal shows it where time left is shown."""
        self._view.doing(text)
        try:
            yield
        finally:
            self._view.doing("")

    def __enter__(self) -> Self:
        self._view.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._view.stop()


class _Forgiving:
    """A stream that may be gone (a closed terminal, a broken pipe, a full disk): no reason to stop a run of days."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def forgiving(stream: TextIO) -> Any:
    """A stream that can always be written to, even after its reader is gone."""
    return _Forgiving(stream)


class _View:
    """Shows nothing; the others show more."""

    def start(self) -> None: ...

    def update(self, record: Mapping[str, Any], report: UsageReport) -> None: ...

    def note(self, text: str) -> None: ...

    def starting(self, text: str) -> None:
        self.note(text)

    def event(self, text: str) -> None:
        self.note(text)

    def doing(self, text: str) -> None: ...

    def stop(self) -> None: ...


class _Nothing(_View):
    """For `--quiet`."""


class _Lines(_View):
    """A line now and then, for logs."""

    def __init__(self, total_steps: int | None, title: str, stream: TextIO, clock: Callable[[], float]):
        self._total, self._title, self._stream, self._clock = total_steps, title, stream, clock
        self._shown_at = -math.inf
        self._pending: tuple[Mapping[str, Any], UsageReport] | None = None

    def start(self) -> None:
        if self._title:
            self._print(self._title)

    def update(self, record: Mapping[str, Any], report: UsageReport) -> None:
        self._pending = (record, report)
        if self._clock() - self._shown_at >= PLAIN_EVERY_S:
            self._show()

    def note(self, text: str) -> None:
        self._print(text)

    def stop(self) -> None:
        self._show(last=True)

    def _show(self, last: bool = False) -> None:
        if self._pending is None:
            return
        (record, report), self._pending = self._pending, None
        self._shown_at = self._clock()
        steps = int(record.get("env_steps") or 0)
        workers = shares(record, report)
        words = [_steps(steps, self._total), *numbers(record, LOSSES // 2 if workers else LOSSES), *workers]
        left = seconds_left(record, self._total)
        if left and not last:
            words.append(f"{duration(left)} left")
        self._print("  ".join(words))

    def _print(self, text: str) -> None:
        print(printable(text), file=self._stream, flush=True)
        startup.shown()


class _Terminal(_View):
    """A progress bar with time left, and under it the numbers and the workers."""

    def __init__(self, total_steps: int | None, title: str, stream: TextIO):
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._total, self._title = total_steps, title
        self._event = ""
        self._bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[steps]}"),
            TextColumn("[cyan]{task.fields[left]}"),
            expand=True,
        )
        self._task = self._bar.add_task("", total=total_steps, steps="starting", left="")
        self._live = Live(self._bar, console=Console(file=stream), refresh_per_second=8)

    def start(self) -> None:
        if self._title:
            self.note(self._title)
        self._live.start()

    def update(self, record: Mapping[str, Any], report: UsageReport) -> None:
        from rich.console import Group
        from rich.text import Text

        steps = int(record.get("env_steps") or 0)
        left = seconds_left(record, self._total)
        self._bar.update(
            self._task,
            completed=min(steps, self._total) if self._total else steps,
            steps=_steps(steps, self._total),
            left=f"{duration(left)} left" if left else "",
        )
        line = Text(printable("  " + "  ".join(numbers(record))), no_wrap=True, overflow="ellipsis")
        workers = [Text(printable(f"  {text}"), no_wrap=True, overflow="ellipsis") for text in table(record, report)]
        events = [Text(f"  last event: {self._event}", no_wrap=True, overflow="ellipsis")] if self._event else []
        self._live.update(Group(self._bar, line, *workers, *events))

    def event(self, text: str) -> None:
        self._event = printable(text)
        self.note(text)

    def doing(self, text: str) -> None:
        self._bar.update(self._task, left=printable(text))
        self._live.refresh()

    def note(self, text: str) -> None:
        self._live.console.print(printable(text), markup=False, highlight=False)

    def stop(self) -> None:
        self._bar.update(self._task, left="")  # it has ended
        self._live.stop()


def numbers(record: Mapping[str, Any], losses: int = LOSSES) -> list[str]:
    """The numbers of a record worth a line: return, metrics of the environment, speed, losses."""
    words = []
    mean_return = record.get("mean_return")
    spread = record.get("return_quartiles")  # of several runs
    text = "return -" if mean_return is None else f"return {short(mean_return)}"
    words.append(f"{text} ({short(spread[0])} to {short(spread[1])})" if spread else text)
    if record.get("eval/return") is not None:
        words.append(f"eval {short(record['eval/return'])}")
    groups = {name: value for name, value in record.items() if name.startswith("return/") and value is not None}
    words += [f"{name.removeprefix('return/')} {short(value)}" for name, value in groups.items()]
    words += _of_environment({n.removeprefix("env/"): value for n, value in record.items() if n.startswith("env/")})
    if record.get("steps_per_second"):
        words.append(f"{rate(record['steps_per_second'])} steps/s")
    if record.get("restarts"):
        words.append(f"restarts {record['restarts']}")
    learnt = [(name.removeprefix("learn/"), value) for name, value in record.items() if name.startswith("learn/")]
    # Losses first: they are what people look for.
    learnt.sort(key=lambda pair: "loss" not in pair[0])
    words += [f"{name} {short(value)}" for name, value in learnt[:losses] if value is not None]
    return words


def _of_environment(metrics: Mapping[str, Any]) -> list[str]:
    """A few metrics of the environment, rates of success first."""
    known = [name for name, value in metrics.items() if value is not None]
    known.sort(key=lambda name: name.rpartition("/")[2] != "is_success")
    return [f"{name} {short(metrics[name])}" for name in known[:ENV_METRICS]]


def shares(record: Mapping[str, Any], report: UsageReport) -> list[str]:
    """In a few words: how busy workers are, and how stale what is learnt from. Nothing of a worker alone."""
    roles = report.shares()
    if len(report.workers) < 2 or not roles:
        return []
    words = ["busy " + " ".join(f"{share.role} {share.busy:.0%}" for share in roles)]
    return words + ([f"staleness {short(record['staleness_mean'])}"] if record.get("staleness_mean") else [])


def table(record: Mapping[str, Any], report: UsageReport) -> list[str]:
    """A line for every role, one for streams and one for staleness. Nothing of a worker alone."""
    roles = report.shares()
    if len(report.workers) < 2 or not roles:
        return []
    names = [label(share.role, share.replicas) for share in roles]
    wide = max(len(name) for name in names)
    lines = []
    for name, share in zip(names, roles, strict=True):
        what = "steps" if any(w.role == share.role and w.env_steps is not None for w in report.workers) else "updates"
        speed = "" if share.per_second is None else f"  {rate(share.per_second)} {what}/s"
        waits = f"  waits for {share.cause}" if share.cause and share.busy < 0.995 else ""
        counts = Counter(worker.host for worker in report.workers if worker.role == share.role and worker.host)
        on = f"  on {_each(counts)}" if counts else ""
        lines.append(f"{name:<{wide}}  busy {share.busy:4.0%}{speed}{on}{waits}")
    if report.streams:
        lines.append("streams filled: " + ", ".join(map(str, report.streams)))
    if record.get("staleness_max"):
        lines.append(f"staleness {short(record['staleness_mean'])}, highest {record['staleness_max']}")
    return lines


def evaluation_line(found: Mapping[str, Any], metric: str | None = None) -> str:
    """An evaluation in one line. `metric`: that by which policies are compared, where it is not the return."""
    low, high = found["return_interval"]
    name = (metric or "return").removeprefix("min:")
    value = flat(found, "").get(name)
    also = "" if name == "return" else f", {name} {'-' if value is None else short(value)}"
    return (
        f"evaluated at {found['env_steps']:,} steps: return {short(found['mean_return'])} "
        f"({short(low)} to {short(high)}){also}, {_count(found['episodes'], 'episode')}"
    )


def _best_line(best: Mapping[str, Any], run_dir: Path | str) -> list[str]:
    """The best evaluation of a result; nothing where a file holds something else in its place."""
    found, at, score = (best.get(name) for name in ("mean_return", "env_steps", "score"))
    if not isinstance(found, int | float) or not isinstance(at, int):
        return []
    by = f", score {short(score)}," if isinstance(score, int | float) and score != found else ""
    return [f"  evaluated   {short(found)}{by} at {at:,} steps: {run_dir}@best"]


def seconds_left(record: Mapping[str, Any], total_steps: int | None) -> float | None:
    """By the present speed; None where it is not known."""
    speed = record.get("steps_per_second")
    if not speed or total_steps is None:
        return None
    return max(0.0, total_steps - (record.get("env_steps") or 0)) / speed


def summary(result: Mapping[str, Any], run_dir: Path | str | None = None) -> str:
    """What is printed when a run ends: how it went, where it is, how to go on."""
    status, mean_return = result.get("status"), result.get("mean_return")
    run_dir = run_dir or result.get("run_dir")
    lines = [
        f"{status}: {result.get('algorithm')} on {result.get('environment')}, "
        f"{result.get('distribution')}, seed {result.get('seed')}"
    ]
    if mean_return is None:
        lines.append("  return      no episode ended")
    else:
        episodes = min(WINDOW, result.get("episodes") or WINDOW)
        over = "the last episode" if episodes == 1 else f"the last {episodes} episodes"
        lines.append(f"  return      {short(mean_return)}, mean of {over}")
        lines += [f"    {group:<10}{short(value)}" for group, value in result.get("group_returns", {}).items()]
        reported = _of_environment(result.get("env") or {})
        lines += ["  reported    " + ", ".join(reported)] if reported else []
    best = result.get("best")
    if isinstance(best, Mapping) and run_dir is not None:
        lines += _best_line(best, run_dir)
    lines.append(
        f"  steps       {result.get('env_steps') or 0:,} in {duration(result.get('wall_seconds') or 0)}, "
        f"{_count(result.get('updates') or 0, 'update')}"
    )
    if result.get("steps_per_second"):
        started = result.get("startup_seconds")
        after = "" if started is None else f" after {duration(started)} to the first update"
        lines.append(f"  speed       {rate(result['steps_per_second'])} steps/s{after}")
    if result.get("staleness_max"):
        lines.append(f"  staleness   {short(result['staleness_mean'])}, highest {result['staleness_max']}")
    workers = result.get("workers") or []
    busy = _busy(workers)
    if len(workers) > 1 and busy:
        lines.append(f"  busy        {busy}")
    machines: dict[str, Counter[str]] = {}
    for worker in workers:
        if worker.get("host"):
            machines.setdefault(worker["host"], Counter())[worker["role"]] += 1
    if machines:
        lines.append("  machines    " + "; ".join(f"{name}: {_each(roles)}" for name, roles in machines.items()))
    if result.get("cut_episodes"):
        lines.append(f"  cut         {_count(result['cut_episodes'], 'episode')} cut short")
    if result.get("restarts"):
        reasons = result.get("restart_reasons") or {}
        often = sorted(reasons, key=lambda reason: -reasons[reason])
        why = "; ".join(f"{reason} x{reasons[reason]}" if reasons[reason] > 1 else reason for reason in often[:3])
        more = f"; and {len(often) - 3} more" if len(often) > 3 else ""
        lines.append(f"  restarts    {result['restarts']}" + (f": {why}{more}" if why else ""))
    if result.get("environment_failures"):
        lines.append(f"  failures    {_count(result['environment_failures'], 'environment failure')}; see events.jsonl")
    if result.get("skipped_updates"):
        lines.append(f"  refused     {_count(result['skipped_updates'], 'update')} that were not finite")
    if result.get("reason"):
        lines.append(f"  reason      {result['reason']}")
    if result.get("bottleneck"):
        lines.append(f"  bottleneck  {result['bottleneck']}")
    elif len(workers) > 1 and status == "finished":
        lines.append("  bottleneck  not known: the run was too short to see how long workers wait")
    if run_dir is not None:
        lines.append(f"  run         {run_dir}")
        again = "train again with another --run-dir, or remove this directory"
        if status == "interrupted" and not result.get("env_steps"):
            lines.append(f"              stopped before its first update, so there is nothing to resume: {again}")
        elif status == "interrupted" and not result.get("resumable", True):
            lines.append(f"              there is no checkpoint to resume from: {again}")
        elif status == "interrupted":
            flags = result.get("resume_flags", "")
            lines.append(f"  resume by   runnel resume {shlex.quote(str(run_dir))}{flags}")
    return printable("\n".join(lines))


def members_summary(result: Mapping[str, Any], run_dir: Path | str) -> str:
    """What is printed when several runs have ended."""
    members, ended = result["members"], result["finished"]
    of_all = "all" if ended == members else f"{ended} of {members}"
    lines = [
        f"{result['status']}: {result['algorithm']} on {result['environment']}, {result['distribution']}, "
        f"{_count(members, 'member')}"
    ]
    if result.get("iqm_return") is None:
        lines.append("  return      no episode ended")
    else:
        low, high = result["iqm_interval"]
        lines.append(
            f"  return      {short(result['iqm_return'])} ({short(low)} to {short(high)}, 95%), interquartile mean"
        )
        lines.append(
            f"  spread      median {short(result['median_return'])}, from {short(result['min_return'])} to "
            f"{short(result['max_return'])}"
        )
    lines.append(f"  finished    {of_all}")
    if result.get("without_return"):
        lines.append(f"  left out    {_count(result['without_return'], 'member')} without a return")
    lines.append(f"  steps       {result['env_steps']:,} in {duration(result['wall_seconds'])}")
    for run in result["runs"]:
        if run.get("reason"):
            lines.append(f"  {run['directory']}   {run['reason']}")
    lines.append(f"  runs        {run_dir}")
    if ended < members:
        lines.append(f"  resume by   runnel resume {shlex.quote(str(run_dir))}")
    return printable("\n".join(lines))


def _each(counts: Mapping[str, int]) -> str:
    """`actor x4, learner`."""
    return ", ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())


def _busy(workers: Sequence[Mapping[str, Any]]) -> str:
    """By role, of the workers of a result; workers without a report are left out, as in a run of less than a second."""
    roles: dict[str, list[float]] = {}
    for worker in workers:
        if worker["busy"] is not None:
            roles.setdefault(worker["role"], []).append(worker["busy"])
    return ", ".join(f"{label(role, len(busy))} {sum(busy) / len(busy):.0%}" for role, busy in roles.items())


def _count(number: int, what: str) -> str:
    """`1 update`, `2,000 updates`."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _steps(steps: int, total: int | None) -> str:
    if not total:
        return f"{steps:,} steps"
    return f"{steps:,}/{total:,} steps {min(1.0, steps / total):4.0%}"


def short(value: float) -> str:
    """A number in three digits or four."""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.2e}"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.{max(1, 2 - math.floor(math.log10(abs(value))))}f}"


def rate(value: float) -> str:
    """`12,345`, `1.2 M`."""
    if value >= 1e6:
        return f"{value / 1e6:.1f} M"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for (large, name), (small, lesser) in (
        ((86400, "d"), (3600, "h")),
        ((3600, "h"), (60, "min")),
        ((60, "min"), (1, "s")),
    ):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large} {name}" + (f" {rest} {lesser}" if rest else "")
    return f"{whole} s"
