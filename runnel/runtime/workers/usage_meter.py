"""Adds up the waits that workers report and the fill of their streams. NumPy only.

Everything is kept as sums since `begin`, so that any period is the difference of two moments: the whole run for its
result, the last seconds for the live view.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from runnel.runtime.control_messages import Status
from runnel.runtime.usage import CARRIES, StreamUsage, UsageReport, WorkerUsage

LEAST_S = 0.5
"""A worker that was observed for less time is not judged: one wait could be all that was seen."""

SAMPLE_S = 0.1
"""How often the fill of streams is looked at."""

COUNTED = ("env_steps", "updates", "full_batches", "partial_batches")
"""What workers count, as reports name it."""

RECENT_S = 5.0
"""The stretch of time that a report covers."""


class Fillable(Protocol):
    """A stream as seen from outside."""

    capacity: int

    def pending(self) -> int: ...

    def committed(self) -> int: ...


class Watched(NamedTuple):
    """A stream, the bytes of its messages, and what it is counted with."""

    source: str  # fragments
    target: str
    kind: str
    ring: Fillable
    message_bytes: int


StreamKey = tuple[str, str, str]
Counts = dict[Any, float]


def _zeros() -> Counts:
    return defaultdict(float)


@dataclass
class _Sums:
    """At one moment, since the beginning."""

    at: float
    seconds: Counts = field(default_factory=_zeros)  # by worker
    waited: dict[str, Counts] = field(default_factory=dict)  # by worker and cause: seconds
    counted: dict[str, Counts] = field(default_factory=dict)  # by worker and what it counts
    sampled: float = 0.0  # seconds in which streams were looked at
    fill: Counts = field(default_factory=_zeros)  # by kind of stream: times seconds
    messages: Counts = field(default_factory=_zeros)
    sent: Counts = field(default_factory=_zeros)  # bytes

    def copy(self, at: float) -> _Sums:
        return self.since(_Sums(at), at)

    def since(self, before: _Sums, at: float) -> _Sums:
        """The sums since an earlier moment."""
        return _Sums(
            at,
            _minus(self.seconds, before.seconds),
            {name: _minus(own, before.waited.get(name, {})) for name, own in self.waited.items()},
            {name: _minus(own, before.counted.get(name, {})) for name, own in self.counted.items()},
            self.sampled - before.sampled,
            _minus(self.fill, before.fill),
            _minus(self.messages, before.messages),
            _minus(self.sent, before.sent),
        )


def _minus(now: Counts, before: Counts) -> Counts:
    left = _zeros()
    left.update({key: value - before.get(key, 0.0) for key, value in now.items()})
    return left


class UsageMeter:
    """How workers and streams fare."""

    def __init__(
        self,
        fragments: Mapping[str, str],  # of every worker
        streams: Sequence[Watched],
        clock: Callable[[], float] = time.monotonic,
    ):
        self.fragments, self.streams, self._clock = fragments, streams, clock
        self._heard: dict[str, Status] = {}  # by worker: its last report
        self._before: dict[str, Counts] = {}  # by worker: what those had counted that it replaces
        self._skipped: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Forgets what came before: starting and compiling."""
        now = self._clock()
        self._sums = _Sums(now)
        self._moments = deque([_Sums(now)])
        self._sampled_at = now
        self._committed = [stream.ring.committed() for stream in self.streams]

    def skip(self) -> None:
        """Work continues after a pause, which is neither work nor waiting: the next reports include a part of it."""
        self._skipped = set(self._heard)
        self._sampled_at = self._clock()

    def add(self, worker: str, status: Status) -> None:
        """A worker's report: sums since it entered its phase."""
        before = self._heard.get(worker)
        self._heard[worker] = status
        if before is not None and any(before.counts.get(n, 0) > count for n, count in status.counts.items()):
            ended = self._before.setdefault(worker, _zeros())
            for name, count in before.counts.items():
                ended[name] += count
        skipped = worker in self._skipped
        self._skipped.discard(worker)
        if before is None or skipped or before.phase != status.phase or before.elapsed_s > status.elapsed_s:
            return  # a phase, or the worker, has just begun
        if status.phase != "working":
            return
        self._sums.seconds[worker] += status.elapsed_s - before.elapsed_s
        waited = self._sums.waited.setdefault(worker, _zeros())
        for cause, seconds in status.waited_s.items():
            waited[_plain(cause)] += seconds - before.waited_s.get(cause, 0.0)
        counted = self._sums.counted.setdefault(worker, _zeros())
        for name, count in status.counts.items():
            counted[name] += count - before.counts.get(name, 0.0)

    def sample(self) -> None:
        """Looks at the streams, unless that was done just now."""
        if self._clock() - self._sampled_at >= SAMPLE_S:
            self._sample()

    def _sample(self) -> None:
        now = self._clock()
        passed, self._sampled_at = now - self._sampled_at, now
        sums = self._sums
        sums.sampled += passed
        shares = Counter((stream.source, stream.target, stream.kind) for stream in self.streams)
        for i, (source, target, kind, ring, message_bytes) in enumerate(self.streams):
            key, committed = (source, target, kind), ring.committed()
            sums.fill[key] += passed * ring.pending() / ring.capacity / shares[key]
            came = max(0, committed - self._committed[i])  # streams of a run that goes back start at 0
            sums.messages[key] += came
            sums.sent[key] += came * message_bytes
            self._committed[i] = committed
        if now - self._moments[-1].at > RECENT_S / 5:
            self._moments.append(sums.copy(now))
            while now - self._moments[0].at > RECENT_S:
                self._moments.popleft()

    def report(self, recent: bool = False) -> UsageReport:
        """Since `begin`, or over the last seconds."""
        if not recent and not self._sums.sampled:  # a run of a moment
            self._sample()
        first = self._moments[0] if recent else _Sums(0.0)
        stretch = self._sums.since(first, self._clock())
        return UsageReport(
            tuple(self._worker(name, fragment, stretch) for name, fragment in self.fragments.items()),
            tuple(_stream(key, stretch) for key in stretch.fill) if stretch.sampled else (),
        )

    def _worker(self, name: str, fragment: str, stretch: _Sums) -> WorkerUsage:
        seconds = stretch.seconds[name]
        if name not in self._heard:
            return WorkerUsage(name, fragment)
        reported = self._heard[name].counts  # since the worker began: compiling it took steps too
        before = self._before.get(name, {})
        counts: dict[str, Any] = {key: int(reported[key] + before.get(key, 0)) for key in COUNTED if key in reported}
        if seconds < LEAST_S:
            return WorkerUsage(name, fragment, **counts)
        waited, counted = stretch.waited[name], stretch.counted[name]
        first = next((key for key in ("env_steps", "updates") if key in counts), None)
        return WorkerUsage(
            name,
            fragment,
            busy=min(1.0, max(0.0, 1 - sum(waited.values()) / seconds)),
            seconds=seconds,
            waits={cause: spent for cause, spent in waited.items() if spent > 0},
            **counts,
            per_second=counted[first] / seconds if first else None,
        )


def _stream(key: StreamKey, stretch: _Sums) -> StreamUsage:
    fill, messages, sent = (sums[key] / stretch.sampled for sums in (stretch.fill, stretch.messages, stretch.sent))
    return StreamUsage(*key, fill=min(1.0, fill), messages_per_second=messages, megabytes_per_second=sent / 1e6)


def _plain(cause: str) -> str:
    """The cause of a wait without its stream: `unrolls` of `actor-0 -> learner: unroll agent 3`."""
    room = "room in " if cause.startswith("room in ") else ""
    _, arrow, rest = cause.removeprefix(room).partition(": ")
    if not arrow:
        return cause
    kind = rest.partition(" ")[0]
    return ("room for " if room else "") + CARRIES.get(kind, kind)
