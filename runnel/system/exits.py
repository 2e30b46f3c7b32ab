"""Keeps other code in this process, such as an environment's, from ending the process with a status of success.

    with contained():
        ...  # sys.exit and os._exit in here fail

`sys.exit` raises SystemExit, which would end the process with a status of its choosing; `os._exit` ends it at once,
without an error. A C library that calls `exit` or `_exit` itself cannot be stopped by this.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator
from typing import NoReturn

from runnel.errors import RunFailed

leave = os._exit
"""Ends this process, even within `contained`: the original `os._exit`."""


class Exited(BaseException):
    """`os._exit` was called. Not a SystemExit, which would end a thread without a message."""


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Within this context, anything that would end this process raises `RunFailed` or fails its environment."""
    before, process, over = os._exit, os.getpid(), False

    def refuse(status: int) -> NoReturn:
        if over or os.getpid() != process:  # a child that was forked ends as it likes
            before(status)
        raise Exited(f"os._exit({status})")

    os._exit = refuse
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as problem:
        raise failure(problem) from None
    finally:
        over = True  # where two runs overlap in threads, the other one may put this function back
        os._exit = before


def failure(problem: BaseException) -> RunFailed:
    """The error of a run in which an exception was raised that is meant to end a process."""
    what = traceback.format_exception_only(problem)[-1].strip()
    text = "".join(traceback.format_exception(problem)).rstrip()
    return RunFailed(f"code that the run called tried to end this process ({what}):\n{text}")
