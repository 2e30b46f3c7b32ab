"""Breaking runs: a run as its own process, its workers found by their names, killed or stopped at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from runnel.recording.events import read_events


def descendants(pid: int) -> dict[int, str]:
    """Every process below another, by id: its name."""
    parents: dict[int, tuple[int, str, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            name, _, rest = text.partition("(")[2].rpartition(")")
            state, parent = rest.split()[:2]
            parents[int(entry)] = (int(parent), name, state)
    found, grown = {pid: ""}, True
    while grown:
        grown = False
        for child, (parent, name, state) in parents.items():
            if parent in found and child not in found and state != "Z":
                found[child], grown = name, True
    del found[pid]
    return found


@dataclass
class Broken:
    """One thing that was done to a run."""

    worker: str
    signal: str
    recovery_s: float | None = None


@dataclass
class Chaos:
    """A run, and what breaks it."""

    command: Sequence[str]
    run_dir: Path
    workers: Sequence[str]  # names to choose from
    seed: int = 0
    pause_s: tuple[float, float] = (1.0, 5.0)
    signals: Sequence[int] = (signal.SIGKILL, signal.SIGSTOP)
    most: int = 10**9
    endless: bool = False  # it has no end of its own: once broken often enough it is stopped, and resumed for its end
    done: list[Broken] = field(default_factory=list)

    def run(self, limit_s: float = 1500.0) -> int:
        """Lets it run to its end; gives the exit status, or raises where it takes too long.

        The limit finds a run that never ends: on a busy machine each of many recoveries takes a quarter of a minute.
        """
        draw = random.Random(self.seed)
        deadline = time.monotonic() + limit_s
        log = self.run_dir.with_suffix(".out").open("wb")
        process = subprocess.Popen([sys.executable, "-m", "runnel", *self.command], stdout=log, stderr=log)
        try:
            if not self._wait_for(process, lambda: (self.run_dir / "metrics.jsonl").exists(), deadline):
                return process.wait(max(0.1, deadline - time.monotonic()))
            while len(self.done) < self.most:
                if self._ends_within(process, draw.uniform(*self.pause_s)):
                    break
                self._break_one(process, draw, deadline)
            if self.endless and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                status = process.wait(max(0.1, deadline - time.monotonic()))
                return status or self._resume(log, deadline)
            return process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            log.close()

    def _resume(self, log: IO[bytes], deadline: float) -> int:
        """Goes on a little, to its end."""
        steps = self.result()["env_steps"] + 150_000
        command = ["-m", "runnel", "resume", str(self.run_dir), "--quiet", "--steps", str(steps)]
        limit_s = max(0.1, deadline - time.monotonic())
        return subprocess.run(
            [sys.executable, *command], stdout=log, stderr=log, timeout=limit_s, check=False
        ).returncode

    def _break_one(self, process: subprocess.Popen[bytes], draw: random.Random, deadline: float) -> None:
        alive = {name: pid for pid, name in descendants(process.pid).items() if name in self.workers}
        if not alive:
            return
        name = draw.choice(sorted(alive))
        number = draw.choice(list(self.signals))
        before, began = len(self._recoveries()), time.monotonic()
        try:
            os.kill(alive[name], number)
        except ProcessLookupError:
            return
        broken = Broken(name, signal.Signals(number).name)
        self.done.append(broken)
        if self._wait_for(process, lambda: self._recovered(name, before), deadline):
            broken.recovery_s = time.monotonic() - began

    def _recoveries(self) -> list[dict]:
        return [event for event in read_events(self.run_dir) if event["event"] == "recovered"]

    def _recovered(self, name: str, before: int) -> bool:
        return any(event["worker"] == name for event in self._recoveries()[before:])

    def _ends_within(self, process: subprocess.Popen[bytes], seconds: float) -> bool:
        try:
            process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def _wait_for(self, process: subprocess.Popen[bytes], done, deadline: float) -> bool:
        while time.monotonic() < deadline:
            if done():
                return True
            if process.poll() is not None:
                return False
            time.sleep(0.05)
        raise TimeoutError(f"nothing happened until the limit; output:\n{self.output()}")

    def output(self) -> str:
        return self.run_dir.with_suffix(".out").read_text(errors="replace")[-4000:]

    def result(self) -> dict:
        return json.loads((self.run_dir / "result.json").read_text())
