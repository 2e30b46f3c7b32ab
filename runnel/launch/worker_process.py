"""A worker process: it sets itself up, calls its entry, and ends.

The same for a process forked from a server (`become` and `run` are called after the fork) and for a fresh
interpreter (`main`), which a server starts if forking would not be safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import sys
import traceback

from runnel.config.serialization import import_object
from runnel.errors import EnvironmentFailed, UserError
from runnel.launch.control import Control
from runnel.launch.fork_messages import ProcessContext, parse_entry
from runnel.runtime.control_messages import Failed
from runnel.system.parent import PR_SET_NAME, PR_SET_PDEATHSIG, prctl
from runnel.user_code import named_modules

START_S = 60.0
"""How long a worker waits for its job, which its launcher sends at once."""

FRESH = ("-P", "-c", "from runnel.launch.worker_process import main; main()")
"""Arguments of a fresh interpreter. Not `-m`, which would load this module a second time, as `__main__`."""

_JAX_SETTINGS = {"JAX_PLATFORMS": "jax_platforms", "JAX_ENABLE_X64": "jax_enable_x64"}

inside: str | None = None
"""The name of the worker (or server) that this process is; None in the user's own process."""


def become(name: str, parent: int) -> None:
    """Makes this process a worker that lives no longer than `parent`, which must be its parent.

    It leads a process group of its own. Thus Ctrl-C at a terminal, which signals the foreground group, reaches only the
    user's process, which stops its workers; and processes that a worker started (a simulator) can be ended with it. It
    stays in the session, so that ending all processes of the session ends it, too.
    """
    global inside
    inside = name
    set_name(name)
    die_with_parent(parent)
    os.setpgid(0, 0)
    reset_signals()
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    # Into its log: the stacks of all threads when it crashes, and when it receives SIGUSR1.
    faulthandler.enable(2)
    faulthandler.register(signal.SIGUSR1, 2, all_threads=True)
    if "numpy" in sys.modules:
        # Forked siblings would otherwise draw the same "random" numbers; the `random` module reseeds itself.
        sys.modules["numpy"].random.seed()


def run(control: Control) -> int:
    """Receives this worker's job, calls its entry, and returns the exit status."""
    try:
        received = control.receive(START_S)
        if received is None:
            return 1  # the launcher has closed the control without sending a job
        message = parse_entry(received.value)
        adopt_context(message.context)
        _configure_jax()
        import_object(message.entry)(message.job, control, received.fds)
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        text = traceback.format_exc()
        print(text, file=sys.stderr, end="")
        report = Failed(
            type(error).__name__, str(error), text, isinstance(error, UserError), isinstance(error, EnvironmentFailed)
        )
        with contextlib.suppress(OSError):  # the launcher may be gone; the log has the error
            control.send(report.to_json(), timeout_s=5.0)
        return 1


def leave(status: int) -> None:
    """Ends the process at once, without running the exit handlers of modules that a server imported."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(status & 0xFF)


def adopt_context(context: ProcessContext) -> None:
    """Sets environment variables, arguments, module path and working directory as in the user's process."""
    os.environ.clear()
    os.environ.update(context.environ)
    sys.argv[:] = context.argv
    sys.path[:] = context.path
    named_modules.restore(context.modules)
    importlib.invalidate_caches()
    if context.directory is not None:
        os.chdir(context.directory)
    named_modules.keep_settings_out()


def set_name(name: str) -> None:
    """The name that `ps` and `top` show."""
    prctl(PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:15]))


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Has the kernel signal this process when its parent ends; 0 cancels that."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def reset_signals() -> None:
    """Restores the handlers of a fresh interpreter, except that SIGINT is ignored."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, exit statuses are lost
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _configure_jax() -> None:
    if "jax" in sys.modules:
        # JAX read these when the server imported it.
        config = sys.modules["jax"].config
        for variable, setting in _JAX_SETTINGS.items():
            value = os.environ.get(variable)
            if value is not None:
                config.update(setting, value if setting == "jax_platforms" else _truth(variable, value))


def _truth(variable: str, value: str) -> bool:
    if value.lower() in ("1", "true", "yes", "on", "t", "y"):
        return True
    if value.lower() in ("0", "false", "no", "off", "f", "n", ""):
        return False
    raise UserError(f"found {variable}={value}, expected true or false")


def main() -> None:
    """A fresh interpreter, with the arguments CONTROL_FD PARENT NAME."""
    fd, parent, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    become(name, parent)
    os.set_inheritable(fd, False)
    leave(run(Control.attach(fd)))
