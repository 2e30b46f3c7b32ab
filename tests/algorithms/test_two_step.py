"""The game that distinguishes QMIX from VDN: the best joint value is no sum of the agents' values."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import EXAMPLES

import runnel
from runnel.config import serialization
from runnel.evaluation.evaluate import evaluate

EXPLORING = {"epsilon_end": 1.0, "hidden": (32,), "target_period": 100, "min_size": 256, "unroll": 2}


def greedy_return(algorithm, seed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runnel.train(
        algorithm, "two_step:TwoStep", envs=16, steps=10_000, seed=seed, run_dir=tmp_path / "run", settings=EXPLORING,
        quiet=True,
    )  # fmt: skip
    found = evaluate(tmp_path / "run", episodes=4)
    sys.modules.pop("two_step", None)
    assert found["std_return"] == 0
    return found["mean_return"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("algorithm", "finds"), [("qmix", 8), ("vdn", 7)])
def test_qmix_finds_what_vdn_cannot(algorithm, finds, seed, tmp_path, monkeypatch):
    assert greedy_return(algorithm, seed, tmp_path, monkeypatch) == finds


def test_the_game_pays_as_in_the_paper(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    game = serialization.import_object("two_step:TwoStep")()
    sys.modules.pop("two_step", None)

    @jax.jit
    def played(first, second):  # what both do in each of the two steps
        key = jax.random.key(0)
        state, _ = game.reset(key)
        state, one = game.step(state, first, key)
        _, two = game.step(state, second, key)
        return one.reward.sum() + two.reward.mean(), two.terminated & ~one.terminated

    choices = jnp.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    paid, ends = jax.vmap(jax.vmap(played, (None, 0)), (0, None))(choices, choices)
    np.testing.assert_array_equal(paid, [[7, 7, 7, 7], [7, 7, 7, 7], [0, 1, 1, 8], [0, 1, 1, 8]])
    assert ends.all()
