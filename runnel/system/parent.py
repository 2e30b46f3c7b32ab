"""A process that ends with the one that started it, however that ends."""

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
"""How often the parent is looked at where the kernel does not report its end."""


def end_with(parent: int) -> None:
    """Ends this process, now or later, when `parent` is not its parent any more."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except AttributeError:  # not Linux
        threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()
    if os.getppid() != parent:  # it ended before
        leave(1)


def prctl(option: int, value: Any) -> None:
    """The call of Linux. Raises AttributeError on a system without it."""
    call = ctypes.CDLL(None, use_errno=True).prctl
    zero = ctypes.c_ulong(0)
    value = ctypes.c_ulong(value) if isinstance(value, int) else value
    if call(ctypes.c_int(option), value, zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl failed")


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    leave(1)
