"""A run's numbers as Prometheus takes them: families of samples, made from a record of metrics and a usage report.

Names of metrics are fixed, and what a user has named is a label: `runnel_learn{metric="policy_loss"}`. So any name can
be shown, two names never become one, and a dashboard works for every algorithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from runnel.ops.episode_window import WINDOW
from runnel.runtime.usage import UsageReport

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

COUNTERS: Final[Mapping[str, str]] = {
    "env_steps": "Environment steps, one action each, summed over environments",
    "iterations": "Iterations of the training loop",
    "updates": "Updates of the learner's state",
    "episodes": "Episodes that have ended",
    "restarts": "Workers that were replaced",
    "environment_failures": "Episodes that were cut because their environment failed",
    "skipped_updates": "Updates that were refused because something was not finite",
}
"""By name in a record: what only grows, except where a run goes back to a checkpoint."""

GAUGES: Final[Mapping[str, str]] = {
    "mean_length": "Mean length of the newest episodes, in steps",
    "learner_return": "Mean return as learning sees it, where the environment reports another one",
    "steps_per_second": "Environment steps per second, over about the last five seconds",
    "wall_seconds": "Seconds since the run began, without the time between an interruption and a resumption",
    "staleness_mean": "Mean staleness of the unrolls that were learnt from, in updates",
    "staleness_max": "Highest staleness of an unroll that was learnt from, in updates",
}

NAMED: Final[Mapping[str, str]] = {
    "learn": "Scalars that `learn` returned, by name",
    "env": "Metrics of the environment, means over the newest episodes, by name",
    "eval": "Results of the newest evaluation, by name",
}
"""By prefix in a record: numbers with names of the user's."""

FROM_REPORT: Final = ("busy/", "stream/")
"""What a usage report has in more detail."""


@dataclass(frozen=True)
class ScrapedRun:
    """What is served until the next report."""

    info: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """What the run is: labels of `runnel_run_info`."""
    target_env_steps: int | None = None
    record: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    report: UsageReport = field(default_factory=UsageReport)
    members: Mapping[str, tuple[int, float | None]] = field(default_factory=lambda: MappingProxyType({}))
    """By directory, of several runs: environment steps and mean return."""
    reported_at: float | None = None
    """Seconds since the epoch."""


def families(scraped_run: ScrapedRun) -> Iterator[Metric]:
    """Every family of samples that there is something of."""
    yield from _of_run(scraped_run)
    yield from _of_record(scraped_run.record)
    yield from _of_report(scraped_run.report)
    yield from _of_members(scraped_run.members)


def _of_run(scraped_run: ScrapedRun) -> Iterator[Metric]:
    if scraped_run.info:
        yield _gauge("run_info", "What the run is; its value is 1", [(scraped_run.info, 1.0)])
    if scraped_run.target_env_steps is not None:
        yield _gauge("target_env_steps", "Environment steps to train for", [({}, scraped_run.target_env_steps)])
    if scraped_run.reported_at is not None:
        about = "When the run reported last, in seconds since the epoch"
        yield _gauge("last_report_timestamp_seconds", about, [({}, scraped_run.reported_at)])


def _of_record(record: Mapping[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    numbers = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
    groups = [name.removeprefix("return/") for name in numbers if name.startswith("return/")]
    returns, named, rest = [], {prefix: [] for prefix in NAMED}, []
    for name, value in numbers.items():
        prefix, slash, inner = name.partition("/")
        if name in COUNTERS:
            yield CounterMetricFamily(f"runnel_{name}", COUNTERS[name], value)
        elif name in GAUGES:
            yield _gauge(name, GAUGES[name], [({}, value)])
        elif name == "mean_return" or prefix == "return":
            returns.append(({"group": inner}, value))
        elif slash and prefix in NAMED:
            named[prefix].append((_of_group(prefix, inner, groups), value))
        elif not name.startswith(FROM_REPORT):
            rest.append(({"metric": name}, value))
    if returns:
        yield _gauge("mean_return", f"Mean return of the newest {WINDOW} episodes; of all groups, and of each", returns)
    for prefix, samples in named.items():
        if samples:
            yield _gauge(prefix, NAMED[prefix], samples)
    if rest:
        yield _gauge("other", "Other numbers of the run, by name", rest)


def _of_group(prefix: str, name: str, groups: list[str]) -> dict[str, str]:
    """`prey/loss` is the metric `loss` of the group `prey`, if there is such a group; `return/prey` in evaluations."""
    first, slash, rest = name.partition("/")
    group, metric = (rest, first) if prefix == "eval" and first == "return" else (first, rest)
    return {"group": group, "metric": metric} if slash and group in groups else {"group": "", "metric": name}


def _of_report(report: UsageReport) -> Iterator[Metric]:
    busy = [
        ({"worker": worker.name, "fragment": worker.fragment, "host": worker.host}, worker.busy)
        for worker in report.workers if worker.busy is not None
    ]  # fmt: skip
    if busy:
        yield _gauge("worker_busy_ratio", "The share of the last seconds in which a worker did not wait", busy)
    between = [({"source": s.source, "target": s.target, "kind": s.kind}, s) for s in report.streams]
    if between:
        fill = [(labels, stream.fill) for labels, stream in between]
        yield _gauge("stream_fill_ratio", "The share of a stream's slots that hold unread messages", fill)
        rate = [(labels, stream.messages_per_second) for labels, stream in between]
        yield _gauge("stream_messages_per_second", "Messages that a stream carries in a second", rate)


def _of_members(members: Mapping[str, tuple[int, float | None]]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    if not members:
        return
    steps = CounterMetricFamily("runnel_member_env_steps", "Environment steps of a member", labels=["member"])
    for member, (env_steps, _) in members.items():
        steps.add_metric([member], env_steps)
    yield steps
    returns = [({"member": member}, found) for member, (_, found) in members.items() if found is not None]
    if returns:
        yield _gauge("member_mean_return", f"Mean return of a member's newest {WINDOW} episodes", returns)


def _gauge(name: str, about: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> Metric:
    """A family of samples that all have the same labels."""
    from prometheus_client.core import GaugeMetricFamily

    labels = list(samples[0][0])
    family = GaugeMetricFamily(f"runnel_{name}", about, labels=labels)
    for values, number in samples:
        family.add_metric([values[label] for label in labels], number)
    return family
