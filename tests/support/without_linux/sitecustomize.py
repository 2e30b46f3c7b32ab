"""Makes this Python one without what only Linux has, before anything else is imported.

A process that has this directory on its PYTHONPATH has lost the calls, constants and directories below, and its
`sys.platform` is that of macOS. Whatever opens one of the directories gets a FileNotFoundError, and is listed in
`sys.opened_of_linux`.
"""

import _socket
import ctypes
import errno
import fcntl
import mmap
import os
import posix
import resource
import select
import signal
import sys
import sysconfig
import time
import types
from fnmatch import fnmatchcase
from typing import Any

LOST = {
    os: (
        "sched_getaffinity", "sched_setaffinity", "sched_setscheduler", "sched_getscheduler", "eventfd", "eventfd_read",
        "eventfd_write", "EFD_*", "memfd_create", "MFD_*", "pidfd_open", "PIDFD_*", "O_PATH", "O_TMPFILE", "O_DIRECT",
        "O_NOATIME", "O_LARGEFILE", "posix_fallocate", "posix_fadvise", "copy_file_range", "splice", "SPLICE_*",
        "setns", "unshare", "CLONE_*", "getrandom", "GRND_*", "pipe2", "fdatasync", "getresuid", "setresuid",
        "getxattr", "setxattr", "listxattr", "removexattr", "XATTR_*", "timerfd_*", "TFD_*", "preadv2",
        "pwritev2", "RWF_*",
    ),
    select: ("epoll", "EPOLL*"),
    signal: ("pidfd_send_signal", "sigtimedwait", "sigwaitinfo", "SIGRT*", "SIGPOLL", "SIGPWR", "SIGSTKFLT", "SIGCLD"),
    _socket: (
        "MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL", "MSG_CONFIRM", "MSG_ERRQUEUE", "SO_PEERCRED", "SO_PASSCRED", "SO_MARK",
        "SCM_CREDENTIALS", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG",
        "TCP_QUICKACK", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE",
    ),
    fcntl: ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_*", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_OFD_*", "F_NOTIFY", "DN_*"),
    mmap: ("MAP_POPULATE", "MAP_STACK", "MAP_DENYWRITE", "MAP_EXECUTABLE", "MADV_HUGEPAGE", "MADV_DONTFORK"),
    resource: ("prlimit", "RUSAGE_THREAD", "RLIMIT_OFILE", "RLIMIT_MSGQUEUE", "RLIMIT_NICE", "RLIMIT_RTPRIO"),
    time: ("CLOCK_BOOTTIME", "CLOCK_TAI", "pthread_getcpuclockid"),
}  # fmt: skip
"""By module: names, or patterns of names."""

DIRECTORIES = ("/proc", "/sys", "/dev/shm")


def _lose(module: Any, patterns: tuple[str, ...]) -> None:
    for name in [name for name in vars(module) if any(fnmatchcase(name, pattern) for pattern in patterns)]:
        delattr(module, name)


def _is_of_linux(path: Any) -> bool:
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(DIRECTORIES)


def _missing(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and _is_of_linux(arguments[0]):
        sys.opened_of_linux.append(arguments[0])  # type: ignore[attr-defined]
        raise _missing(arguments[0])


def _without_directories(call: Any) -> Any:
    """`os.stat` and the like are not audited."""

    def checked(path: Any, *rest: Any, **keywords: Any) -> Any:
        if _is_of_linux(path):
            raise _missing(path)
        return call(path, *rest, **keywords)

    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if call in able:
            able.add(checked)
    return checked


class _CDLL(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in ("prctl", "memfd_create", "eventfd", "epoll_create1", "sched_setaffinity", "sched_getaffinity"):
            raise AttributeError(f"dlsym: symbol not found: {name}")
        return super().__getattr__(name)


def _sysconf(name: Any, call: Any = os.sysconf) -> int:
    if name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        raise ValueError("unrecognized configuration name")
    return call(name)


for lost_of, patterns in LOST.items():
    _lose(lost_of, patterns)
_lose(posix, LOST[os])
os.process_cpu_count = os.cpu_count  # type: ignore[attr-defined]
os.sysconf = _sysconf
for checked_call in ("stat", "lstat", "access", "readlink"):
    setattr(os, checked_call, _without_directories(getattr(os, checked_call)))
ctypes.CDLL = _CDLL  # type: ignore[misc]
sys.opened_of_linux = []  # type: ignore[attr-defined]
sys.addaudithook(_audit)
sysconfig.get_config_vars()  # of the interpreter that there is
sys.platform = "darwin"
_scproxy = types.ModuleType("_scproxy")  # which macOS has, and `urllib.request` asks there
_scproxy._get_proxies = _scproxy._get_proxy_settings = dict  # type: ignore[attr-defined]
sys.modules["_scproxy"] = _scproxy
