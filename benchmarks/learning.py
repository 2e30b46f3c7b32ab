"""Claim: every algorithm learns what it is known to learn, on three seeds each; the table of docs/learning.md.

Each seed is trained by `runnel train` in a process of its own and then played greedily by `runnel eval`. What it
reached is kept as soon as it ends: a benchmark that is cut off keeps what it has, and `--missing` goes on from there.

    python benchmarks/learning.py                                # all that this machine is meant for; hours
    python benchmarks/learning.py --only 'cartpole-*' --missing  # some, and of those what is not there yet
    python benchmarks/learning.py --only 'async-*'               # asynchronous against synchronous PPO and MAPPO
    python benchmarks/learning.py --table --picture              # the page, made anew from the results that are kept
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import _learning_table as table
from benchmarks import _machine as machine
from benchmarks._learning_results import Record, Results, read
from benchmarks._learning_tasks import TASKS, Task
from benchmarks._load import Load
from runnel.errors import UserError
from runnel.planning.machine import gpus
from runnel.recording.files import write_atomically
from runnel.recording.metrics import read_metrics
from runnel.reporting.plot import read_curve

RUNNEL: Final = [sys.executable, "-m", "runnel"]
PAGE: Final = ROOT / "docs" / "learning.md"
PICTURE: Final = ROOT / "docs" / "images" / "learning.png"
CURVE_POINTS: Final = 50
STOP_S: Final = 60.0
"""How long a run that is told to stop may take to write its checkpoint and its result."""

EVALUATION_S: Final = 600.0

_RUNNING: set[subprocess.Popen[str]] = set()

KEPT: Final = ("status", "mean_return", "env_steps", "updates", "episodes", "wall_seconds", "startup_seconds",
               "steps_per_second", "staleness_mean", "staleness_max", "distribution", "bottleneck")  # fmt: skip
PACKAGES: Final = ("runnel", "flax", "gymnasium", "gymnax", "jaxmarl", "ale_py", "mujoco")


# One seed


def train(task: Task, seed: int, limit_s: float) -> Record:
    """One run from its start to its evaluation: what is kept of it."""
    with tempfile.TemporaryDirectory(prefix="runnel-learning-") as directory:
        run_dir = Path(directory) / "run"
        with Load(task.on == "gpu") as load:
            error = _run(task.command(seed, run_dir), task.on, limit_s)[1]
        try:
            result = json.loads((run_dir / "result.json").read_text())
            record = {key: result.get(key) for key in KEPT}
            record["workers"] = {worker["name"]: worker["busy"] for worker in result["workers"]}
            record |= _learnt(task, run_dir)
        except (OSError, ValueError, KeyError, UserError) as reason:
            return {"status": "failed", "reason": _short(error) or f"{type(reason).__name__}: {reason}"}
        if task.on == "gpu":
            record["busy"] = load.shares(result.get("startup_seconds") or 0.0)
        record |= played(task, run_dir)
        return record


def _learnt(task: Task, run_dir: Path) -> dict[str, Any]:
    """The curve, thinned out, where it first held what is wanted, and with which settings."""
    curve = read_curve(run_dir)
    points = list(zip(curve.env_steps.astype(int).tolist(), curve.values.tolist(), strict=True))
    config = json.loads((run_dir / "config.json").read_text())
    settled = _settled(run_dir)  # the mean of a few first episodes is luck
    reached = (steps for steps, value in points if steps >= settled and task.wanted.holds(value))
    return {
        "reached_at": next(reached, None),
        "curve": [[steps, float(f"{value:.4g}")] for steps, value in _thinned(points)],
        "config": {key: config[key] for key in ("algorithm", "distribution", "envs")},
    }


def _settled(run_dir: Path) -> float:
    """The steps after which 100 episodes had ended."""
    ended = (record for record in read_metrics(run_dir) if (record.get("episodes") or 0) >= 100)
    return next((record["env_steps"] or 0 for record in ended), float("inf"))


def _thinned(points: list[Any]) -> list[Any]:
    if len(points) <= CURVE_POINTS:
        return points
    return [points[i * (len(points) - 1) // (CURVE_POINTS - 1)] for i in range(CURVE_POINTS)]


def played(task: Task, run_dir: Path) -> dict[str, Any]:
    """What the last policy reaches without exploration, also in an environment with other settings if there are any."""
    found = {"evaluation": _evaluation(task, run_dir, {})}
    if task.also_played:
        settings = dict(task.also_played)
        found["also_played"] = {"settings": settings, "evaluation": _evaluation(task, run_dir, settings)}
    return found


def _evaluation(task: Task, run_dir: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    if not task.episodes:
        return None
    more = [f"--set=env.{name}={value}" for name, value in settings.items()]
    told, error = _run(["eval", str(run_dir), "--episodes", str(task.episodes), "--json", *more], task.on, EVALUATION_S)
    try:
        found = json.loads(told)
        return {key: found[key] for key in ("episodes", "mean_return", "std_return", "min_return", "max_return")}
    except (ValueError, KeyError):
        return {"failed": _short(error)}  # training's own figures are kept


def _run(arguments: list[str], on: str, limit_s: float) -> tuple[str, str]:
    """A command's output and errors. After `limit_s` it is asked to stop, and soon after made to."""
    process = subprocess.Popen(
        [*RUNNEL, *arguments], cwd=ROOT, env=_environment(on), text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with _kept_track_of(process):
        try:
            return process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            return process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            return "", f"gave no answer {STOP_S:.0f} s after it was told to stop"


def _short(error: str) -> str:
    """Its end, without where on this machine it was."""
    return error.strip()[-1000:].replace(f"{ROOT}/", "")


@contextmanager
def _kept_track_of(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever happens, the process and its workers do not outlive this."""
    _RUNNING.add(process)
    try:
        yield
    finally:
        _RUNNING.discard(process)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=STOP_S)


def _environment(on: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    if on == "cpu":  # a thread to each job: on several they would take each other's cores
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
    return environment


# The command


def chosen(patterns: list[str], on: str) -> list[Task]:
    tasks = [task for task in TASKS.values() if on in ("all", task.on)]
    if not patterns:
        return tasks
    for pattern in patterns:
        if not fnmatch.filter(TASKS, pattern):
            raise SystemExit(f"--only {pattern}: no task has such a name; --list shows them")
    return [task for task in tasks if any(fnmatch.fnmatchcase(task.name, pattern) for pattern in patterns)]


def describe(on: str) -> dict[str, Any]:
    return machine.describe_elsewhere(*PACKAGES, environ=_environment(on))


def run(tasks: list[Task], options: argparse.Namespace) -> None:
    results = {on: Results(options.out, describe(on)) for on in {task.on for task in tasks}}
    wanted = [(task, seed) for task in tasks for seed in options.seeds or task.seeds]
    if options.missing:
        wanted = [(task, seed) for task, seed in wanted if not results[task.on].has(task, seed)]
    with ThreadPoolExecutor(options.jobs) as pool:
        ahead = {pool.submit(train, task, seed, options.limit_s): (task, seed) for task, seed in wanted}
        try:
            for number, future in enumerate(as_completed(ahead), 1):
                task, seed = ahead[future]
                results[task.on].add(task, seed, record := future.result())
                print(f"{number:>3}/{len(ahead)}  {task.name:<24} seed {seed}  {_line(task, record)}", flush=True)
        except BaseException:  # Ctrl-C: those that run are in sessions of their own, and would go on
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_RUNNING):
                process.terminate()
            raise


def _line(task: Task, record: Record) -> str:
    if record["status"] == "failed":
        return f"failed: {record['reason'].splitlines()[-1]}"
    held = "held" if task.wanted.holds(table.judged(task, record)) else "NOT HELD"
    returns = [record["mean_return"], (record["evaluation"] or {}).get("mean_return")]
    trained, played = ("none" if value is None else f"{value:.2f}" for value in returns)
    return (
        f"{trained} in training, {played} greedily, expected {task.wanted}: {held}; {record['status']} after "
        f"{record['env_steps']:,} steps, {record['wall_seconds']:.0f} s"
    )


def main() -> None:
    here = "gpu" if gpus(os.environ.get("JAX_PLATFORMS", "")) else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="tasks by name, as in 'pendulum-*'")
    parser.add_argument("--on", choices=["cpu", "gpu", "all"], help=f"tasks that are meant for it ({here}, found here)")
    parser.add_argument("--seeds", type=int, nargs="+", help="1 2 3, or those of a task")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2) if here == "cpu" else 1)
    parser.add_argument("--limit-s", type=float, default=7200.0, help="for a seed's training; then it is told to stop")
    parser.add_argument("--out", type=Path, default=machine.RESULTS, help="directory of the raw results")
    parser.add_argument("--missing", action="store_true", help="only what has not finished on a machine like this one")
    parser.add_argument("--list", action="store_true", help="the tasks, and the seeds that have finished anywhere")
    parser.add_argument("--table", type=Path, nargs="?", const=PAGE, metavar="PAGE", help="write the tables")
    parser.add_argument("--picture", type=Path, nargs="?", const=PICTURE, metavar="FILE", help="draw the curves")
    options = parser.parse_args()
    if options.table or options.picture:
        runs = read(options.out)
        if options.table:
            write_atomically(options.table, table.filled(options.table.read_text(), runs).encode())
        if options.picture:
            table.draw(runs, options.picture)
        return
    tasks = chosen(options.only, options.on or ("all" if options.only or options.list else here))
    if options.list:
        runs = read(options.out)
        for task in tasks:
            seeds = sorted({seed for run in runs if run.task is task for seed in run.seeds})
            print(f"{task.name:<24} {task.on}  {task.environment:<36} {task.wanted!s:<18} seeds {seeds}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `timeout` and the like: stop what runs, as for Ctrl-C
    run(tasks, options)


if __name__ == "__main__":
    main()
