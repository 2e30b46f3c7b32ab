"""The reports of a machine's workers, held for a moment: they travel as one message, however many workers there are.

What a run waits for travels at once, with all that is held. Progress, statuses and episodes wait for the next pulse.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from runnel.config import json_messages
from runnel.errors import MalformedMessage
from runnel.runtime.control_messages import EpisodesEnded, ProgressReport, Status

_STATUS, _EPISODES, _PROGRESS = (kind.type_name() for kind in (Status, EpisodesEnded, ProgressReport))

WorkerReport = tuple[str, int, dict[str, Any]]
"""Worker, life and message, as in `FromWorkers`."""


class _Life(NamedTuple):
    worker: str
    life: int


class ReportBatch:
    """Reports in order. Of one worker, the newest status of a phase replaces the one before, which said no more, and
    the sums of ended episodes are added up.

    They are not added up over workers: the driver drops the reports of a worker that it has replaced.
    """

    def __init__(self) -> None:
        self._held: dict[int, WorkerReport] = {}  # by number: in order
        self._statuses: dict[_Life, int] = {}
        self._episodes: dict[_Life, int] = {}
        self._number = 0
        self.urgent = False
        """Whether something is held that should not wait."""

    def add(self, worker: str, life: int, message: dict[str, Any]) -> None:
        kind, whose = message.get("type"), _Life(worker, life)
        self.urgent |= kind not in (_STATUS, _EPISODES, _PROGRESS)
        if kind == _EPISODES and whose in self._episodes:
            number = self._episodes[whose]
            both = _added(self._held[number][2], message)
            if both is not None:
                self._held[number] = (worker, life, both)
                return
        self._number += 1
        if kind == _EPISODES:
            self._episodes[whose] = self._number
        elif kind == _STATUS:
            before = self._statuses.get(whose)
            if before is not None and self._held[before][2].get("phase") == message.get("phase"):
                del self._held[before]
            self._statuses[whose] = self._number
        self._held[self._number] = (worker, life, message)

    def take(self) -> list[WorkerReport]:
        """All that is held, and nothing is held any more."""
        found = [*self._held.values()]
        self._held, self._statuses, self._episodes, self.urgent = {}, {}, {}, False
        return found


def _added(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any] | None:
    """The sums of both; None if they cannot be read, which the driver reports."""
    try:
        sums = dict(json_messages.parse(first, EpisodesEnded).sums)
        for name, (total, count) in json_messages.parse(second, EpisodesEnded).sums.items():
            before, counted = sums.get(name, (0.0, 0))
            sums[name] = (before + total, counted + count)
    except MalformedMessage:
        return None
    return EpisodesEnded(sums).to_json()
