"""A synchronous run whose workers are killed ends with bitwise the same state as one whose workers are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from chaos import Chaos

from runnel.checkpoint import Checkpoints, _Checkpoint, _read

PLANS = {
    "coarse": (["ppo", "CartPole-v1", "--distribution", "coarse", "--actors", "2"], ["actor-0", "actor-1"]),
    "fine": (["ppo", "CartPole-v1", "--distribution", "fine", "--actors", "2"], ["environment-0", "environment-1"]),
    "environments": (
        ["ppo", "CartPole-v1", "--distribution", "environments", "--actors", "2"],
        ["environment-0", "environment-1"],
    ),
    "coarse on gymnax": (["ppo", "gymnax:CartPole-v1", "--distribution", "coarse", "--actors", "2"], ["actor-0"]),
    "fine on gymnax": (["ppo", "gymnax:CartPole-v1", "--distribution", "fine", "--actors", "2"], ["environment-1"]),
    "recurrent": (
        ["ppo", "CartPole-v1", "--distribution", "coarse", "--actors", "2", "--set", "memory=gru"],
        ["actor-0", "actor-1"],
    ),
}  # fmt: skip
"""Plans, and who is killed; the learner is killed beside them where a checkpoint is there to go back to."""


def final_state(run_dir: Path) -> dict[str, np.ndarray]:
    newest = Checkpoints(run_dir).newest()
    assert newest is not None
    return _read(_Checkpoint(run_dir.absolute(), f"checkpoints/{newest.name}"), "state", {})


def train(command: list[str], run_dir: Path, steps: int) -> list[str]:
    flags = ["--envs", "8", "--steps", str(steps), "--run-dir", str(run_dir), "--quiet", "--seed", "3"]
    return ["train", *command, *flags, "--restarts", "1000", "--hang-after", "5", "--checkpoint-every", "2"]


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]), err_msg=name)


def undisturbed(command: list[str], run_dir: Path, steps: int) -> dict[str, np.ndarray]:
    subprocess.run([sys.executable, "-m", "runnel", *train(command, run_dir, steps)], check=True, timeout=300)
    return final_state(run_dir)


def killed(command: list[str], workers: list[str], run_dir: Path, steps: int, most: int, seed: int) -> Chaos:
    chaos = Chaos(
        train(command, run_dir, steps), run_dir, workers, seed=seed, pause_s=(0.2, 1.5), signals=[signal.SIGKILL],
        most=most,
    )  # fmt: skip
    assert chaos.run(280) == 0, chaos.output()
    return chaos


@pytest.mark.parametrize("name", ["coarse", pytest.param("fine", marks=pytest.mark.slow)])
def test_killed_players_change_nothing(name: str, tmp_path: Path) -> None:
    command, workers = PLANS[name]
    wanted = undisturbed(command, tmp_path / "calm", 40_000)
    chaos = killed(command, workers, tmp_path / "killed", 40_000, most=3, seed=1)
    assert chaos.done
    assert chaos.result()["restarts"] == len(chaos.done)
    assert_same(final_state(tmp_path / "killed"), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_killed_players_and_learners_change_nothing(name: str, tmp_path: Path) -> None:
    command, workers = PLANS[name]
    steps = int(os.environ.get("STEPS", "150000"))
    wanted = undisturbed(command, tmp_path / "calm", steps)
    for seed in (1, 2):
        run_dir = tmp_path / f"killed-{seed}"
        chaos = killed(command, [*workers, *workers, "learner", "agent"], run_dir, steps, most=20, seed=seed)
        assert chaos.done
        assert_same(final_state(run_dir), wanted)
