"""Which of many processes have sent a message or ended: one epoll, so that a look costs what has happened, not how many
there are."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterable

from runnel.launch.local_launcher import LocalProcess


class ProcessWatch:
    """Processes of this machine, each watched from `add` to `drop`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._names: dict[int, str] = {}  # by descriptor
        self._fds: dict[str, list[int]] = {}  # by name

    def add(self, processes: Iterable[LocalProcess]) -> None:
        for process in processes:
            self.drop(process.name)
            fds = [fd for fd in (process.control.fileno(), process.fileno()) if fd >= 0]
            self._fds[process.name] = fds
            for fd in fds:
                self._names[fd] = process.name
                self._epoll.register(fd, select.EPOLLIN)

    def drop(self, name: str) -> None:
        """No longer watches a process. To be called before its descriptors are closed, whose numbers others may get."""
        for fd in self._fds.pop(name, ()):
            if self._names.get(fd) == name:
                del self._names[fd]
                with contextlib.suppress(OSError):  # closed already, and thereby dropped
                    self._epoll.unregister(fd)

    def fileno(self) -> int:
        """For select and poll: readable when `poll` would return something."""
        return self._epoll.fileno()

    def poll(self, seconds: float) -> set[str]:
        """The processes that have sent a message or ended; waits for the first at most so long."""
        return {self._names[fd] for fd, _ in self._epoll.poll(max(0.0, seconds)) if fd in self._names}

    def close(self) -> None:
        self._epoll.close()
        self._names.clear()
        self._fds.clear()
