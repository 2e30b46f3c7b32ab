"""Runs of many workers, measured between two moments: what each worker did in between, by its own clock."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import _machine
from runnel.algorithm import Algorithm
from runnel.config import serialization
from runnel.config.jax_config import configure_jax
from runnel.execution.building import build
from runnel.execution.supervision.distributed_program import DistributedProgram
from runnel.execution.supervision.machine_pool import MachinePool, SingleMachine
from runnel.planning.plan import Distribution
from runnel.recording.events import ReportEvent, ignore_event

START_LIMIT_S = 180.0
"""How long a run may take to its first update."""

ENDLESS = 1 << 40


@dataclass(frozen=True)
class Share:
    """What one worker did between the two moments."""

    seconds: float
    cpu_s: float  # of the processor's time
    stolen: float  # the share of all the machine's cores that others on the same hardware had
    waited: dict[str, float]  # seconds, by cause
    counts: dict[str, float]

    @property
    def waiting(self) -> float:
        """The share of its time."""
        return sum(self.waited.values()) / self.seconds

    def rate(self, count: str) -> float:
        return self.counts.get(count, 0.0) / self.seconds


def watch(
    algorithm: Algorithm, environment: str, distribution: Distribution, envs: int, env_settings: dict[str, Any],
    warm_s: float, seconds: float, look: Callable[[DistributedProgram], None] = lambda program: None,
    pool: MachinePool | None = None,
) -> dict[str, Share]:  # fmt: skip
    """Trains until `warm_s` after the first update, and from there for `seconds`; gives every worker's share.

    `look` is called at the end, while the workers are still at work. `pool`: other machines than this one.
    """
    with started(algorithm, environment, distribution, envs, env_settings, pool) as program:
        shares = _watch(program, warm_s, seconds)
        look(program)
        return shares


@contextmanager
def started(
    algorithm: Algorithm, environment: str, distribution: Distribution, envs: int, env_settings: dict[str, Any],
    pool: MachinePool | None = None, report_event: ReportEvent = ignore_event,
) -> Iterator[DistributedProgram]:  # fmt: skip
    """A run whose workers have been started, and are ended with this context."""
    configure_jax()
    pool = pool or SingleMachine()
    built = build(
        algorithm, environment, distribution, envs, env_settings=env_settings, machine=pool.machines
    )  # fmt: skip
    config = {
        "algorithm": serialization.to_json(built.algorithm),
        "environment": {"name": environment, "settings": env_settings},
        "distribution": serialization.to_json(built.distribution),
        "envs": envs,
        "seed": 0,
    }
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory)
        (run_dir / "logs").mkdir()
        site = pool.site(run_dir / "logs")
        program = DistributedProgram(built, config, run_dir, site, pool.machines, report_event)
        try:
            yield program
        finally:
            program.close()


def until_first_update(program: DistributedProgram, limit_s: float = START_LIMIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not program.run(ENDLESS, 0.1, float("inf"), lambda: False).updates:
        if time.monotonic() > deadline:
            raise SystemExit(f"no update within {limit_s:.0f} s")


def _watch(program: DistributedProgram, warm_s: float, seconds: float) -> dict[str, Share]:
    until_first_update(program)
    go_on(program, warm_s)
    before = _statuses(program)
    go_on(program, seconds)
    return {name: _share(before[name], status) for name, status in _statuses(program).items()}


def _statuses(program: DistributedProgram) -> dict[str, dict[str, Any]]:
    """What every worker told last, and the processor's time it has had."""
    told, stolen_s = {}, _machine.stolen_s()
    for name, status in program.statuses().items():
        fields = Path(f"/proc/{program.group.processes[name].pid}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        told[name] = {**asdict(status), "cpu_s": cpu_s, "stolen_s": stolen_s}
    return told


def go_on(program: DistributedProgram, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        program.run(ENDLESS, 0.1, float("inf"), lambda: False)


def _share(before: dict[str, Any], after: dict[str, Any]) -> Share:
    def grown(what: str) -> dict[str, float]:
        return {name: value - before[what].get(name, 0.0) for name, value in after[what].items()}

    seconds, cpu_s, stolen_s = (after[what] - before[what] for what in ("elapsed_s", "cpu_s", "stolen_s"))
    return Share(seconds, cpu_s, stolen_s / seconds / (os.cpu_count() or 1), grown("waited_s"), grown("counts"))
