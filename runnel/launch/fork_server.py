"""A process that imports what workers need, and forks workers from itself.

It is a fresh interpreter, never a fork of the user's process, and handles one order at a time: it imports modules,
starts workers, reaps them and reports their exit statuses. When the process that started it is gone, it ends its
workers and itself.

Forking is safe while this process has a single thread and JAX has started no backend. If an import breaks that (a
module that creates an array at import does), workers are started as fresh interpreters instead, which is slower.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from runnel.config.serialization import import_object
from runnel.errors import UserError
from runnel.launch import worker_process
from runnel.launch.control import Control
from runnel.launch.fork_messages import (
    ForkReport,
    ImportModules,
    PrepareWorkers,
    ProcessContext,
    StartRefused,
    StartWorker,
    WorkerExited,
    WorkerStarted,
    parse_order,
)

END_S = 5.0
"""How long killed workers are waited for, at most, before the server ends."""


class ForkServer:
    """The state of this process; see the module."""

    def __init__(self, channel: Control, parent: int, parent_lasts: bool):
        self._channel = channel
        self._parent = parent
        self._parent_lasts = parent_lasts
        # The channel's end is not enough to notice the parent's: a process that the parent forked may hold it open.
        self._parent_pidfd = os.pidfd_open(parent)
        if os.getppid() != parent:
            os._exit(1)
        self._workers: dict[int, tuple[int, int]] = {}  # by pidfd: process id, serial number
        self._unsafe: str | None = None

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.register(self._parent_pidfd, select.POLLIN)
        try:
            while True:
                for fd, _ in poll.poll():
                    if fd in self._workers:
                        poll.unregister(fd)
                        self._reap(fd)
                    elif fd == self._parent_pidfd or not self._serve_one(poll):
                        return
        except BrokenPipeError:
            return  # the parent is gone
        finally:
            self._end_workers()

    def _serve_one(self, poll: select.poll) -> bool:
        try:
            received = self._channel.receive()
        except UserError:  # too many open files for the descriptors of an order
            self._report(StartRefused(None, errno.EMFILE))
            return True
        if received is None:
            return not self._channel.closed
        match parse_order(received.value):
            case ImportModules(modules, context):
                self._import(modules, context)
            case PrepareWorkers(entry, job, context):
                self._prepare(entry, job, context)
            case StartWorker(serial, name):
                pidfd = self._start(serial, name, *received.fds)
                if pidfd is not None:
                    poll.register(pidfd, select.POLLIN)
        return True

    def _import(self, modules: Sequence[str], context: ProcessContext) -> None:
        with self._loading():
            with _logged("entering the working directory"):
                worker_process.adopt_context(context)
            for name in modules:
                with _logged(f"importing {name}"):
                    importlib.import_module(name)

    def _prepare(self, entry: str, job: dict[str, Any], context: ProcessContext) -> None:
        with self._loading(), _logged(f"preparing with {entry}"):
            worker_process.adopt_context(context)  # includes modules named since the server started
            import_object(entry)(job)

    @contextlib.contextmanager
    def _loading(self) -> Iterator[None]:
        """Around user code, which may take long or hang, and may make it unsafe to fork this process."""
        # The parent's end is otherwise noticed only between two orders. Not used if the parent started this process
        # from a thread that may end: the kernel takes the end of that thread for the parent's.
        if self._parent_lasts:
            worker_process.die_with_parent(self._parent)
        try:
            yield
        finally:
            if self._parent_lasts:
                worker_process.die_with_parent(self._parent, 0)
            worker_process.reset_signals()
            reason = _unsafe_to_fork()
            if reason and not self._unsafe:
                _log(f"{reason}: workers start as fresh interpreters, which takes longer")
            self._unsafe = reason
            gc.freeze()  # a collection in a worker would otherwise write to, and so copy, every page shared with it

    def _start(self, serial: int, name: str, control: int, log: int) -> int | None:
        """Starts a worker; returns a pidfd that signals its end, or None if the system refused another process."""
        pid = None
        try:
            pid = self._spawn(name, control, log) if self._unsafe else self._fork(name, control, log)
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            self._report(StartRefused(serial, error.errno or 0))
            return None
        finally:
            os.close(control)
            os.close(log)
        self._workers[pidfd] = pid, serial
        self._report(WorkerStarted(serial, pid), [pidfd])
        return pidfd

    def _fork(self, name: str, control: int, log: int) -> int:
        parent = os.getpid()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # forking is safe here: `_unsafe_to_fork` has checked it
            pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            os.dup2(log, 1)
            os.dup2(log, 2)
            # Only what the server itself has opened: other descriptors belong to modules that are still loaded.
            self._channel.close()
            for fd in (log, self._parent_pidfd, *self._workers):
                os.close(fd)
            worker_process.become(name, parent)
            status = worker_process.run(Control.attach(control))
        except BaseException:
            traceback.print_exc()
        finally:
            worker_process.leave(status)
        raise AssertionError("unreachable")

    def _spawn(self, name: str, control: int, log: int) -> int:
        os.set_inheritable(control, True)
        command = [sys.executable, *worker_process.FRESH, str(control), str(os.getpid()), name]
        outputs = [(os.POSIX_SPAWN_DUP2, log, fd) for fd in (1, 2)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return os.posix_spawn(sys.executable, command, environ, file_actions=outputs)

    def _reap(self, pidfd: int) -> None:
        pid, serial = self._workers.pop(pidfd)
        _end_group(pid)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        self._report(WorkerExited(serial, os.waitstatus_to_exitcode(status)))

    def _report(self, report: ForkReport, fds: Sequence[int] = ()) -> None:
        """Sends to the parent, which may not read for a long time: it computes, or was stopped at a terminal."""
        while True:
            try:
                return self._channel.send(report.to_json(), fds, timeout_s=1.0)
            except TimeoutError:
                if os.getppid() != self._parent:
                    raise BrokenPipeError("the parent is gone") from None

    def _end_workers(self) -> None:
        for pid, _ in self._workers.values():
            os.kill(pid, signal.SIGKILL)  # it may not lead its group yet
            _end_group(pid)
        deadline = time.monotonic() + END_S
        for pidfd, (pid, _) in self._workers.items():
            gone = select.poll()
            gone.register(pidfd, select.POLLIN)
            if gone.poll(max(0.0, deadline - time.monotonic()) * 1000):
                os.waitpid(pid, 0)


def _end_group(pid: int) -> None:
    """Ends processes that a worker has started. The worker is not reaped yet, so its process id is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _unsafe_to_fork() -> str | None:
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)  # private to JAX: it may go
    if started is not None and started():
        return "an import has started JAX's backend"
    threads = len(os.listdir("/proc/self/task"))
    return f"an import has started threads ({threads - 1})" if threads > 1 else None


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """Logs an error instead of raising it: it occurs again, and is then reported, in the worker that is concerned."""
    try:
        yield
    except (Exception, SystemExit) as error:
        _log(f"{what} failed: {type(error).__name__}: {error}")


def _log(text: str) -> None:
    print(f"{worker_process.inside}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """With the arguments CHANNEL_FD PARENT NAME [lasts]."""
    fd, parent, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.set_inheritable(fd, False)
    worker_process.inside = name
    worker_process.set_name(name)
    worker_process.reset_signals()
    server = ForkServer(Control.attach(fd), parent, "lasts" in sys.argv[4:])
    server.serve()
    os._exit(0)
