"""The launcher's side of a fork server."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO, NamedTuple

from runnel.errors import UserError
from runnel.launch.control import Control, Received
from runnel.launch.fork_messages import (
    ForkOrder,
    StartRefused,
    StartWorker,
    WorkerExited,
    WorkerStarted,
    parse_report,
)

START_S = 300.0
"""How long a start may take, which includes a server's imports."""

REPORT_S = 1.0
"""How long after a worker's end its exit status may arrive."""

WINDOW = 32
"""The most orders without a reply: more of them would fill the sockets' buffers."""

SERVER = ("-P", "-c", "from runnel.launch.fork_server import main; main()")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""For a server: a library that starts threads when it is loaded would make it unsafe to fork."""


class ServerLost(UserError):
    """A server ended by itself."""


class StartReply(NamedTuple):
    """A server's answer to the start of a worker."""

    report: WorkerStarted | StartRefused
    fds: tuple[int, ...]
    """The pidfd of a worker that has started."""


class ForkServerClient:
    """Starts a fork server, sends it orders and receives its reports."""

    def __init__(self, name: str, log: Path | None):
        self.name = name
        self._serials = 0
        self._outstanding: deque[int] = deque()  # starts that have no reply yet, in order
        self._replies: dict[int, StartReply] = {}
        self._running: set[int] = set()
        self._statuses: dict[int, int] = {}
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        self._log: IO[bytes] = tempfile.TemporaryFile() if log is None else open(log, "ab+")  # noqa: SIM115
        self._channel, theirs = Control.pair()
        # The kernel's notice of a parent's end is that of the thread which started the process.
        lasts = ["lasts"] if threading.current_thread() is threading.main_thread() else []
        try:
            self._popen = subprocess.Popen(
                [sys.executable, *SERVER, str(theirs.fileno()), str(os.getpid()), name, *lasts],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
                process_group=0,  # Ctrl-C at the terminal is the user's process's to handle
            )
        except BaseException:
            self._channel.close()
            self._log.close()
            raise
        finally:
            theirs.close()

    def lost(self) -> bool:
        self._pump(0.0)
        return self._channel.closed

    def order(self, order: ForkOrder) -> None:
        with contextlib.suppress(BrokenPipeError):  # the next start notices
            self._channel.send(order.to_json())

    def begin(self, name: str, control: int, log: int) -> int:
        """Requests a worker; `reply`, called with the number returned, says whether it has a process."""
        deadline = time.monotonic() + START_S
        while len(self._outstanding) >= WINDOW and not self._channel.closed:
            self._await(deadline)
        self._serials += 1
        with contextlib.suppress(BrokenPipeError):  # `reply` notices
            self._channel.send(StartWorker(self._serials, name).to_json(), [control, log])
        self._outstanding.append(self._serials)
        return self._serials

    def reply(self, serial: int) -> StartReply:
        deadline = time.monotonic() + START_S
        while serial not in self._replies:
            self._await(deadline)
        return self._replies.pop(serial)

    def exit_status(self, serial: int, pidfd: int) -> int | None:
        self._pump(0.0)
        if serial not in self._statuses and readable(pidfd, 0.0):
            deadline = time.monotonic() + REPORT_S
            while serial not in self._statuses and not self._channel.closed and time.monotonic() < deadline:
                self._pump(deadline - time.monotonic())
            if self._channel.closed:
                # Its exit status is lost; the kernel kills the workers of a server that ends.
                self._statuses.setdefault(serial, -signal.SIGKILL)
        return self._statuses.get(serial)

    def close(self) -> None:
        """Its workers end with it."""
        self._pump(0.0)
        self._channel.close()  # on which it ends them, and itself
        try:
            # It may be in the middle of an import; without workers to reap, there is no need to wait for that.
            self._popen.wait(10.0 if self._running else 1.0 if self._outstanding else 0.1)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        for reply in self._replies.values():
            for fd in reply.fds:
                os.close(fd)
        self._replies.clear()
        self._log.close()

    def _await(self, deadline: float) -> None:
        if self._channel.closed:
            raise ServerLost(self._said("ended"))
        if time.monotonic() > deadline:
            raise UserError(self._said(f"has started no worker in {START_S:.0f} s"))
        self._pump(deadline - time.monotonic())

    def _pump(self, timeout_s: float) -> None:
        """Receives the server's messages; waits for the first."""
        while not self._channel.closed:
            try:
                received = self._channel.receive(timeout_s)
            except UserError:  # too many open files for a reply's descriptor; that worker ends with its control
                received = Received(StartRefused(None, errno.EMFILE).to_json())
            if received is None:
                return
            timeout_s = 0.0
            match parse_report(received.value):
                case WorkerExited(serial, status):
                    self._running.discard(serial)
                    self._statuses[serial] = status
                case report:
                    serial = self._outstanding.popleft()
                    self._replies[serial] = StartReply(report, received.fds)
                    if isinstance(report, WorkerStarted):
                        self._running.add(serial)

    def _said(self, what: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(1.0 if self._channel.closed else 0.0)
        how = "" if self._popen.returncode is None else f" with status {self._popen.returncode}"
        text = ("" if self._log.closed else tail(self._log, 20)) or "nothing"
        return f"'{self.name}', the process that starts workers, {what}{how}; its output: {text}"


def readable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def tail(file: IO[bytes], lines: int) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 64 * 1024))
    return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
