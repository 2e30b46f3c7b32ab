"""Reports to the supervisor when a worker compiles, wherever in its code that happens.

A worker that compiles sends no heartbeat, and must not be taken for one that hangs. Nearly every call of a JAX
function compiles the first time, and no event of JAX's says when that begins; so a thread looks at the main
thread's stack.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from runnel.runtime.workers.ports import Stopped, WorkerContext
from runnel.system import tracebacks

LOOK_S = 0.2
"""How often: also the shortest `--hang-after` that compiling cannot exceed."""


def watch_compiler(context: Callable[[], WorkerContext]) -> None:
    """Watches this process's main thread for as long as the process lives."""
    threading.Thread(target=_watch, args=(context,), name="compile-watch", daemon=True).start()


def _watch(context: Callable[[], WorkerContext]) -> None:
    pause = threading.Event()
    while not pause.wait(LOOK_S):
        try:
            context().note_compiler(tracebacks.compiles(tracebacks.main_thread()))
        except Stopped:
            return
