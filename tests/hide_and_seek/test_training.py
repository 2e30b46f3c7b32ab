"""Algorithms train on hide-and-seek: one policy for both teams, or one for each."""

import math

import numpy as np
import pytest

import runnel
from runnel.algorithms.mappo import MAPPO
from runnel.algorithms.ppo import PPO

SMALL = {"seekers": 1, "boxes": 1, "horizon": 6, "preparation": 2}
PPO_SMALL = PPO(unroll=6, epochs=1, minibatches=1, hidden=(8,))


def train(tmp_path, algorithm=PPO_SMALL, distribution="fused", game="hide:quadrant", **settings):
    run = runnel.train(
        algorithm, game, distribution, envs=2, steps=36, seed=1, run_dir=tmp_path / "run",
        env_settings={**SMALL, **settings}, quiet=True,
    )  # fmt: skip
    return run


def test_ppo_trains_compiled_and_reports_the_measures(tmp_path):
    run = train(tmp_path)
    assert run.result["status"] == "finished"
    assert run.result["updates"] == 3
    assert {"max_box_move_prep", "num_ramp_lock_prep", "seen", "enclosure"} <= run.result["env"].keys()
    assert all(math.isfinite(value) for value in run.result["env"].values())


@pytest.mark.slow
def test_ppo_trains_step_by_step_to_the_same_parameters(tmp_path):
    one, other = train(tmp_path / "a"), train(tmp_path / "b", distribution="inline")
    import jax

    for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(other.params), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.slow
def test_teams_may_have_policies_of_their_own(tmp_path):
    run = train(tmp_path, groups="kind")
    assert run.result["status"] == "finished"
    assert set(run.result["group_returns"]) == {"hider", "seeker"}


@pytest.mark.slow
def test_a_central_critic_receives_the_state(tmp_path):
    run = train(tmp_path, algorithm=MAPPO(unroll=6, epochs=1, minibatches=1, hidden=(8,)))
    assert run.result["status"] == "finished"


@pytest.mark.slow
def test_the_full_game_trains(tmp_path):
    run = runnel.train(
        PPO_SMALL, "hide:full", envs=2, steps=12, run_dir=tmp_path / "run", quiet=True,
        env_settings={"horizon": 6, "preparation": 2},
    )  # fmt: skip
    assert run.result["status"] == "finished"
