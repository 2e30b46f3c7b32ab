"""What `benchmarks/learning.py` keeps: one file for a kind of machine and a day, in it a record of every seed."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._learning_tasks import TASKS, Task
from runnel.recording.files import write_atomically

Record = dict[str, Any]

_WRITING = threading.Lock()


class Results:
    """Those of one machine; `about` describes it."""

    def __init__(self, directory: Path, about: dict[str, Any]):
        device = "".join(c if c.isalnum() else "-" for c in str(about["device"])).lower()
        self._kind = f"learning-{about['cores']}-cores-{device}"
        self._directory, self._about = directory, about
        self._path = directory / f"{self._kind}-{about['date']}.json"

    def add(self, task: Task, seed: int, record: Record) -> None:
        """Writes a seed's record at once. One that failed does not take the place of one that finished."""
        with _WRITING:
            self._directory.mkdir(parents=True, exist_ok=True)
            tasks = json.loads(self._path.read_text())["tasks"] if self._path.exists() else {}
            seeds = tasks.setdefault(task.name, {})
            if record["status"] == "finished" or not _finished(seeds.get(str(seed))):
                seeds[str(seed)] = record
            text = _text({"machine": self._about, "tasks": tasks}, depth=4)
            write_atomically(self._path, f"{text}\n".encode())

    def has(self, task: Task, seed: int) -> bool:
        """Whether a seed has finished on a machine like this one, on whatever day."""
        kept = [json.loads(path.read_text())["tasks"] for path in self._directory.glob(f"{self._kind}-*.json")]
        return any(_finished(tasks.get(task.name, {}).get(str(seed))) for tasks in kept)


class Run(NamedTuple):
    """A task on one kind of machine: the newest record of every seed."""

    task: Task
    machine: str  # "2 cores", "H200, 16 cores"
    seeds: dict[int, Record]


def read(directory: Path) -> list[Run]:
    """What is kept there of tasks that there still are, in the table's order, less what failed or was cut off."""
    found: dict[tuple[str, str], Run] = {}
    kept = [json.loads(path.read_text()) for path in directory.glob("learning-*.json")]
    for results in sorted(kept, key=lambda results: results["machine"]["date"]):  # a newer record takes the place
        machine = _called(results["machine"])
        for name, records in results["tasks"].items():
            seeds = {int(seed): record for seed, record in records.items() if _finished(record)}
            if name in TASKS and seeds:
                found.setdefault((name, machine), Run(TASKS[name], machine, {})).seeds.update(sorted(seeds.items()))
    names = list(TASKS)
    return sorted(found.values(), key=lambda run: (names.index(run.task.name), run.machine))


def _finished(record: Record | None) -> bool:
    return record is not None and record["status"] == "finished"


def _called(about: dict[str, Any]) -> str:
    cores = f"{about['cores']} cores"
    return cores if about["device"] == "cpu" else f"{str(about['device']).removeprefix('NVIDIA ')}, {cores}"


def _text(value: Any, depth: int, margin: str = "") -> str:
    """JSON with a line to each field down to that depth; below it a curve is one line, not two hundred."""
    if not isinstance(value, dict) or not depth:
        return json.dumps(value)
    inner = margin + " "
    fields = [f"{inner}{json.dumps(key)}: {_text(field, depth - 1, inner)}" for key, field in value.items()]
    return "{\n" + ",\n".join(fields) + f"\n{margin}}}"
