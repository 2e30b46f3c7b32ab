"""One run directory, one run at a time: a lock that its process holds, and that the kernel releases when it ends.

    with hold(run_dir, notes.append):
        ...

It is `flock` on `.lock` in the run directory and, where possible, on the directory itself, so that removing the file
does not release it. The file stays there and names the last holder. Processes that this one forks do not inherit the
lock: a worker that outlives its driver does not keep the next run out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError
from runnel.recording import run_directory

FILE: Final = ".lock"

WITHOUT: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
"""The errors of file systems without locks."""

LOOKS, LOOK_S = 5, 0.02
"""The number of retries, and their interval, for a lock that another process may hold only to check it."""

_held: set[int] = set()
"""The descriptors of this process's locks. A fork closes them: `flock` lasts until every process has closed its own."""


@contextlib.contextmanager
def hold(run_dir: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Keeps other runs out of a run directory. `note` is called if the file system has no locks."""
    try:
        fd = run_directory.open_to_append(run_dir, FILE, os.O_RDWR)
    except OSError as error:
        raise UserError(
            f"cannot write a run into {run_dir}: {error.strerror}; choose another run_dir=", keywords=("run_dir",)
        ) from None
    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _held.update((fd, folder))
    try:
        _take(fd, folder, run_dir, note)
        yield
    finally:
        for each in {fd, folder} & _held:  # not in a fork of this process
            _held.discard(each)
            os.close(each)


def check_free(run_dir: Path) -> None:
    """Refuses a run directory that another run holds; changes nothing in it."""
    try:
        with run_directory.open_to_read(run_dir, FILE, 4096) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with run_directory.open_to_read(run_dir, FILE, 4096) as file:
            raise _used(run_dir, file.fileno()) from None
    except OSError:
        pass  # there is none, or it is no plain file: `hold` will raise


def in_use(run_dir: Path | str) -> bool:
    """Whether a run holds the directory now. The check locks it for an instant, which `hold` waits for."""
    try:
        with run_directory.open_to_read(run_dir, FILE, 4096) as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # there is none, or no plain file, or the file system has no locks
    return False


def _used(run_dir: Path, fd: int) -> UserError:
    return UserError(
        f"{run_dir} is in use by another run{_holder(fd)}; wait for its end or stop it, or choose another directory",
        page="run-directory#one-run-at-a-time",
    )


def _take(fd: int, folder: int, run_dir: Path, note: Callable[[str], None]) -> None:
    try:
        _lock(fd)
        _lock_folder(folder)
    except BlockingIOError:
        raise _used(run_dir, fd) from None
    except OSError as error:
        if error.errno not in WITHOUT:
            raise UserError(f"cannot lock {run_dir}: {error.strerror}") from None
        note(f"the file system of {run_dir} has no locks ({error.strerror}): nothing keeps a second run out of it")
    here = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps(here).encode())


def _lock(fd: int) -> None:
    """Raises BlockingIOError if another run has it; retries while `in_use` checks it."""
    for _ in range(LOOKS):
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOOK_S)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_folder(fd: int) -> None:
    """Raises BlockingIOError if another run has it. NFS cannot lock directories; then only the file is locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass


def _holder(fd: int) -> str:
    """` (process 42 on box, since 2026-01-31 12:00:00 +0100)`, where it can be read."""
    try:
        found: Any = json.loads(os.pread(fd, 4096, 0))
        return f" (process {int(found['pid'])} on {str(found['host'])[:64]}, since {str(found['since'])[:32]})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return ""


def _let_go() -> None:
    for fd in _held:
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
