"""The launcher of one machine: workers are processes, forked from servers that have imported what they need.

The servers import while the user's process does its own imports (`warm`); `start` then takes milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from runnel.errors import UserError
from runnel.launch import worker_process
from runnel.launch.control import Control, too_many_descriptors
from runnel.launch.fork_messages import (
    ForkOrder,
    ImportModules,
    PrepareWorkers,
    ProcessContext,
    RunEntry,
    StartRefused,
)
from runnel.launch.fork_server_client import ONE_THREAD, REPORT_S, ForkServerClient, ServerLost, readable, tail
from runnel.recording import run_directory
from runnel.system.platform import check_worker_processes
from runnel.user_code import named_modules


@dataclass(frozen=True)
class WorkerCommand:
    """A worker to start."""

    name: str
    entry: str
    """`package.module:function` or `/path/file.py:function`, called as `function(job, control, fds)`."""
    job: dict[str, Any]
    fds: tuple[int, ...] = ()
    """Descriptors to hand over; the worker gets its own numbers for them, in this order."""
    env_only: bool = False
    """Whether it never needs JAX."""
    environ: dict[str, str] = field(default_factory=dict)
    """Added to the environment variables of this process. Of those that JAX reads when it is imported, only
    JAX_PLATFORMS and JAX_ENABLE_X64 have an effect."""
    log: Path = field(kw_only=True)
    """The file to which its standard output and error are appended."""


class LocalProcess:
    """A worker that was started."""

    def __init__(
        self, worker: WorkerCommand, server: ForkServerClient, serial: int, pid: int, pidfd: int, control: Control
    ):
        self.name = worker.name
        self.pid = pid
        self.log = worker.log
        self.control = control
        """This end of the worker's `control`. What the worker sent can still be received after it has ended."""
        self._server = server
        self._serial = serial
        self._pidfd = pidfd
        self._status: int | None = None

    def fileno(self) -> int:
        """For select and poll: readable once the process has ended."""
        return self._pidfd

    def ended(self) -> bool:
        """Whether it has ended, however that was."""
        return self._pidfd < 0 or readable(self._pidfd, 0.0)

    def exit_status(self) -> int | None:
        """As in subprocess: negative where a signal ended it, None while it runs.

        Also None, after a second's wait, if it has ended and its server is too busy to report how.
        """
        if self._status is None and self._pidfd >= 0:
            self._status = self._server.exit_status(self._serial, self._pidfd)
        return self._status

    def wait(self, timeout_s: float) -> int | None:
        """The exit status, or None where it still runs after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.exit_status() is None and self._pidfd >= 0 and time.monotonic() < deadline:
            readable(self._pidfd, deadline - time.monotonic())
        return self._status

    def terminate(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def stopped(self) -> bool:
        """Whether it was stopped by a signal, and has not been continued."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "Tt"
        except OSError:
            return False

    def tracebacks(self, timeout_s: float = 2.0) -> str:
        """The stacks of all its threads, as it writes them into its log; also of a process that is stopped."""
        try:
            before = self.log.stat().st_size
            self._signal(signal.SIGUSR1)
            self._signal(signal.SIGCONT)
            deadline, seen = time.monotonic() + timeout_s, before
            while time.monotonic() < deadline and not (before < seen == self.log.stat().st_size):
                seen = self.log.stat().st_size
                time.sleep(0.05)
            with self.log.open("rb") as file:
                file.seek(before)
                return file.read(64 * 1024).decode(errors="replace")
        except OSError as error:
            return f"(the log cannot be read: {error})"

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        try:
            with open(self.log, "rb") as file:
                return tail(file, lines)
        except OSError as error:
            return f"(the log cannot be read: {error})"

    def close(self) -> None:
        """Kills it if it still runs, and closes the descriptors; nothing but `tail` can be used afterwards."""
        if self._pidfd >= 0:
            if not self.ended():
                self.kill()
                readable(self._pidfd, REPORT_S)
            os.close(self._pidfd)
            self._pidfd = -1
        self.control.close()

    def _signal(self, number: int) -> None:
        # By pidfd: the process id may be another's by now.
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


