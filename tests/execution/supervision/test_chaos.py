"""Chaos: throughout a run a random worker, learners included, is killed or stopped as soon as it has recovered.

The slow suite does it under every distribution of several processes, 30 times each; `benchmarks/chaos.py` does the same
and writes down how long each took to be at work again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chaos import Chaos, descendants
from chaos_runs import RUNS, best_return, chaos
from kill_runs import PLANS, assert_same, final_state, train, undisturbed
from supervision import train_at

from runnel.config.run_config import RunConfig
from runnel.distributions import load
from runnel.execution.building import build
from runnel.launch.site import LocalSite
from runnel.recording.events import read_events
from runnel.recording.metrics import read_metrics

KILLS = 30


def check(broken: Chaos) -> None:
    """The run has ended as if nothing had happened to it."""
    result = broken.result()
    assert result["status"] == "finished"
    assert result["restarts"] >= sum(each.recovery_s is not None for each in broken.done)
    # Nothing that was completed before the last checkpoint was ever lost: the curve is one line, without a gap.
    told = [record["env_steps"] for record in read_metrics(broken.run_dir)]
    assert told == sorted(told)
    events = read_events(broken.run_dir)
    kinds = {event["event"] for event in events}
    assert {"restart", "recovered"} <= kinds
    assert all(0 < event["seconds"] < result["wall_seconds"] for event in events if event["event"] == "recovered")
    if any(each.signal == "SIGSTOP" for each in broken.done):
        assert "hang" in kinds


def test_a_killed_learner_is_replaced_from_the_newest_checkpoint(tmp_path: Path) -> None:
    broken = chaos("coarse", tmp_path / "run", 1, 100_000)
    broken.workers, broken.signals = ["learner"], [signal.SIGKILL]
    broken.pause_s = (3.0, 4.0)  # a checkpoint is there by then
    assert broken.run() == 0, broken.output()
    check(broken)
    assert broken.result()["env_steps"] >= 100_000
    assert broken.result()["restart_reasons"] == {"learner was killed by signal 9 (SIGKILL)": 1}
    (rollback,) = [event for event in read_events(broken.run_dir) if event["event"] == "rollback"]
    assert 0 <= rollback["lost_updates"] < broken.result()["updates"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_survives_whatever_happens_to_its_workers(name: str, tmp_path: Path) -> None:
    *_, target = RUNS[name]
    broken = chaos(name, tmp_path / "run", KILLS)
    assert broken.run() == 0, broken.output()
    check(broken)
    assert len(broken.done) == KILLS
    assert all(each.recovery_s is not None for each in broken.done)
    assert best_return(broken.run_dir) >= target


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coarse", "fine"])
def test_a_run_killed_whole_and_resumed_again_and_again_equals_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    command, _ = PLANS[name]
    steps, draw = 1_200_000, random.Random(5)  # enough for twenty kills and an end
    wanted = undisturbed(command, tmp_path / "calm", steps)
    run_dir = tmp_path / "killed"
    arguments, times = train(command, run_dir, steps), 0
    arguments[arguments.index("--checkpoint-every") + 1] = "0.5"
    while True:
        process = subprocess.Popen([sys.executable, "-m", "runnel", *arguments])
        pid = process.pid
        try:
            if times < 20 and not _ended(process, draw.uniform(4.0, 9.0)):
                for each in [pid, *descendants(pid)]:
                    try:
                        os.kill(each, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                times += 1
            status = process.wait(300)
        finally:
            process.kill()
        if status == 0:
            break
        if (run_dir / "checkpoints" / "latest").exists():
            arguments = ["resume", str(run_dir), "--quiet"]
        else:
            shutil.rmtree(run_dir, ignore_errors=True)
    assert times == 20
    assert_same(final_state(run_dir), wanted)


def _ended(process: subprocess.Popen, seconds: float) -> bool:
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        return False


def test_workers_that_all_wait_for_each_other_go_back_to_a_checkpoint(tmp_path: Path) -> None:
    """Here because their streams are cleared, again and again until messages are missing on all sides."""
    run_dir = tmp_path / "run"

    def hangs() -> list[dict]:
        return [e for e in read_events(run_dir) if e["event"] == "hang" and e["worker"] == "everybody"]

    class Lossy(LocalSite):
        def poll(self, seconds: float) -> set[str]:
            found = super().poll(seconds)
            if (run_dir / "checkpoints" / "latest").exists() and not hangs():
                for stream in self.host.streams.values():
                    stream.clear()
            return found

    config = RunConfig(
        steps=20_000, hang_after_s=8.0, checkpoint_every_s=0.5, restarts=100  # clearing damages streams too
    )  # fmt: skip
    run = train_at(Lossy, build("ppo", "CartPole-v1", load("coarse")(actors=2), 4), run_dir, config)
    assert run.result["status"] == "finished"
    assert run.result["env_steps"] >= 20_000
    (hang,) = hangs()
    assert hang["reason"].startswith("has waited for 8 s (--hang-after): actor-0 for ")
    assert "learner for " in hang["reason"]
