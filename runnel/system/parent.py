"""Ends a process when the one that started it ends, for whatever reason."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import Any, Final

from runnel.system.exits import leave

PR_SET_PDEATHSIG: Final = 1
PR_SET_NAME: Final = 15

LOOK_S: Final = 1.0
"""The interval in seconds at which the parent is checked if the kernel does not report its end."""


def end_with(parent: int) -> None:
    """Ends this process, now or later, when `parent` is no longer its parent."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except AttributeError:  # not Linux
        threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    if os.getppid() != parent:  # it ended before
        leave(1)


def prctl(option: int, value: Any) -> None:
    """Linux's `prctl`. Raises AttributeError on a system without it."""
    call = ctypes.CDLL(None, use_errno=True).prctl
    zero = ctypes.c_ulong(0)
    value = ctypes.c_ulong(value) if isinstance(value, int) else value
    if call(ctypes.c_int(option), value, zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl failed")


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    leave(1)