class LocalLauncher:
    """Starts processes on this machine and, at the latest in `close`, ends them. For use by one thread.

        with LocalLauncher() as launcher:
            launcher.warm(jax=["package.module"])
            process = launcher.start(WorkerCommand("actor-0", "package.module:function", job, log=log))
            process.control.send({"begin": True})
            process.wait(timeout_s=10.0)

    `log` takes what the servers print; without it that is kept in an unnamed file, for errors to quote.
    """

    def __init__(self, log: Path | None = None):
        if worker_process.inside is not None:
            raise UserError(
                f"found '{worker_process.inside}', itself a process that runnel started, starting a run: it imported a "
                "script that does; put that part of it under `if __name__ == '__main__':`, or its classes into a module"
            )
        check_worker_processes("worker processes", "a run of one process needs none")
        self._log = log
        self._servers: dict[bool, ForkServerClient] = {}  # by WorkerCommand.env_only
        self._orders: dict[bool, list[ForkOrder]] = {True: [], False: []}  # sent to a new server first
        self._processes: list[LocalProcess] = []
        self._closed = False

    def __enter__(self) -> LocalLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm(self, env_only: Sequence[str] | None = None, jax: Sequence[str] | None = None) -> None:
        """Begins to import these modules in the server without JAX, and in the one with it; does not wait.

        None: that server is left as it is; an empty list starts it. A module that cannot be imported is left to the
        worker that needs it.
        """
        for without_jax, modules in ((True, env_only), (False, jax)):
            if modules is not None:
                self._order(without_jax, ImportModules(list(modules), _own_context(ONE_THREAD)))

    def prepare(self, entry: str, job: dict[str, Any]) -> None:
        """Has the server with JAX call `entry(job)` before it starts further workers; does not wait.

        What the call leaves in its own module (a cache) every worker inherits that is forked from the server. An
        error in it is ignored: the worker that needs what it makes will raise it again.
        """
        self._order(False, PrepareWorkers(entry, job, _own_context(ONE_THREAD)))

    def start(self, worker: WorkerCommand) -> LocalProcess:
        """Starts a worker and returns when it has a process."""
        return self.start_all([worker])[0]

    def start_all(self, workers: Iterable[WorkerCommand]) -> list[LocalProcess]:
        """Starts several at once; faster than one after another if both servers are used."""
        self._processes = [process for process in self._processes if process.fileno() >= 0]
        begun: list[_Begun] = []
        started: list[LocalProcess] = []
        try:
            for worker in workers:
                begun.append(self._begin(worker))
            for i, start in enumerate(begun):
                try:
                    started.append(self._finish(start))
                except ServerLost:  # and with it all it had started; once more, from a new one
                    start.control.close()
                    begun[i] = self._begin(start.worker)
                    started.append(self._finish(begun[i]))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise too_many_descriptors(f"no descriptor left after {len(self._processes)} workers") from error
            raise
        finally:
            for start in begun[len(started) :]:
                start.control.close()  # a worker whose control is closed ends by itself
        return started

    def close(self, timeout_s: float = 5.0) -> None:
        """Ends everything that still runs: SIGTERM, SIGKILL for what is left after `timeout_s`, then the servers."""
        self._closed = True
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + timeout_s
        for process in self._processes:
            if not process.ended() and not readable(process.fileno(), deadline - time.monotonic()):
                process.kill()
        # Collects exit statuses for later calls, unless a server is too busy to report them.
        deadline = time.monotonic() + REPORT_S
        for process in self._processes:
            if time.monotonic() < deadline:
                process.wait(deadline - time.monotonic())
        for server in self._servers.values():
            server.close()
        for process in self._processes:
            process.close()
        self._processes.clear()
        self._servers.clear()

    def _order(self, env_only: bool, order: ForkOrder) -> None:
        server = self._server(env_only)
        self._orders[env_only].append(order)
        server.order(order)

    def _server(self, env_only: bool) -> ForkServerClient:
        """The server, started or, where it was lost, started again."""
        if self._closed:
            raise RuntimeError("this launcher is closed")
        server = self._servers.get(env_only)
        if server is None or server.lost():
            if server is not None:
                server.close()
            server = self._servers[env_only] = ForkServerClient("runnel-env" if env_only else "runnel-jax", self._log)
            server.order(ImportModules([] if env_only else ["jax"], _own_context(ONE_THREAD)))
            for order in self._orders[env_only]:
                server.order(order)
        return server

    def _begin(self, worker: WorkerCommand) -> _Begun:
        server = self._server(worker.env_only)
        log = opened_log(worker.log)
        try:
            ours, theirs = Control.pair()
            try:
                return _Begun(worker, ours, server, server.begin(worker.name, theirs.fileno(), log))
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
        finally:
            os.close(log)

    def _finish(self, start: _Begun) -> LocalProcess:
        worker, control, server, serial = start
        report, fds = server.reply(serial)
        if isinstance(report, StartRefused):
            raise refusal(worker.name, len(self._processes), report.errno)
        process = LocalProcess(worker, server, serial, report.pid, fds[0], control)
        self._processes.append(process)
        message = RunEntry(worker.entry, worker.job, _own_context(worker.environ))
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which its exit status will show
            control.send(message.to_json(), worker.fds)
        return process


def opened_log(path: Path) -> int:
    """A descriptor that appends to a worker's log, which has a directory of its own in that of the run."""
    folder = path.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        run_directory.make_directory(folder.parent, folder.name)
        return run_directory.open_to_append(folder.parent, f"{folder.name}/{path.name}")
    except run_directory.NotPlain as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


class _Begun(NamedTuple):
    """A worker that was requested."""

    worker: WorkerCommand
    control: Control
    server: ForkServerClient
    serial: int


def _own_context(environ: dict[str, str]) -> ProcessContext:
    """This process's context, with more environment variables."""
    try:
        directory = os.getcwd()
    except FileNotFoundError:  # it was removed
        directory = None
    path = [entry for entry in sys.path if isinstance(entry, str)]  # Python ignores others, too
    argv = [str(argument) for argument in sys.argv]
    return ProcessContext({**os.environ, **environ}, argv, path, named_modules.state(), directory)


def refusal(name: str, running: int, number: int) -> UserError:
    """Why a worker could not be started, by the error's number."""
    if number in (errno.EMFILE, errno.ENFILE):
        return too_many_descriptors(f"no descriptor left for '{name}' after {running} workers")
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    may = "" if limit == resource.RLIM_INFINITY else f" (this user may have {limit} processes and threads)"
    return UserError(
        f"found no room for the process of '{name}' after {running} workers: {os.strerror(number)}{may}; "
        "use fewer workers, or raise the limit with `ulimit -u`, or the container's limit of processes or memory",
        page="command-line#doctor",
    )
