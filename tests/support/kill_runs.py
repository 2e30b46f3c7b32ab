"""Runs whose workers are killed, beside runs whose workers are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from runnel.recording.checkpoint import Checkpoints

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
    "frames": (
        ["ppo", "CartPole-v1", "--distribution", "coarse", "--actors", "2", "--set", "env.frame_stack=3"],
        ["actor-0", "actor-1"],
    ),
}  # fmt: skip
"""Plans, and who is killed; the learner is killed beside them where a checkpoint is there to go back to."""


def final_state(run_dir: Path) -> dict[str, np.ndarray]:
    checkpoints = Checkpoints(run_dir)
    newest = checkpoints.newest()
    assert newest is not None
    return checkpoints.read(newest)


def train(command: list[str], run_dir: Path, steps: int) -> list[str]:
    flags = ["--envs", "8", "--steps", str(steps), "--run-dir", str(run_dir), "--quiet", "--seed", "3"]
    return ["train", *command, *flags, "--restarts", "1000", "--hang-after", "5", "--checkpoint-every", "2"]


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(np.asarray(one[name]), np.asarray(other[name]), err_msg=name)


def undisturbed(command: list[str], run_dir: Path, steps: int) -> dict[str, np.ndarray]:
    subprocess.run([sys.executable, "-m", "runnel", *train(command, run_dir, steps)], check=True, timeout=1500)
    return final_state(run_dir)
