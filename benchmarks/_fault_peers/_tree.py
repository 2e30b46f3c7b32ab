"""A run seen from outside: its processes, whoever their parent is by now, and what they keep in /dev/shm."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

_SHM = "/dev/shm/"


class Tree:
    """A command and all it starts. Ends with `close`, which leaves no process of it."""

    def __init__(self, command: list[str], environ: dict[str, str], log: Path, directory: Path):
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command, env=environ, cwd=directory, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self._mark = f"FAULT_DIR={environ['FAULT_DIR']}\0".encode()
        self._seen: dict[int, str] = {self.pid: _start_of(self.pid)}  # by process id: when it started
        self._shm: set[str] = set()
        self._looked_at = 0.0

    def exit_status(self) -> int | None:
        self._look()
        return self._process.poll()

    def living(self) -> dict[int, str]:
        """Process ids and names of all that run, the main process included.

        Known by descent, or by the environment variable they inherited, and from then on: whose parent has ended is
        no descendant any more, and some write over their environment. (A subreaper would be simpler, but there are
        workers that end when they see themselves a child of process 1, and they must.)
        """
        children: dict[int, list[int]] = {}
        running: dict[int, tuple[str, str]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                pid = int(entry)
                with contextlib.suppress(OSError):
                    name, rest = _stat(pid)
                    children.setdefault(int(rest[1]), []).append(pid)
                    if rest[0] not in "ZX":
                        running[pid] = name, rest[19]
                        if pid not in self._seen and self._mark in Path("/proc", entry, "environ").read_bytes():
                            self._seen[pid] = rest[19]
        todo = [pid for pid, start in self._seen.items() if running.get(pid, ("", ""))[1] == start]
        while todo:
            for pid in children.get(todo.pop(), ()):
                if pid in running and pid not in self._seen:
                    self._seen[pid] = running[pid][1]
                    todo.append(pid)
        return {pid: running[pid][0] for pid, start in self._seen.items() if running.get(pid, ("", ""))[1] == start}

    def orphans(self, grace_s: float) -> list[str]:
        """Names of what still runs `grace_s` after the main process has ended; sooner, where nothing does."""
        deadline = time.monotonic() + grace_s
        while (left := self.living()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return sorted(_described(pid, name) for pid, name in left.items())

    def shm_left(self) -> list[str]:
        """Of what processes of this run had in /dev/shm, that which is there still."""
        return sorted(path for path in self._shm if os.path.exists(path))

    def close(self) -> None:
        """Kills all of it, by process id, and removes what it left in /dev/shm."""
        deadline = time.monotonic() + 20.0
        while (left := self.living()) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        self._process.wait()
        for path in self.shm_left():
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._log.close()

    def _look(self) -> None:
        """Notes what is mapped or open in /dev/shm, now and then: it cannot be told from others' afterwards."""
        if time.monotonic() - self._looked_at < 1.0:
            return
        self._looked_at = time.monotonic()
        for pid in self.living():
            with contextlib.suppress(OSError):
                for line in Path("/proc", str(pid), "maps").read_text().splitlines():
                    if _SHM in line:
                        self._shm.add(line[line.index(_SHM) :])
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        target = os.readlink(f"/proc/{pid}/fd/{fd}")
                        if target.startswith(_SHM):
                            self._shm.add(target)
        self._shm = {path for path in self._shm if not path.endswith("(deleted)")}


def _stat(pid: int) -> tuple[str, list[str]]:
    """The name of a process, and what follows it: state, parent, ..., at 19 when it started."""
    text = Path("/proc", str(pid), "stat").read_text()
    return text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()


def _start_of(pid: int) -> str:
    return _stat(pid)[1][19]


def _described(pid: int, name: str) -> str:
    """Many a process is called python: what it runs says more."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    return name if not name.startswith("python") else f"{name} {' '.join(words[1:4])[:60]}".strip()
