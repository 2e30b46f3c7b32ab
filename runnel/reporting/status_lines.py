"""The numbers of a run in a line or a few: which of them are shown, and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from runnel.planning.placed import plural
from runnel.reporting.bottleneck import label
from runnel.reporting.number_words import rate, short, times_each
from runnel.reporting.statistics import flat
from runnel.runtime.usage import UsageReport

LOSSES: Final = 4
"""How many of the outputs of learning that are shown."""

ENV_METRICS: Final = 3
"""How many metrics of the environment are shown."""


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
    words += environment_metrics({n.removeprefix("env/"): value for n, value in record.items() if n.startswith("env/")})
    if record.get("steps_per_second"):
        words.append(f"{rate(record['steps_per_second'])} steps/s")
    if record.get("restarts"):
        words.append(f"restarts {record['restarts']}")
    learnt = [(name.removeprefix("learn/"), value) for name, value in record.items() if name.startswith("learn/")]
    # Losses first: they are what people look for.
    learnt.sort(key=lambda pair: "loss" not in pair[0])
    words += [f"{name} {short(value)}" for name, value in learnt[:losses] if value is not None]
    return words


def environment_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """A few metrics of the environment, rates of success first."""
    known = [name for name, value in metrics.items() if value is not None]
    known.sort(key=lambda name: name.rpartition("/")[2] != "is_success")
    return [f"{name} {short(metrics[name])}" for name in known[:ENV_METRICS]]


def busy_words(record: Mapping[str, Any], report: UsageReport) -> list[str]:
    """In a few words: how busy workers are, and how stale what is learnt from. Nothing of a worker alone."""
    shares = report.shares()
    if len(report.workers) < 2 or not shares:
        return []
    words = ["busy " + " ".join(f"{share.fragment} {share.busy:.0%}" for share in shares)]
    return words + ([f"staleness {short(record['staleness_mean'])}"] if record.get("staleness_mean") else [])


def worker_table(record: Mapping[str, Any], report: UsageReport) -> list[str]:
    """A line for every fragment, one for streams and one for staleness. Nothing of a worker alone."""
    shares = report.shares()
    if len(report.workers) < 2 or not shares:
        return []
    names = [label(share.fragment, share.replicas) for share in shares]
    wide = max(len(name) for name in names)
    lines = []
    for name, share in zip(names, shares, strict=True):
        workers = [worker for worker in report.workers if worker.fragment == share.fragment]
        what = "steps" if any(worker.env_steps is not None for worker in workers) else "updates"
        speed = "" if share.per_second is None else f"  {rate(share.per_second)} {what}/s"
        waits = f"  waits for {share.cause}" if share.cause and share.busy < 0.995 else ""
        counts = Counter(worker.host for worker in workers if worker.host)
        on = f"  on {times_each(counts)}" if counts else ""
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
        f"({short(low)} to {short(high)}){also}, {plural(found['episodes'], 'episode')}"
    )


def seconds_left(record: Mapping[str, Any], total_steps: int | None) -> float | None:
    """By the present speed; None where it is not known."""
    speed = record.get("steps_per_second")
    if not speed or total_steps is None:
        return None
    return max(0.0, total_steps - (record.get("env_steps") or 0)) / speed


def progress(steps: int, total: int | None) -> str:
    if not total:
        return f"{steps:,} steps"
    return f"{steps:,}/{total:,} steps {min(1.0, steps / total):4.0%}"
