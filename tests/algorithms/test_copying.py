"""Where a device has memory of its own, unrolls are copied to it in one piece, and the training is the same."""

import os
from pathlib import Path

import numpy as np
import pytest
from copying import Copying
from kill_runs import final_state

import runnel
from runnel.algorithms.ppo import PPO
from runnel.distributions.coarse import Coarse
from runnel.distributions.decoupled import Decoupled
from runnel.distributions.environments import Environments
from runnel.distributions.fine import Fine

SETTINGS = {"unroll": 8, "epochs": 1, "minibatches": 2, "hidden": (8,), "memory": "gru", "memory_size": 4}


@pytest.fixture(autouse=True)
def _launcher(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAUNCHER", str(os.getpid()))


def trained(algorithm, distribution, run_dir: Path):
    runnel.train(
        algorithm, "CartPole-v1", distribution=distribution, envs=4, steps=160, seed=3, run_dir=run_dir, quiet=True
    )
    return final_state(run_dir)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory):
    """The result of training by programs that read these files."""
    return trained(PPO(**SETTINGS), Coarse(1), tmp_path_factory.mktemp("here") / "run")


@pytest.mark.parametrize(
    "distribution", [Fine(2), *(pytest.param(d, marks=pytest.mark.slow) for d in (Coarse(2), Environments(2)))], ids=str
)
def test_unrolls_that_are_copied_are_learnt_from_alike(distribution, here, tmp_path):
    copied = trained(Copying(**SETTINGS), distribution, tmp_path / "run")
    for name, wanted in here.items():
        np.testing.assert_allclose(copied[name], wanted, rtol=1e-4, atol=1e-5, err_msg=name)


def test_inference_that_sends_ahead_answers_everybody(tmp_path):
    run = runnel.train(
        Copying(**SETTINGS, advantages="vtrace"), "CartPole-v1", distribution=Decoupled(actors=2), envs=8, steps=2_000,
        run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert run.result["env_steps"] >= 2_000
