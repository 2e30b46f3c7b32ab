"""That algorithms learn, on three seeds each: minutes of training, so `make test-slow` runs it."""

import pytest

import runnel

pytestmark = pytest.mark.slow

SEEDS = [1, 2, 3]
GRU = {"memory": "gru", "normalise_observations": True, "normalise_returns": True, "learning_rate": 1e-3}


def mean_return(tmp_path, algorithm, environment, seed, steps, target=None, **settings):
    run = runnel.train(
        algorithm, environment, envs=8 if settings else None, steps=steps, seed=seed, run_dir=tmp_path / "run",
        stop_at_return=target, settings=settings, quiet=True,
    )  # fmt: skip
    assert run.result["episodes"] >= 100
    return run.result["mean_return"]


@pytest.mark.parametrize("seed", SEEDS)
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
        ("dqn", "CartPole-v1", 200_000, 450),
        ("dqn", "gymnax:CartPole-v1", 200_000, 450),
        ("ddpg", "Pendulum-v1", 40_000, -200),
        ("ddpg", "gymnax:Pendulum-v1", 40_000, -200),
        ("td3", "Pendulum-v1", 40_000, -200),
        ("td3", "gymnax:Pendulum-v1", 40_000, -200),
        ("sac", "Pendulum-v1", 40_000, -200),
        ("sac", "gymnax:Pendulum-v1", 40_000, -200),
    ],
)
def test_tuned_settings_reach_their_return(tmp_path, algorithm, environment, steps, target, seed):
    if environment.startswith("gymnax:"):
        pytest.importorskip("gymnax")
    assert mean_return(tmp_path, algorithm, environment, seed, steps, target) >= target


@pytest.mark.parametrize("seed", SEEDS)
def test_memory_makes_up_for_hidden_velocities(tmp_path, seed):
    assert mean_return(tmp_path, "ppo", "hidden:cartpole", seed, 200_000, 400, **GRU) >= 400


@pytest.mark.parametrize("seed", SEEDS)
def test_without_memory_hidden_velocities_are_missed(tmp_path, seed):
    assert mean_return(tmp_path, "ppo", "hidden:cartpole", seed, 200_000, **{**GRU, "memory": "none"}) < 200
