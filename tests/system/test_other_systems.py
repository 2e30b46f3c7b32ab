"""On a system without the calls of Linux, such as macOS, runs of one process work and others are refused in words.

`support/without_linux` takes these calls from a Python before it imports anything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from paths import ROOT, SUPPORT

import runnel
from runnel.system import platform

BEGIN = """
import json, os, sys
import runnel
from runnel.cli.main import main

assert sys.platform == "darwin"
assert not hasattr(os, "eventfd")
assert not os.path.exists("/proc/self")

def run(text):
    status = main(text.split())
    assert status == 0, (text, status)

def refused(text):
    status = main(text.split())
    assert status == 2, (text, status)

"""

END = """
looked_for = [path for path in sys.opened_of_linux if not path.startswith("/sys/bus/pci/")]  # as JAX does, for TPUs
print(json.dumps(looked_for), file=sys.stderr)
"""

LOOK = r"""
import contextlib, http.client, io, re, signal, threading, time

said, seen = io.StringIO(), {}

def ask(port, token, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
    return connection.getresponse().read()

def look():
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r":(\d+)/#token=(\S+)", said.getvalue())) and time.monotonic() < deadline:
            time.sleep(0.05)
        port, token = int(found[1]), found[2]
        seen["runs"] = json.loads(ask(port, token, "GET", "/api/runs"))["runs"]
        seen["views"] = [json.loads(ask(port, token, "GET", f"/api/run?id={run['id']}")) for run in seen["runs"]]
        request = json.dumps({"id": "0/inline", "what": "stop"})
        seen["asked"] = ask(port, token, "POST", "/api/request", request).decode()
    finally:
        os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=look).start()
with contextlib.redirect_stdout(said):
    run("dash . --port 0")
with open("seen.json", "w") as file:
    json.dump(seen, file)
"""
"""Serves the directory, and stores what a client is answered."""

WITHOUT_EVENTFD = "found macOS, which has no eventfd, expected Linux; "


def elsewhere(code: str, tmp_path: Path) -> list[str]:
    """Runs code on such a system; the lines that it wrote to standard error."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (SUPPORT / "without_linux", ROOT, SUPPORT)))}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + END], env=environ, cwd=tmp_path, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    *said, looked_for = done.stderr.splitlines()
    # Where free memory, open files and control groups would be found; each has an answer without.
    known = ("/proc/meminfo", "/proc/self/cgroup", "/proc/vmstat", "/sys/fs/cgroup/")
    assert [path for path in json.loads(looked_for) if not path.startswith(known)] == []
    return said


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def test_one_process_trains_evaluates_plots_exports_plays_and_is_watched(tmp_path: Path) -> None:
    said = elsewhere(
        """
here = "CartPole-v1 --distribution inline --envs 2 --steps 64 --seed 3 --set unroll=16 hidden=(4,)"
open("matplotlibrc", "w").close()
run(f"train reinforce {here} --run-dir inline --eval-every 64 --eval-episodes 1 --quiet")
run("resume inline --steps 128 --quiet")
run("eval inline --episodes 1 --seed 1 --out eval.json")
run("policies inline")
run("plot inline --out curve.svg")
run("train reinforce matrix:prisoners_dilemma --distribution fused --envs 2 --steps 64 --set unroll=16 hidden=(4,) "
    "--run-dir fused --quiet")
run("plan reinforce CartPole-v1 --distribution coarse --actors 2")
refused("train reinforce CartPole-v1 --distribution coarse --actors 2 --run-dir coarse --quiet")
refused(f"train reinforce {here} --run-dir workers --eval-every 64 --eval-workers 1 --quiet")
policy = runnel.load("inline")
policy.act([0.0, 0.0, 0.0, 0.0])
"""
        + LOOK
        + """
run("export inline --out exported --format stablehlo")
run("versus fused fused --episodes 2")
several = "toys:Reinforce toys:Corridor --envs 2 --steps 64 --quiet"
run(f"train {several} --distribution fused --seeds 2 --run-dir members")
refused(f"train {several} --distribution coarse --actors 2 --seeds 2 --run-dir several")
refused(f"sweep {several} --distribution coarse --actors 2 --over learning_rate=0.1,0.2 --run-dir swept")
""",
        tmp_path,
    )
    found = result(tmp_path / "inline")
    assert (found["status"], found["env_steps"]) == ("finished", 128)
    assert json.loads((tmp_path / "eval.json").read_text())["episodes"] == 1
    assert result(tmp_path / "fused")["status"] == "finished"
    assert (tmp_path / "curve.svg").read_text().startswith("<?xml")
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert {run["id"]: run["status"] for run in seen["runs"]} == {"0/inline": "finished", "0/fused": "finished"}
    assert [(view["problems"], view["plan"] is None) for view in seen["views"]] == [([], False)] * 2
    assert seen["asked"] == "found no run in progress there"
    assert "Written by Runnel" in (tmp_path / "inline" / "report.html").read_text()
    assert (tmp_path / "exported").is_dir()
    assert result(tmp_path / "members")["finished"] == 2
    refusals = [line for line in said if line.startswith(("runnel train: ", "runnel sweep: "))]
    assert refusals == [
        f"runnel train: distribution coarse runs in 3 processes: {WITHOUT_EVENTFD}inline and fused run in one",
        f"runnel train: --eval-workers 1: {WITHOUT_EVENTFD}--eval-workers 0 evaluates in this process",
        f"runnel train: distribution coarse runs in 3 processes: {WITHOUT_EVENTFD}inline and fused run in one",
        f"runnel sweep: distribution coarse runs in 3 processes: {WITHOUT_EVENTFD}inline and fused run in one",
    ]
    assert not [name for name in ("coarse", "several", "swept") if (tmp_path / name).exists()]
    here = runnel.train(
        "reinforce", "CartPole-v1", "inline", envs=2, steps=128, seed=3, settings={"unroll": 16, "hidden": (4,)},
        run_dir=tmp_path / "here", quiet=True,
    )  # fmt: skip
    assert here.result["mean_return"] == found["mean_return"]


