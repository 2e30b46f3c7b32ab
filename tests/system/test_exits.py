"""Code of an environment that tries to end the user's process: the run fails, and says so."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import leaving
import pytest
from paths import ROOT, SUPPORT

import runnel
from runnel.algorithms.ppo import PPO
from runnel.cli import main as cli
from runnel.errors import EnvironmentFailed, RunFailed
from runnel.system.exits import contained

SMALL = ["--envs", "2", "--steps", "320", "--quiet", "--set", "unroll=8", "minibatches=2", "epochs=1", "hidden=(8,)"]


def words(run: Path, how: str, where: str = "step") -> list[str]:
    return [
        "train",
        "ppo",
        "leaving:leaving",
        "--run-dir",
        str(run),
        *SMALL,
        f"env.how={how}",
        f"env.where={where}",
    ]


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def test_os_exit_in_the_users_process_does_not_end_it_well(tmp_path: Path) -> None:
    run = tmp_path / "run"
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{SUPPORT}", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "runnel", *words(run, "_exit")]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "step called os._exit(0)" in ended.stderr
    assert "leaving.py" in ended.stderr  # the environment's own traceback
    assert result(run)["status"] == "failed"
    assert "os._exit(0)" in result(run)["reason"]


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_what_is_meant_for_the_process_fails_the_run(tmp_path: Path, how: str, capsys: Any) -> None:
    assert cli.main(words(tmp_path / "run", how)) == 1
    told = capsys.readouterr().err
    assert {"exit": "SystemExit: 0", "interrupt": "KeyboardInterrupt"}[how] in told
    assert "leaving.py" in told
    assert result(tmp_path / "run")["status"] == "failed"


@pytest.mark.parametrize("how", ["exit", "_exit"])
def test_an_environment_that_leaves_while_it_is_made(tmp_path: Path, how: str, capsys: Any) -> None:
    assert cli.main(words(tmp_path / "run", how, "make")) == 1
    assert "leaving.py" in capsys.readouterr().err
    plan = ["plan", "ppo", "leaving:leaving", "--set", f"env.how={how}", "env.where=make"]
    assert cli.main(plan) == 1
    assert "tried to end this process" in capsys.readouterr().err


def test_from_python_too(tmp_path: Path) -> None:
    algorithm = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
    leave = os._exit
    for settings in ({"how": "_exit"}, {"how": "exit"}):
        with pytest.raises(EnvironmentFailed, match=r"leaving\.py"):
            runnel.train(algorithm, "leaving:leaving", envs=2, steps=320, quiet=True,
                         run_dir=tmp_path / settings["how"], env_settings=settings)  # fmt: skip
    assert os._exit is leave


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_leaves_ends_alone(tmp_path: Path) -> None:
    algorithm = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
    run = runnel.train(algorithm, "leaving:leaving", envs=2, steps=64, quiet=True, run_dir=tmp_path / "run",
                       env_settings={"how": "thread"})  # fmt: skip
    assert run.result["status"] == "finished"


def test_evaluation_is_not_ended_by_it(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
    run = tmp_path / "run"
    runnel.train(algorithm, "leaving:leaving", envs=2, steps=16, quiet=True, run_dir=run,
                 env_settings={"how": "never"})  # fmt: skip
    monkeypatch.setattr(leaving, "leave", lambda how: os._exit(0))
    assert cli.main(["eval", str(run), "--episodes", "2"]) == 1  # and this process goes on
    told = capsys.readouterr()
    assert told.out == ""
    assert "2 episodes were cut and left out: environment 0: step called os._exit(0)" in told.err


CHILDREN = """
import os, threading
from runnel.system.exits import Exited, contained
leave, first, second = os._exit, threading.Event(), threading.Event()

def child(status):
    pid = os.fork()
    if not pid:
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status

def other():
    with contained():
        first.set()
        second.wait(10)

with contained():
    child(7)
    try:
        os._exit(3)
    except Exited:
        print("refused")
assert os._exit is leave

thread = threading.Thread(target=other)  # a second run, which begins within the first and ends after it
with contained():
    thread.start()
    first.wait(10)
second.set()
thread.join()
child(5)
os._exit(9)
"""


def test_children_and_what_comes_after_are_not_kept_from_leaving() -> None:
    quiet = ("-W", "ignore:This process:DeprecationWarning")  # of fork beside threads that libraries start, since 3.12
    ended = subprocess.run([sys.executable, *quiet, "-c", CHILDREN], cwd=ROOT, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (9, b"")


def test_whatever_is_raised_it_is_an_error() -> None:
    with pytest.raises(RunFailed, match="SystemExit"), contained():
        raise SystemExit(0)
