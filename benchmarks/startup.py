"""Claim: `runnel --help` answers within 0.3 seconds, `runnel train` says what it is about to do within 1 second, makes
its first update with two actors in under 8 seconds, and a light worker takes under 60 MB.

The first two are of the command that is installed beside this Python: to the end of the help, and to the first line of
training, with the processor time that the process had taken by then: on a busy machine that is the one to look at.
Start-up is that of PPO on Gymnasium's CartPole under `coarse` with two actors, each time in a new process, with the
compilation cache warm: by result.json (from the call of `train`) and by the clock (from the start of the process).
Memory is of a worker that plays host environments (of `decoupled`), above a process that has only imported Gymnasium
and made the same environments: resident, and proportional, which divides pages among the processes that share them.

    python benchmarks/startup.py
    python benchmarks/startup.py --runs 10
    python benchmarks/startup.py --only-lines
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import _machine as machine

ENVIRONMENT, ENVS = "CartPole-v1", 8
STARTUP_S, WORKER_MB = 8.0, 60.0
HELP_S, LINE_S = 0.3, 1.0
TRAINING = ["train", "ppo", ENVIRONMENT, "--steps", "1"]
RUNNEL = str(Path(sys.executable).with_name("runnel"))

TRAIN = """
import json, sys, time
import runnel
from runnel.distributions.coarse import Coarse
called = time.monotonic()
run = runnel.train("ppo", "CartPole-v1", Coarse(actors=2), envs=8, steps=1, seed=0, run_dir=sys.argv[1], quiet=True)
print(json.dumps([called, run.result]))
"""

ALONE = """
import sys
import gymnasium
environments = [gymnasium.make(sys.argv[1]) for _ in range(int(sys.argv[2]))]
for environment in environments:
    environment.reset(seed=0)
print("ready", flush=True)
sys.stdin.readline()
"""


def answer(words: list[str], whole: bool) -> dict[str, float]:
    """How long a command takes to its first line, or to its end: by the clock, and of the processor."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        began = time.monotonic()
        with subprocess.Popen([RUNNEL, *words], stdout=subprocess.PIPE, text=True, cwd=directory) as process:
            assert process.stdout is not None
            said = process.stdout.read() if whole else process.stdout.readline()
            if whole:  # it has ended, and is not waited for yet: the kernel still knows its times
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            wall_s = time.monotonic() - began
            times = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            process.kill()
    if not said.strip():
        raise SystemExit(f"runnel {' '.join(words)} printed nothing")
    return {"wall_s": wall_s, "cpu_s": sum(map(int, times)) / os.sysconf("SC_CLK_TCK")}


def first_words(runs: int) -> dict[str, Any]:
    """The same of the help and of training, several times, after once to have their files read."""
    load, found = os.getloadavg()[0], {}
    for name, words, whole, limit_s in (
        ("runnel --help, to its end", ["--help"], True, HELP_S),
        ("runnel train, first line", TRAINING, False, LINE_S),
    ):
        answer(words, whole)
        found[name] = [answer(words, whole) for _ in range(runs)]
        wall_s, cpu_s = (statistics.median(each[what] for each in found[name]) for what in ("wall_s", "cpu_s"))
        kept = "kept" if wall_s < limit_s else "NOT kept"
        print(f"{name:<26}{wall_s:>8.2f} s, {cpu_s:.2f} of the processor; under {limit_s}: {kept}", flush=True)
    return {"load_before": load, "commands": found}


def start(cache: str) -> dict[str, float]:
    """One start, from nothing but a warm cache."""
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": cache, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", TRAIN, f"{directory}/run"]
        began = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
        whole_s = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"training failed:\n{done.stderr[-2000:]}")
        called, result = json.loads(done.stdout.splitlines()[-1])
    startup_s = result["startup_seconds"]
    return {"train_s": startup_s, "process_s": called - began + startup_s, "whole_s": whole_s}


def alone_mb() -> dict[str, float]:
    """A process that has the environments, and nothing of Runnel."""
    command = [sys.executable, "-c", ALONE, ENVIRONMENT, str(ENVS // 2)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = memory_mb(process.pid)
        process.communicate("\n", timeout=60)
    return found


def worker_mb() -> list[dict[str, float]]:
    """The two environment workers of a run, while it trains."""
    from benchmarks import _runs
    from runnel.algorithms.impala import IMPALA
    from runnel.distributions.decoupled import Decoupled

    found: list[dict[str, float]] = []

    def look(program: Any) -> None:
        processes = program.group.processes.items()
        found.extend(memory_mb(p.pid) for name, p in processes if name.startswith("environment"))

    _runs.watch(IMPALA(), ENVIRONMENT, Decoupled(actors=2), ENVS, {}, 1.0, 1.0, look)
    return found


def memory_mb(pid: int) -> dict[str, float]:
    """Resident and proportional set size, and what is this process's own."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kb = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return {
        "rss": kb["Rss"] / 1000,
        "pss": kb["Pss"] / 1000,
        "private": (kb["Private_Clean"] + kb["Private_Dirty"]) / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only-lines", action="store_true", help="measure the help and the first line alone")
    parser.add_argument("--out", help="directory for the raw results")
    args = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    first = first_words(args.runs)
    if args.only_lines:
        print(machine.save("first_words", {"machine": machine.describe(), "first_words": first}, args.out))
        return
    with tempfile.TemporaryDirectory() as cache:
        cold = start(cache)
        start(cache)  # by now everything that will be kept is
        starts = [start(cache) for _ in range(args.runs)]
    print(f"{'to the first update, s':<26}{'train':>8}{'process':>10}   whole run")
    for name, each in [("cold", cold), *((f"warm {n + 1}", each) for n, each in enumerate(starts))]:
        print(f"{name:<26}{each['train_s']:>8.2f}{each['process_s']:>10.2f}{each['whole_s']:>12.2f}", flush=True)
    median = statistics.median(each["process_s"] for each in starts)
    print(f"median {median:.2f} s, under {STARTUP_S:.0f}: {'kept' if median < STARTUP_S else 'NOT kept'}")
    alone, workers = alone_mb(), worker_mb()
    above = {what: max(each[what] for each in workers) - alone[what] for what in alone}
    print(f"{'memory, MB':<26}" + "".join(f"{what:>10}" for what in alone))
    for name, each in [("environment alone", alone), *(("light worker", each) for each in workers), ("above", above)]:
        print(f"{name:<26}" + "".join(f"{mb:>10.1f}" for mb in each.values()))
    print(f"resident above the environment under {WORKER_MB:.0f}: {'kept' if above['rss'] < WORKER_MB else 'NOT kept'}")
    result = {
        "machine": machine.describe("gymnasium", "flax"),
        "first_words": first,
        "cold": cold,
        "warm": starts,
        "median_process_s": median,
        "environment_alone_mb": alone,
        "light_workers_mb": workers,
        "light_worker_above_environment_mb": above,
    }
    print(machine.save("startup", result, args.out))


if __name__ == "__main__":
    main()
