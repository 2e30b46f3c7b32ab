"""`events.jsonl`: failures during a run and the reactions to them, one object a line.

    events = EventLog(run_dir, view.note)
    events.record("restart", worker="actor-1", reason="killed by signal 9", action="restarted", seconds=0.41)

Recording an event never raises, because it happens while something else fails: a full disk loses lines, which are
counted and reported once a line can be written again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from runnel.recording import run_directory

FILE: Final = "events.jsonl"
OLDER: Final = "events.older.jsonl"
"""The name of a file that has grown too long; it replaces the previous one of that name."""

MOST_BYTES: Final = 4_000_000
AT_ONCE: Final = 10
"""The number of events of one kind and worker that are written individually; later ones within WINDOW_S are summed
up."""

ALWAYS: Final = frozenset({"restart", "recovered", "rollback", "hang"})
"""Events that are always written individually: a run's restart budget bounds them."""

WINDOW_S: Final = 60.0
LONGEST: Final = 8000
"""The longest text, in characters; enough for a traceback."""


ReportEvent = Callable[..., None]
"""Reports a failure: the event's name; by keyword worker, reason, action and other details."""


def ignore_event(event: str, **details: Any) -> None:
    """Drops the event."""


_QUIETLY: Final = contextlib.suppress(Exception)
"""Suppresses an error while a failure is recorded."""


@dataclass(frozen=True)
class _Window:
    """Events of one kind and worker since the first of them."""

    began: float
    written: int
    more: int = 0
    times: int = 0  # how often it happened, in those that were not written
    last: str = ""  # the reason of the last one that was not written


class EventLog:
    """Writes failures to the file and shows them to the user. Several threads and signal handlers may use it."""

    def __init__(
        self,
        run_dir: Path | str,
        note: Callable[[str], None] = lambda text: None,
        *,
        clock: Callable[[], float] = time.time,
    ):
        """`note` shows a line to the user; it may be set later, once there is a view."""
        self.note = note
        self.lost = 0
        self._run_dir = Path(run_dir)
        self._clock = clock
        self._windows: dict[tuple[str, str | None], _Window] = {}
        self._whole = False  # whether the file is known to end with a whole line
        self._lock = threading.RLock()  # a signal handler may run while its own thread records an event

    def record(
        self,
        event: str,
        *,
        worker: str | None = None,
        reason: str = "",
        action: str = "",
        show: bool = True,
        **details: Any,
    ) -> None:
        """Records one event; `seconds` among the details is shown as its duration.

        Without `show` it is only written: another event with the same reason follows.
        """
        with _QUIETLY, self._lock:
            self._sum_up()
            key, now = (event, worker), self._clock()
            window = self._windows.get(key) or _Window(now, 0)
            if window.written >= AT_ONCE and event not in ALWAYS:
                times = window.times + int(details.get("times", 1))
                self._windows[key] = replace(window, more=window.more + 1, times=times, last=reason)
                return
            self._windows[key] = replace(window, written=window.written + 1)
            self._put(event, worker, reason, action, details, show)

    def close(self) -> None:
        """Writes the summaries of pending events."""
        with _QUIETLY, self._lock:
            self._sum_up(everything=True)

    def _sum_up(self, everything: bool = False) -> None:
        """Writes a line for events that were not written individually, once their window is over."""
        now = self._clock()
        over = {key: w for key, w in self._windows.items() if everything or not 0 <= now - w.began < WINDOW_S}
        for (event, worker), window in over.items():
            del self._windows[event, worker]
            if window.more:
                span = max(0.0, now - window.began)
                reason = f"{window.more:,} more within {span:.0f} s, the last: {window.last}"
                self._put(event, worker, reason, "", {"count": window.more, "times": window.times})

    def _put(
        self, event: str, worker: str | None, reason: str, action: str, details: dict[str, Any], show: bool = True
    ) -> None:
        now = self._clock()
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z",
            "event": event,
        }
        texts = {"worker": worker, "reason": reason, "action": action}
        line |= {name: text for name, text in texts.items() if text}
        line |= {name: value for name, value in details.items() if name not in line}
        with _QUIETLY:
            self._write(line)
        if show:
            with _QUIETLY:
                self.note(_words(line))

    def _write(self, line: dict[str, Any]) -> None:
        if self.lost:
            line = {**line, "lost": self.lost}
        content = (json.dumps(_plain(line), allow_nan=False) + "\n").encode()
        try:
            # Opened for each: events are rare, and the run may be short of descriptors.
            fd = self._open(len(content))
            try:
                if not self._whole and (size := os.fstat(fd).st_size) and os.pread(fd, 1, size - 1) != b"\n":
                    content = b"\n" + content  # after a line cut short
                self._whole = False
                self._whole = os.write(fd, content) == len(content)
            finally:
                os.close(fd)
        except OSError:
            self._whole = False
        self.lost = 0 if self._whole else self.lost + 1

    def _open(self, more_bytes: int) -> int:
        """The file, or a new one if `more_bytes` more would make it too long."""
        fd = run_directory.open_to_append(self._run_dir, FILE, os.O_RDWR)
        if os.fstat(fd).st_size + more_bytes <= MOST_BYTES:
            return fd
        os.close(fd)
        with run_directory.directory(self._run_dir) as here:
            os.rename(FILE, OLDER, src_dir_fd=here, dst_dir_fd=here)
        return run_directory.open_to_append(self._run_dir, FILE, os.O_RDWR)


def read_events(run_dir: Path | str) -> list[dict[str, Any]]:
    """The events of a run in order; truncated lines are left out."""
    events = []
    for name in (OLDER, FILE):
        with contextlib.suppress(FileNotFoundError):
            for line in run_directory.lines(run_dir, name, 4 * MOST_BYTES):
                with contextlib.suppress(ValueError, RecursionError):
                    event = json.loads(line)
                    if isinstance(event, dict) and "event" in event:
                        events.append(event)
    return events


def _words(line: dict[str, Any]) -> str:
    """`actor-1: killed by signal 9; restarted from its journal (0.41 s)`"""
    texts = [str(line.get(name, "")).strip() for name in ("reason", "action")]
    parts = [text.splitlines()[0] for text in texts if text]
    seconds = line.get("seconds")
    took = f" ({seconds:.2f} s)" if isinstance(seconds, int | float) else ""
    subject = str(line.get("worker") or line["event"].replace("_", " "))
    return (f"{subject}: {'; '.join(parts)}" if parts else f"{subject}: {line['event']}") + took


def _plain(value: Any) -> Any:
    """A value as JSON; values that JSON lacks as text."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    if hasattr(value, "item") and not getattr(value, "shape", ()):  # a scalar of NumPy or JAX
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    text = str(value)
    return text if len(text) <= LONGEST else text[: LONGEST // 2] + " ... " + text[-LONGEST // 2 :]
