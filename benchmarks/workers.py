"""Claim: hundreds of light workers start, report and are replaced, and nothing of it grows faster than their number.

Runs under `decoupled` with one environment for each environment worker, whose step costs nothing: what is measured is
what workers cost by being there. For each number of them: seconds to the first update; the share of a core that the
driver takes; how long after its death a worker is noticed, replaced, and works again; and the memory and descriptors of
each (PSS: its own pages, and its share of those that it shares with others).

    python benchmarks/workers.py                        # 50, 100, 200 and 500 workers
    python benchmarks/workers.py --workers 50 100
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import _costly, _runs
from benchmarks import _machine as machine
from runnel.algorithms.impala import IMPALA
from runnel.distributions.decoupled import Decoupled
from runnel.execution.supervision.distributed_program import DistributedProgram
from runnel.runtime.control_messages import Status

WARM_S = 2.0
REPLACED_S = 120.0
"""How long a worker that was killed may take to work again."""


def run(workers: int, inference: int, seconds: float, kills: int, start_limit_s: float) -> dict[str, Any]:
    """One run: a row of the table."""
    algorithm = IMPALA(unroll=20, hidden=(16,))
    events: list[tuple[float, str, str]] = []

    def note(event: str, *, show: bool = True, worker: str = "", **details: Any) -> None:
        del show, details
        events.append((time.monotonic(), event, worker))

    began = time.monotonic()
    distribution = Decoupled(actors=workers, inference=inference)
    with _runs.started(algorithm, _costly.NAME, distribution, workers, {"work": 0}, report_event=note) as program:
        _runs.until_first_update(program, start_limit_s)
        startup_s = time.monotonic() - began
        _runs.go_on(program, WARM_S)
        before, cpu_s, at = _steps(program), _cpu_s(), time.monotonic()
        _runs.go_on(program, seconds)
        passed = time.monotonic() - at
        row = {
            "workers": workers,
            "startup_s": startup_s,
            "driver_cpu": (_cpu_s() - cpu_s) / passed,
            "steps_per_second": (_steps(program) - before) / passed,
            "driver_descriptors": len(os.listdir("/proc/self/fd")),
            **_each(program),
        }
        faults = [_kill(program, k * workers // max(1, kills), events) for k in range(kills)]
    return {**row, "noticed_s": [noticed for noticed, _ in faults], "recovered_s": [again for _, again in faults]}


def _steps(program: DistributedProgram) -> float:
    """Of all environments, as the workers have counted them."""
    return sum(status.counts.get("env_steps", 0.0) for status in program.statuses().values())


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _each(program: DistributedProgram) -> dict[str, float]:
    """Memory and descriptors of an environment worker: medians."""
    pids = [program.group.processes[name].pid for name, spec in program.group.specs.items() if spec.env_only]
    memory = [_pss_mib(Path(f"/proc/{pid}/smaps_rollup").read_text()) for pid in pids]
    descriptors = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
    return {"pss_mib": statistics.median(memory), "descriptors": statistics.median(descriptors)}


def _pss_mib(smaps: str) -> float:
    line = next(line for line in smaps.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) / 1024


def _kill(program: DistributedProgram, number: int, events: list[tuple[float, str, str]]) -> tuple[float, float]:
    """Kills an environment worker: the seconds until that is noticed, and until its replacement works."""
    name = [name for name, spec in program.group.specs.items() if spec.env_only][number]
    known, killed = len(events), time.monotonic()
    os.kill(program.group.processes[name].pid, signal.SIGKILL)
    while time.monotonic() < killed + REPLACED_S:
        program.run(_runs.ENDLESS, 0.1, float("inf"), lambda: False)
        at = {event: when for when, event, worker in events[known:] if worker == name}
        status: Status | None = program.supervisor.records[name].status
        if "restart" in at and "recovered" in at and status is not None:
            return at["restart"] - killed, at["recovered"] - killed
    raise SystemExit(f"{name} was killed and has not worked again within {REPLACED_S:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[50, 100, 200, 500])
    parser.add_argument("--inference", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--start-limit", type=float, default=600.0, help="seconds to the first update at most")
    parser.add_argument("--out")
    args = parser.parse_args()
    print("workers  startup s  driver CPU  noticed s  works again s  PSS MiB  descriptors  steps/s")
    rows = []
    for count in args.workers:
        row = run(count, args.inference, args.seconds, args.kills, args.start_limit)
        rows.append(row)
        noticed, again = (statistics.median(row[key]) for key in ("noticed_s", "recovered_s"))
        print(
            f"{count:7}  {row['startup_s']:9.1f}  {row['driver_cpu']:10.1%}  {noticed:9.2f}  {again:13.2f}  "
            f"{row['pss_mib']:7.1f}  {row['descriptors']:11.0f}  {row['steps_per_second']:7,.0f}",
            flush=True,
        )
    settings = {"inference": args.inference, "seconds": args.seconds, "kills": args.kills}
    about = machine.describe("gymnasium", "flax", "optax")
    print(machine.save("workers", {"machine": about, "settings": settings, "rows": rows}, args.out))


if __name__ == "__main__":
    main()
