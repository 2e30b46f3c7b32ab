"""A sweep that is killed, interrupted or short of disk ends with the same result as one that is not."""

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from left_behind import until_left
from paths import ROOT

from runnel.recording.checkpoint import Checkpoints

KILLS = 10
ASKED = (
    "sweep", "ppo", "gymnax:CartPole-v1", "--over", "learning_rate=log:1e-4:1e-2", "unroll=8,16", "--trials", 9,
    "--halving", 3, "--rungs", 2, "--batch", 3, "--seeds", 2, "--winner-seeds", 2, "--envs", 4, "--steps", 30_000,
    "--eval-episodes", 4, "--set", "minibatches=2", "epochs=1", "hidden=(8,)", "--checkpoint-every", 0.2, "--quiet",
)  # fmt: skip

IN_PROCESSES = (
    "sweep", "ppo", "CartPole-v1", "--distribution", "inline", "--over", "learning_rate=log:1e-4:1e-2", "--trials", 4,
    "--batch", 2, "--seeds", 1, "--winner-seeds", 1, "--envs", 4, "--steps", 30_000, "--eval-episodes", 4, "--set",
    "unroll=8", "minibatches=2", "epochs=1", "hidden=(8,)", "--checkpoint-every", 0.2, "--quiet",
)  # fmt: skip

FILE_LIMIT = 3_000
"""Bytes of a file: less than a checkpoint has, more than the files of a sweep have that is begun."""


def command(*words: Any, limit: int | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "runnel", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> None:
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 0, out


def reached(directory: Path) -> dict[str, Any]:
    result = json.loads((directory / "result.json").read_text())
    runs = [(run["directory"], run["status"], run["env_steps"], run["return"]) for run in result["runs"]]
    return {name: result[name] for name in ("status", "trials", "best", "winner")} | {"runs": runs}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A sweep that was not disturbed, and how long it took."""
    began, directory = time.monotonic(), tmp_path_factory.mktemp("sweeps") / "whole"
    finish(command(*ASKED, "--run-dir", directory))
    return directory, time.monotonic() - began


def begun(directory: Path, asked: Sequence[Any] = ASKED) -> list[Any]:
    """The command that begins a sweep or continues it."""
    there = (directory / "sweep.json").exists()
    return ["resume", directory] if there else [*asked, "--run-dir", directory]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_sweep_killed_ten_times_ends_with_the_same_result(tmp_path: Path, whole: tuple[Path, float]) -> None:
    draw, killed = random.Random(0), tmp_path / "killed"
    for _ in range(KILLS):
        process = command(*begun(killed))
        with pytest.raises(subprocess.TimeoutExpired):  # else it has ended before its last kill
            process.wait(draw.uniform(1.0, 5.0 + whole[1] / KILLS))
        process.kill()
        process.communicate()
    finish(command("resume", killed))
    assert reached(killed) == reached(whole[0])


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_sweep_in_processes_that_was_killed_ends_with_the_same_result(tmp_path: Path) -> None:
    """Its runs end by themselves then, and continue from their checkpoints."""
    finish(command(*IN_PROCESSES, "--run-dir", tmp_path / "whole"))
    draw, killed, kills = random.Random(0), tmp_path / "killed", 0
    while kills < KILLS:
        process = command(*begun(killed, IN_PROCESSES))
        try:
            process.wait(draw.uniform(2.0, 15.0))
        except subprocess.TimeoutExpired:
            kills += 1
        else:
            break
        process.kill()
        process.communicate()
        until_left(killed)
    assert kills >= 3, "it ended too early to be killed"
    finish(command("resume", killed))
    assert reached(killed) == reached(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_an_interrupted_sweep_ends_with_the_same_result(tmp_path: Path, whole: tuple[Path, float]) -> None:
    stopped = tmp_path / "stopped"
    for kept in ("member-01", "member-09", "member-15"):
        process, deadline = command(*begun(stopped)), time.monotonic() + 300
        while not Checkpoints(stopped / kept).all():
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        finish(process)
        assert json.loads((stopped / "result.json").read_text())["status"] == "interrupted"
    finish(command("resume", stopped))
    assert reached(stopped) == reached(whole[0])


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_sweep_on_a_full_disk_ends_with_the_same_result(tmp_path: Path, whole: tuple[Path, float]) -> None:
    full = tmp_path / "full"
    process = command(*ASKED[:-1], "--run-dir", full, limit=FILE_LIMIT)
    out, _ = process.communicate(timeout=900)
    assert process.returncode == 1, out
    assert "File too large" in out
    result = json.loads((full / "result.json").read_text())
    assert result["status"] == "failed"
    assert {trial["status"] for trial in result["trials"]} == {"running"}
    finish(command("resume", full))
    assert reached(full) == reached(whole[0])
