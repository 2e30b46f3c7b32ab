"""Reports of connections that the ports of a run have rejected: sums, at most every `EVERY_S` seconds.

`the driver: 1,100 connections were rejected at its port (1,100 no handshake), from 10.0.0.9 (1,100)`
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

EVERY_S = 10.0

RejectionCounts = Mapping[str, Mapping[str, int]]
"""`reasons` and `addresses`, each with how many connections."""

NONE: RejectionCounts = {"reasons": {}, "addresses": {}}


class RejectionLog:
    """Remembers what was reported. Counts by place only grow, until a new process takes a machine's place."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._reported_at: float | None = None
        self._reported: dict[str, RejectionCounts] = {}

    def report(self, counts: Mapping[str, RejectionCounts], at_once: bool = False) -> list[dict[str, Any]]:
        """One event for each place that has rejected connections since the last report; none too soon after it."""
        now = self._clock()
        if not at_once and self._reported_at is not None and now < self._reported_at + EVERY_S:
            return []
        events = [
            event(place, new)
            for place, each in counts.items()
            if (new := since(each, self._reported.get(place, NONE)))["reasons"]
        ]
        if events:
            self._reported_at = now
        self._reported = dict(counts)
        return events


def since(counts: RejectionCounts, before: RejectionCounts) -> dict[str, dict[str, int]]:
    """The difference between two counts; the whole count if counting has restarted."""
    if any(counts["reasons"].get(name, 0) < number for name, number in before["reasons"].items()):
        before = NONE
    return {kind: dict(Counter(counts[kind]) - Counter(before[kind])) for kind in ("reasons", "addresses")}


def total(counts: Mapping[str, RejectionCounts]) -> dict[str, dict[str, int]]:
    """The sums over all places."""
    return {
        kind: dict(sum((Counter(each[kind]) for each in counts.values()), Counter()))
        for kind in ("reasons", "addresses")
    }


def event(place: str, new: RejectionCounts) -> dict[str, Any]:
    """As `events.jsonl` has it."""
    times = sum(new["reasons"].values())
    found = [", ".join(f"{number:,} {name}" for name, number in new["reasons"].items())]
    found += [", ".join(f"{name} ({number:,})" for name, number in new["addresses"].items())]
    what = "connection was" if times == 1 else "connections were"
    reason = f"{times:,} {what} rejected at its port ({found[0]}), from {found[1]}"
    return {"worker": place, "reason": reason, "times": times, "addresses": dict(new["addresses"])}