@pytest.mark.slow
def test_one_program_and_members_train_and_export(tmp_path: Path) -> None:
    elsewhere(
        """
fused = "gymnax:CartPole-v1 --envs 4 --steps 256 --set unroll=16 minibatches=2 hidden=(8,)"
run(f"train ppo {fused} --distribution fused --run-dir fused --quiet")
run("resume fused --steps 512 --quiet")
run("eval fused --episodes 2 --json")
run("export fused --out exported --format stablehlo")
run(f"train ppo {fused} --seeds 2 --run-dir members --quiet")
run("plot members fused --out curves.png")
refused(f"train ppo {fused} --distribution coarse --seeds 2 --run-dir several --quiet")
""",
        tmp_path,
    )
    assert result(tmp_path / "fused")["env_steps"] == 512
    assert result(tmp_path / "members")["finished"] == 2
    assert (tmp_path / "curves.png").stat().st_size > 1000
    assert not (tmp_path / "several").exists()


@pytest.mark.slow
def test_sweeps_and_games_train(tmp_path: Path) -> None:
    elsewhere(
        """
fused = "gymnax:CartPole-v1 --envs 4 --steps 256 --set unroll=16 minibatches=2 hidden=(8,)"
run(f"sweep ppo {fused} --over learning_rate=log:1e-4:1e-2 --trials 2 --run-dir swept --quiet")
run("train ppo pgx:tic_tac_toe --envs 4 --steps 256 --opponents uniform --set unroll=16 --run-dir game --quiet")
run("versus game game --episodes 4")
""",
        tmp_path,
    )
    assert result(tmp_path / "swept")["status"] == "finished"
    assert result(tmp_path / "game")["status"] == "finished"


@pytest.mark.slow
def test_members_that_have_processes_train(tmp_path: Path) -> None:
    elsewhere(
        """
here = "CartPole-v1 --distribution inline --envs 2 --steps 256 --set unroll=16 hidden=(8,)"
run(f"train reinforce {here} --seeds 2 --run-dir members --quiet")
""",
        tmp_path,
    )
    assert [run["status"] for run in result(tmp_path / "members")["runs"]] == ["finished", "finished"]


@pytest.mark.slow
@pytest.mark.parametrize("without", [False, True], ids=["kernel", "watch"])
def test_a_process_ends_with_the_one_that_started_it(without: bool, tmp_path: Path) -> None:
    child = "import os, sys, time; from runnel.system import parent; parent.end_with(int(sys.argv[1])); time.sleep(60)"
    start = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(3)\n"
    )
    path = [ROOT, *([SUPPORT / "without_linux"] if without else [])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    with subprocess.Popen([sys.executable, "-c", start], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert platform.is_running(pid)
        process.kill()
    deadline = time.monotonic() + 60
    while platform.is_running(pid):
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


def test_a_process_is_running_until_it_has_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert platform.is_running(process.pid)
        process.kill()
    assert not platform.is_running(process.pid)
    assert platform.is_running(1)  # another user's, for whoever is not root
    for pid in (0, -1, 2**40):
        assert not platform.is_running(pid)


def test_one_process_does_not_rely_on_linux() -> None:
    """System calls are made in `system/`, which handles other systems too; worker processes need Linux."""
    calls = re.compile(
        r"sched_[gs]et|eventfd|memfd|pidfd|prctl|epoll|/proc\b|/sys\b|/dev/shm|SC_PHYS|SC_AVPHYS|MFD_|EFD_"
    )
    package = ROOT / "runnel"
    found = {path.relative_to(package) for path in package.rglob("*.py") if calls.search(path.read_text())}
    elsewhere = {path for path in found if path.parts[0] not in ("system", "launch", "transport")}
    looking = {Path("cli/doctor.py"), Path("cli/doctor_checks.py")}  # which tell whether the system has them
    assert elsewhere == {Path("runtime/recovery/journal.py"), *looking}
    assert Path("transport/shared_memory.py") in found
