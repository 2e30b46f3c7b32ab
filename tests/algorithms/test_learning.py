"""That algorithms learn, each on three seeds, which train side by side: minutes, so `make test-slow` runs it."""

import numpy as np
import pytest

import runnel
from runnel.config.presets import tuned
from runnel.distributions.asynchronous import Async
from runnel.distributions.decoupled import Decoupled

pytestmark = [pytest.mark.slow, pytest.mark.learns]

SEEDS = [1, 2, 3]
HIDDEN = {"normalise_observations": True, "normalise_returns": True, "learning_rate": 1e-3}
CHAIN = {"unroll": 32, "hidden": (32,), "memory_size": 32, "learning_rate": 3e-3, "entropy_cost": 0.01}


def returns(tmp_path, algorithm, environment, steps, target=None, distribution=None, envs=None, **settings):
    """The mean return that each seed reaches."""
    if environment.startswith("gymnax:"):
        pytest.importorskip("gymnax")
    found = runnel.train_members(
        algorithm, environment, distribution, seeds=SEEDS, envs=envs, steps=steps, run_dir=tmp_path / "runs",
        stop_at_return=target, settings=settings or None, quiet=True,
    )  # fmt: skip
    runs = found.result["runs"]
    assert [run["status"] for run in runs] == ["finished"] * len(SEEDS)
    return [run["mean_return"] for run in runs]


@pytest.mark.parametrize(
    ("algorithm", "environment", "steps", "target"),
    [
        ("ppo", "CartPole-v1", 300_000, 475),
        ("ppo", "gymnax:CartPole-v1", 1_000_000, 475),
        ("ppo", "Pendulum-v1", 300_000, -300),
        ("ppo", "gymnax:Pendulum-v1", 300_000, -300),
        ("ppo", "Acrobot-v1", 400_000, -90),
        ("a2c", "CartPole-v1", 600_000, 475),
        ("a2c", "gymnax:CartPole-v1", 600_000, 475),
        ("impala", "CartPole-v1", 600_000, 475),
        ("impala", "gymnax:CartPole-v1", 600_000, 475),
        ("reinforce", "CartPole-v1", 600_000, 475),
        ("reinforce", "gymnax:CartPole-v1", 600_000, 475),
        ("dqn", "CartPole-v1", 200_000, 450),
        ("dqn", "gymnax:CartPole-v1", 200_000, 450),
        ("c51", "CartPole-v1", 200_000, 450),
        ("c51", "gymnax:CartPole-v1", 200_000, 450),
        ("ddpg", "Pendulum-v1", 40_000, -200),
        ("ddpg", "gymnax:Pendulum-v1", 40_000, -200),
        ("td3", "Pendulum-v1", 40_000, -200),
        ("td3", "gymnax:Pendulum-v1", 40_000, -200),
        ("sac", "Pendulum-v1", 40_000, -200),
        ("sac", "gymnax:Pendulum-v1", 40_000, -200),
    ],
)
def test_tuned_settings_reach_their_return(tmp_path, algorithm, environment, steps, target):
    assert np.min(returns(tmp_path, algorithm, environment, steps, target)) >= target


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_memory_makes_up_for_hidden_velocities(tmp_path, memory):
    assert np.min(returns(tmp_path, "ppo", "hidden:cartpole", 200_000, 400, envs=8, memory=memory, **HIDDEN)) >= 400


def test_without_memory_hidden_velocities_are_missed(tmp_path):
    assert np.max(returns(tmp_path, "ppo", "hidden:cartpole", 200_000, envs=8, **HIDDEN)) < 200


def test_what_was_shown_once_is_remembered_by_memory_alone(tmp_path):
    """In bsuite's memory chain, the answer is shown at first and asked for at last: guessing is worth 0, knowing 1."""

    def reached(memory, target=None):
        place, chain = tmp_path / memory, "gymnax:MemoryChain-bsuite"
        return returns(place, "ppo", chain, 60_000, target, envs=8, memory=memory, **CHAIN)

    assert np.abs(reached("none")).max() < 0.5
    assert np.min(reached("gru", 0.95)) >= 0.95
    assert np.min(reached("lstm", 0.95)) >= 0.95


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"popart": True}),
        ("ppo", {"dual_clip": 3.0}),
        ("ppo", {"advantages": "vtrace"}),
        ("a2c", {"popart": True}),
        ("impala", {"popart": True}),
        ("reinforce", {"baseline": False, "unroll": 512}),
    ],
    ids=lambda part: part if isinstance(part, str) else "-".join(part),
)
def test_variants_solve_cartpole(tmp_path, algorithm, settings):
    known = {**tuned(algorithm, "gymnax:CartPole-v1"), **settings}
    assert np.min(returns(tmp_path, algorithm, "gymnax:CartPole-v1", 1_000_000, 450, **known)) >= 450


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("distribution", [Async(actors=2), Decoupled(actors=2)])
def test_ppo_learns_from_actors_that_lag_with_the_settings_of_those_that_wait(tmp_path, distribution, seed):
    run = runnel.train(
        "ppo", "CartPole-v1", distribution, steps=500_000, seed=seed, run_dir=tmp_path / "run", stop_at_return=475,
        quiet=True,
    )  # fmt: skip
    assert run.result["mean_return"] >= 450
    assert run.result["staleness_max"] > 0
