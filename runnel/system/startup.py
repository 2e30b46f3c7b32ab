"""Shows the phase of a run that is starting, if it takes seconds.

`starting` is entered by the command line and by `train`, whichever runs first; code that may take long reports it with
`phase`. The first update ends it. No JAX is imported here: importing it is the first phase.
"""

from __future__ import annotations

import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

EVERY_S = 4.0
"""The seconds without output after which the present phase is printed."""


class Startup:
    """Prints the present phase, from a thread, whenever nothing was printed for a while."""

    def __init__(self, say: Callable[[str], None], text: str, every_s: float):
        self.say = say
        self.text: str | Callable[[], str] = text
        self.held = ""  # shown instead, while it is set
        self._every_s, self._began = every_s, time.monotonic()
        self.shown_at = self._began
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="startup", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stops printing."""
        self._over.set()
        self._thread.join(1.0)  # it takes longer only where its output is not read

    def _tick(self) -> None:
        while not self._over.wait(max(0.0, self.shown_at + self._every_s - time.monotonic())):
            if time.monotonic() < self.shown_at + self._every_s:
                continue  # something else was printed meanwhile
            self.shown_at = time.monotonic()
            text = self.held or (self.text() if callable(self.text) else self.text)
            with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
                self.say(f"{text} ({time.monotonic() - self._began:.0f} s)")


_PRESENT: contextvars.ContextVar[Startup | None] = contextvars.ContextVar("startup", default=None)


@contextlib.contextmanager
def starting(
    quiet: bool = False, stream: TextIO | None = None, first: str = "starting", line: str = ""
) -> Iterator[None]:
    """Shows phases within this context; inside another, the outer one prints.

    To stdout, or to `stream`. `first`: the first phase. `line`: a line that is printed at once.
    """
    if quiet or _PRESENT.get() is not None:
        yield
        return

    def say(text: str) -> None:
        print(text, file=stream or sys.stdout, flush=True)

    if line:
        with contextlib.suppress(OSError, ValueError):  # as in `_tick`
            say(line)
    startup = Startup(say, first, EVERY_S)
    token = _PRESENT.set(startup)
    try:
        yield
    finally:
        _PRESENT.reset(token)
        startup.end()


def phase(text: str | Callable[[], str]) -> None:
    """Sets the present phase in a few words: `compiling`. A function is called when shown, from another thread."""
    startup = _PRESENT.get()
    if startup is not None:
        startup.text = text


@contextlib.contextmanager
def during(text: str) -> Iterator[None]:
    """Shows one phase within this context, regardless of inner phases."""
    startup = _PRESENT.get()
    if startup is None:
        yield
        return
    before = startup.text
    startup.held = text
    try:
        yield
    finally:
        startup.text, startup.held = before, ""


def through(say: Callable[[str], None]) -> None:
    """Prints phases with `say` from here on: the live view takes over the screen."""
    startup = _PRESENT.get()
    if startup is not None:
        startup.say = say


def shown() -> None:
    """Records that other code has printed a line."""
    startup = _PRESENT.get()
    if startup is not None:
        startup.shown_at = time.monotonic()


def end() -> None:
    """Ends the display: the first update is done, or a signal ends the run."""
    startup = _PRESENT.get()
    if startup is not None:
        startup.end()
