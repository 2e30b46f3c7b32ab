"""Stand-ins for a run's workers, as their supervisor sees them, and for its machines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runnel.config import run_config
from runnel.config.json_messages import JsonMessage
from runnel.config.run_config import RunConfig
from runnel.execution.building import BuiltRun
from runnel.execution.run import Run
from runnel.execution.session.session import Session
from runnel.execution.supervision.machine_pool import SingleMachine
from runnel.execution.training import described
from runnel.launch import LocalLauncher
from runnel.launch.framing import Received
from runnel.launch.site import LocalSite, Site
from runnel.planning.channels import WorkerSpec

DUMP = """
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/x/site-packages/runnel/runtime/compile_watch.py", line 30 in _watch

Current thread 0x00007f02 (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 706 in readinto
  File "/home/me/simulator.py", line 12 in step
  File "/x/site-packages/gymnasium/core.py", line 327 in step
"""
WAITING = """
Current thread 0x00007f02 (most recent call first):
  File "/x/site-packages/jax/_src/array.py", line 631 in _value
  File "/x/site-packages/runnel/runtime/worker.py", line 340 in _learner_boundary
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spec(name: str) -> WorkerSpec:
    return WorkerSpec(name, name.partition("-")[0], 0, False, ("cpu:0",))


class FakeProcess:
    """A worker's process and its line: records commands; `reports` are received next."""

    def __init__(self, name: str, tracebacks: str = ""):
        self.name, self.pid, self._tracebacks = name, 0, tracebacks
        self.commands: list[dict[str, Any]] = []
        self.reports: deque[Received] = deque()
        self.is_stopped, self.status, self.closed = False, None, False

    @property
    def control(self) -> FakeProcess:
        return self

    def send(self, value: Mapping[str, Any]) -> None:
        self.commands.append(dict(value))

    def send_arrays(self, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        self.commands.append(dict(header))

    def receive(self) -> Received | None:
        return self.reports.popleft() if self.reports else None

    def report(self, message: JsonMessage, **arrays: Any) -> None:
        self.reports.append(Received(message.to_json(), arrays=arrays))

    def exit_status(self) -> int | None:
        return self.status

    def wait(self, timeout_s: float) -> int | None:
        return self.status

    def stopped(self) -> bool:
        return self.is_stopped

    def tracebacks(self) -> str:
        return self._tracebacks

    def tail(self) -> str:
        return ""


class FakeGroup:
    """A worker group of fake processes; all but learners can be replaced alone."""

    def __init__(self, run_dir: Path, names: Iterable[str], tracebacks: str = ""):
        self.run_dir, self._tracebacks = run_dir, tracebacks
        self.graph = SimpleNamespace(states={})
        self.specs = {name: spec(name) for name in names}
        self.learners = {name for name in self.specs if name.startswith("learner")}
        self.processes: dict[str, FakeProcess] = {}
        self.reaped: list[str] = []
        self.start(self.specs)

    def start(self, names: Iterable[str]) -> None:
        self.processes |= {name: FakeProcess(name, self._tracebacks) for name in names}

    def poll(self, seconds: float) -> set[str]:
        return {name for name, process in self.processes.items() if process.reports or process.status is not None}

    def unit(self, name: str) -> set[str]:
        return {name}

    def replaceable(self, name: str) -> bool:
        return name not in self.learners

    def reap(self, name: str) -> None:
        self.reaped.append(name)
        del self.processes[name]

    def beats(self, name: str) -> int:
        return 1

    def ring(self, name: str) -> None: ...

    def oom_kills(self) -> int:
        return 0


class CustomSite(SingleMachine):
    """This machine, with a site of the test's own."""

    def __init__(self, make: Callable[[LocalLauncher, Path], Site]):
        super().__init__()
        self._launcher, self._make = LocalLauncher(), make

    def site(self, logs: Path) -> Site:
        assert self._launcher is not None
        return self._make(self._launcher, logs)


def train_at(
    make: Callable[[LocalLauncher, Path], LocalSite], built: BuiltRun, run_dir: Path, config: RunConfig
) -> Run:
    """Trains what was built, with workers at a site of the test's own."""
    (run_dir / "logs").mkdir(parents=True)
    stored = run_config.to_json(replace(config, envs=built.graph.envs), described(built))
    pool = CustomSite(make)
    try:
        return Session(run_dir, stored, built, began=time.monotonic(), quiet=True, pool=pool).run()
    finally:
        pool.close()
