"""Handles the signals that stop a run: the first requests a clean end, the second an immediate one.

    with StopRequest(ask, last_word) as stopping:
        ...  # `ask` is called at the first; at the second, Interrupted is raised here

Ctrl-C, SIGTERM and the end of the terminal are treated alike.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Self

from runnel.system.exits import leave

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

TOGETHER_S: Final = 0.1
"""Signals within this interval count as one: `timeout` and others send each of theirs twice."""

AT_ONCE_S: Final = 10.0
"""The seconds that an immediate end may take. Then the process exits, even if its main thread is stuck."""

LOOK_S: Final = 0.25
"""The interval in seconds at which another thread checks the run."""


class Interrupted(KeyboardInterrupt):
    """A second signal was received."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number
        """The exit status of the process, by the convention of shells."""


class Stuck(KeyboardInterrupt):
    """The main thread has not returned from a call; raised in that thread, within the call."""


class StopRequest(contextlib.AbstractContextManager["StopRequest"]):
    """Handles the signals that ask a run to stop, in the main thread; in other threads it leaves signals alone.

    Python calls a handler only when the main thread runs Python code, which code that hangs never does. So a second
    thread also counts the signals, checks the run periodically, and ends the process if necessary.
    """

    def __init__(self, ask: Callable[[int], None], last_word: Callable[[str], None] = lambda reason: None):
        """`ask(number)` is called in the main thread, `last_word(reason)` in another, right before the process ends."""
        self._ask, self._last_word = ask, last_word
        self.look: Callable[[], None] = lambda: None
        """Called in the other thread, several times a second."""
        self.asked = ""
        """The first signal, even if the main thread is stuck and has not handled it."""
        self._first_at: float | None = None
        self._raised = False
        self._stuck: Stuck | None = None  # to be raised in the main thread
        self._before: dict[int, Any] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        context = contextvars.copy_context()  # `look` prints what and where this thread would
        self._thread = threading.Thread(target=context.run, args=(self._watch,), name="stopping", daemon=True)
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

    def interrupt(self, reason: str, within_s: float = AT_ONCE_S) -> None:
        """Raises `Stuck` in the main thread; exits with status 1 if that does not end the process in time. Called by
        `look`."""
        self._stuck = Stuck(reason)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # which also ends what it sleeps in
        self._end(reason, 1, within_s)

    def _handle(self, number: int, frame: Any) -> None:
        del frame
        now = time.monotonic()
        if self._stuck is not None:
            if not self._raised:
                self._raised = True
                raise self._stuck
        elif self._first_at is None:
            self._first_at = now
            self._ask(number)
        elif now - self._first_at >= TOGETHER_S and not self._raised:
            self._raised = True  # a third finds the end already on its way
            raise Interrupted(number)

    def _watch(self) -> None:
        first_at: float | None = None
        poll = select.poll()
        poll.register(self._read, select.POLLIN)
        while not self._over.is_set():
            if not poll.poll(LOOK_S * 1000):
                with contextlib.suppress(Exception):  # what it says may have nowhere to go
                    self.look()
                continue
            now = time.monotonic()
            for number in os.read(self._read, 64):
                if number not in self._before:
                    continue
                if first_at is None:
                    first_at, self.asked = now, signal.Signals(number).name
                elif now - first_at >= TOGETHER_S:
                    return self._end(f"{signal.Signals(number).name} twice; stuck", 128 + number, AT_ONCE_S)

    def _end(self, reason: str, status: int, within_s: float) -> None:
        """Exits if the main thread does not end the process."""
        if not self._over.wait(within_s):
            with contextlib.suppress(Exception):
                self._last_word(reason)
            leave(status)
