"""What a user sees of a run while it trains: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self, TextIO

from runnel.errors import printable
from runnel.reporting.number_words import duration
from runnel.reporting.status_lines import LOSSES, busy_words, numbers, progress, seconds_left, worker_table
from runnel.runtime.usage import UsageReport
from runnel.system import startup

PLAIN_EVERY_S: Final = 2.0


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
        workers = busy_words(record, report)
        words = [progress(steps, self._total), *numbers(record, LOSSES // 2 if workers else LOSSES), *workers]
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
            steps=progress(steps, self._total),
            left=f"{duration(left)} left" if left else "",
        )
        line = Text(printable("  " + "  ".join(numbers(record))), no_wrap=True, overflow="ellipsis")
        workers = [
            Text(printable(f"  {text}"), no_wrap=True, overflow="ellipsis") for text in worker_table(record, report)
        ]
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
