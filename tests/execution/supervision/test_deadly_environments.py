"""An environment that takes its worker with it is played again; one that does so again loses that episode only."""

from __future__ import annotations

from pathlib import Path

import pytest

import runnel
from runnel.distributions import load
from runnel.recording.events import read_events


def train(run_dir: Path, distribution: str, how: str, times: int, hang_after_s: float = 30.0) -> dict:
    run = runnel.train(
        "ppo", "deadly:deadly", load(distribution)(actors=2), envs=4, steps=4096, run_dir=run_dir, quiet=True,
        hang_after_s=hang_after_s, env_settings={"how": how, "mark": str(run_dir / "mark"), "times": times},
    )  # fmt: skip
    return run.result


@pytest.mark.parametrize(
    ("distribution", "how", "times"),
    [
        ("coarse", "exit", 1),
        ("fine", "exit", 2),
        pytest.param("coarse", "crash", 2, marks=pytest.mark.slow),
        pytest.param("coarse", "hang", 2, marks=pytest.mark.slow),
        pytest.param("fine", "crash", 1, marks=pytest.mark.slow),
        pytest.param("fine", "hang", 2, marks=pytest.mark.slow),
        pytest.param("async", "exit", 2, marks=pytest.mark.slow),
    ],
)
def test_a_deadly_environment(tmp_path: Path, distribution: str, how: str, times: int) -> None:
    result = train(tmp_path / "run", distribution, how, times, hang_after_s=5.0 if how == "hang" else 60.0)
    assert result["status"] == "finished"
    assert result["restarts"] == times
    events = read_events(tmp_path / "run")
    if how == "hang":
        assert all("in _die (" in event["reason"] and "deadly.py, line" in event["reason"] for event in events
                   if event["event"] == "hang")  # fmt: skip
        assert not any(event["worker"].startswith("learner") for event in events if event["event"] == "hang")
    cut = [event for event in events if event["event"] == "environment"]
    assert len(cut) == (times > 1), events
    if times > 1:
        assert "brought its worker down" in cut[0]["reason"]
        assert result["environment_failures"] == 1


@pytest.mark.parametrize("distribution", ["coarse", pytest.param("fine", marks=pytest.mark.slow)])
def test_episodes_that_always_kill_are_cut_wherever_they_begin(tmp_path: Path, distribution: str) -> None:
    run = runnel.train(
        "ppo", "deadly:sometimes", load(distribution)(actors=2), envs=4, steps=4096, run_dir=tmp_path / "run",
        quiet=True, restarts=100, seed=3,
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert run.result["restarts"] >= 2
    assert run.result["environment_failures"] >= 1


def test_one_that_never_stops_ends_the_run_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(runnel.errors.WorkerFailed, match=r"ended with status 3(.|\n)*(in a row|not replaced)"):
        runnel.train(
            "ppo", "deadly:always", load("coarse")(actors=2), envs=4, steps=4096, run_dir=tmp_path / "run",
        )  # fmt: skip
    assert f"the run is in {tmp_path / 'run'}: it has no checkpoint to resume from" in capsys.readouterr().err


SLOW = """
import time
from dataclasses import dataclass
from runnel.algorithms.ppo import PPO
from runnel.launch import worker_process

@dataclass(frozen=True)
class Slow(PPO):
    '''PPO that takes long to compile: in workers every function is traced for seconds.'''

    def act(self, *args, **kwargs):
        time.sleep(6.0 if worker_process.inside not in (None, "runnel-jax") else 0.0)
        return super().act(*args, **kwargs)

    def learn(self, *args, **kwargs):
        time.sleep(6.0 if worker_process.inside not in (None, "runnel-jax") else 0.0)
        return super().learn(*args, **kwargs)
"""


@pytest.mark.slow
def test_compiling_for_longer_than_hang_after_is_not_hanging(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    run = runnel.train(
        f"{tmp_path / 'slow.py'}:Slow", "CartPole-v1", load("coarse")(actors=2), envs=4, steps=2048, quiet=True,
        run_dir=tmp_path / "run", hang_after_s=3.0, settings={"unroll": 32, "minibatches": 2, "epochs": 1},
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert run.result["restarts"] == 0, read_events(tmp_path / "run")
