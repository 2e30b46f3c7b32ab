"""Records of how busy workers and streams were, which programs and workers fill and reports read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

CARRIES: Final = {"unroll": "unrolls", "request": "observations", "reply": "actions", "value": "values"}
"""The content of a stream, by its kind."""


@dataclass(frozen=True)
class WorkerUsage:
    """The activity of one worker over a stretch of time."""

    name: str
    fragment: str
    busy: float | None = None  # the share of its time in which it did not wait; None before it has worked
    seconds: float = 0.0  # the time looked at
    waits: Mapping[str, float] = field(default_factory=dict)  # seconds, by cause
    env_steps: int | None = None
    updates: int | None = None
    full_batches: int | None = None  # of an inference worker: batches for all blocks that could ask
    partial_batches: int | None = None
    per_second: float | None = None  # steps where it has steps, else updates
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds by part of the loop, where they are measured
    host: str = ""  # the machine it runs on, where there are several

    def json(self) -> dict[str, Any]:
        counted = {
            "env_steps": self.env_steps, "updates": self.updates,
            "full_batches": self.full_batches, "partial_batches": self.partial_batches,
        }  # fmt: skip
        waits = sorted(self.waits.items(), key=lambda wait: -wait[1])[:4]
        return {
            "name": self.name,
            "fragment": self.fragment,
            **({"host": self.host} if self.host else {}),
            "busy": None if self.busy is None else round(self.busy, 4),
            **{name: count for name, count in counted.items() if count is not None},
            **({} if self.per_second is None else {"per_second": round(self.per_second, 2)}),
            "waits": {cause: round(seconds, 3) for cause, seconds in waits},
            **({"phases": {name: round(seconds, 3) for name, seconds in self.phases.items()}} if self.phases else {}),
        }


@dataclass(frozen=True)
class StreamUsage:
    """All streams of one kind between two fragments."""

    source: str
    target: str
    kind: str
    fill: float  # the share of its slots that wait to be read, over time
    messages_per_second: float
    megabytes_per_second: float

    def __str__(self) -> str:
        return f"{self.source} -> {self.target} {CARRIES.get(self.kind, self.kind)} {self.fill:.0%}"

    def json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "target": self.target,
            "kind": self.kind,
            "fill": round(self.fill, 4),
            "messages_per_second": round(self.messages_per_second, 2),
            "megabytes_per_second": round(self.megabytes_per_second, 3),
        }


class FragmentUsage(NamedTuple):
    """The combined activity of a fragment's workers."""

    fragment: str
    replicas: int
    busy: float  # the mean
    cause: str  # what they waited for most; nothing where they did not wait
    per_second: float | None  # the sum


@dataclass(frozen=True)
class UsageReport:
    """The activity of workers and streams over a stretch of a run."""

    workers: tuple[WorkerUsage, ...] = ()
    streams: tuple[StreamUsage, ...] = ()

    def shares(self) -> list[FragmentUsage]:
        """Usage by fragment, in order, of those that have worked."""
        fragments: dict[str, list[WorkerUsage]] = {}
        for worker in self.workers:
            if worker.busy is not None:
                fragments.setdefault(worker.fragment, []).append(worker)
        return [_share(fragment, workers) for fragment, workers in fragments.items()]

    def metrics(self) -> dict[str, float]:
        """The numbers for a record of metrics; none for a single worker, which is always busy."""
        if len(self.workers) < 2:
            return {}
        found = {f"busy/{share.fragment}": round(share.busy, 4) for share in self.shares()}
        for stream in self.streams:
            name = f"stream/{stream.source}-{stream.target}/fill"
            found[name] = max(found.get(name, 0.0), round(stream.fill, 4))
        return found


def fragment_of(worker: Mapping[str, Any]) -> str:
    """The fragment of a worker in result.json; older runs call it a role."""
    return worker["fragment"] if "fragment" in worker else worker["role"]


def single_process_usage(name: str, phases: Mapping[str, float]) -> UsageReport:
    """The usage of a program in one process, which never waits."""
    return UsageReport((WorkerUsage(name, name, busy=1.0, seconds=sum(phases.values()), phases=phases),))


def _share(fragment: str, workers: Sequence[WorkerUsage]) -> FragmentUsage:
    waits: dict[str, float] = {}
    for worker in workers:
        for cause, seconds in worker.waits.items():
            waits[cause] = waits.get(cause, 0.0) + seconds
    rates = [worker.per_second for worker in workers if worker.per_second is not None]
    return FragmentUsage(
        fragment=fragment,
        replicas=len(workers),
        busy=sum(worker.busy or 0.0 for worker in workers) / len(workers),
        cause=max(waits, key=lambda cause: waits[cause], default=""),
        per_second=sum(rates) if rates else None,
    )


# What could be changed
