"""Truncation is not termination: learnt values are those of the task, as if no episode were ever cut."""

import jax
import numpy as np
import pytest
from cycle import DISCOUNT, VALUES

import runnel
from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO

STATES = np.eye(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("environment", "distribution"),
    [
        ("cycle:Cycle", "fused"),
        pytest.param("cycle:Cycle", "inline", marks=pytest.mark.slow),
        ("cycle:CycleEnv", "inline"),
    ],
)
def test_ppo_learns_the_value_of_the_uncut_task(environment, distribution, tmp_path):
    algorithm = PPO(discount=DISCOUNT, gae_lambda=0.8, learning_rate=3e-3, unroll=6, minibatches=1, value_cost=1.0)
    run = runnel.train(
        algorithm, environment, distribution, envs=8, steps=6 * 8 * 300, run_dir=tmp_path / "run", quiet=True
    )
    values = jax.vmap(lambda o: run.params.actor_critic.step(o, ()).value)(STATES)
    # Were a cut an end, state 0 would be worth 0.81 (one reward before the cut), far from 2.99.
    np.testing.assert_allclose(values, VALUES, rtol=0.03)


@pytest.mark.parametrize("environment", ["cycle:Cycle", pytest.param("cycle:CycleEnv", marks=pytest.mark.slow)])
def test_dqn_learns_the_value_of_the_uncut_task(environment, tmp_path):
    algorithm = DQN(
        discount=DISCOUNT, n_step=2, learning_rate=3e-3, unroll=6, target_period=20, epsilon_end=1.0, min_size=64,
        capacity=2048, batch=64, samples_per_insert=8.0,
    )  # fmt: skip
    run = runnel.train(
        algorithm, environment, "inline", envs=8, steps=6 * 8 * 150, run_dir=tmp_path / "run", quiet=True
    )
    values = jax.vmap(run.params.values)(STATES)
    np.testing.assert_allclose(values, np.stack([VALUES, VALUES], -1), rtol=0.05)
