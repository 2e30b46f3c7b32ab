"""How a run is asked to stop: the first signal asks for a clean end, the second for one at once.

    with Stopping(ask, last_word):
        ...                     # `ask` is called at the first; at the second, Interrupted is raised here

Ctrl-C, SIGTERM and the end of the terminal all mean the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

_leave: Final = os._exit  # itself, whatever stands in its place during a run
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TOGETHER_S: Final = 0.1
"""Signals so close to each other are one wish: `timeout` and others send each of theirs twice."""

AT_ONCE_S: Final = 10.0
"""How long an end at once may take. Then the process is ended, whatever its main thread is stuck in."""


class Interrupted(KeyboardInterrupt):
    """The second signal has come."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number
        """What the process should exit with, as shells have it."""


class Stopping(contextlib.AbstractContextManager["Stopping"]):
    """Sees to the signals that ask a run to stop, in the main thread; elsewhere they are others' to handle.

    Python calls a handler only when the main thread comes back to it, which code that hangs never does. So a thread
    counts the signals too, and has the last word.
    """

    def __init__(self, ask: Callable[[int], None], last_word: Callable[[int], None] = lambda number: None):
        """`ask(number)` is called in the main thread, `last_word(number)` in another, right before the process ends."""
        self._ask, self._last_word = ask, last_word
        self._first_at: float | None = None
        self._raised = False
        self._before: dict[int, Any] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._watch, name="stopping", daemon=True)
        self._thread.start()
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in SIGNALS:
            before = signal.getsignal(number)
            if number == signal.SIGHUP and before == signal.SIG_IGN:
                continue  # `nohup` means it
            self._before[number] = before
            signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._wakeup)
        self._over.set()
        os.close(self._write)  # on which the thread ends
        self._thread.join(AT_ONCE_S)
        os.close(self._read)

    def _handle(self, number: int, frame: Any) -> None:
        del frame
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            self._ask(number)
        elif now - self._first_at >= TOGETHER_S and not self._raised:
            self._raised = True  # a third finds the end already on its way
            raise Interrupted(number)

    def _watch(self) -> None:
        first_at: float | None = None
        while numbers := os.read(self._read, 64):
            now = time.monotonic()
            for number in numbers:
                if number not in self._before:
                    continue
                if first_at is None:
                    first_at = now
                elif now - first_at >= TOGETHER_S:
                    if not self._over.wait(AT_ONCE_S):
                        with contextlib.suppress(Exception):
                            self._last_word(number)
                        _leave(128 + number)
                    return
