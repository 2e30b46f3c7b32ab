"""Policies that learnt from normalised observations act alike in training, loaded, saved and exported."""

import importlib.util

import exports
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import runnel
from runnel.algorithm import act_one
from runnel.algorithms.ppo import PPO
from runnel.ops import statistics

STEPS = 512
SETTINGS = {"unroll": 16, "epochs": 1, "minibatches": 2, "hidden": (8,), "learning_rate": 0.01, "memory_size": 8}
EXACT = {"rtol": 1e-5, "atol": 1e-6}
needs_onnx = pytest.mark.skipif(importlib.util.find_spec("jax2onnx") is None, reason="the extra onnx is not installed")


@pytest.fixture(scope="module", params=["gru", pytest.param("none", marks=pytest.mark.slow)])
def run(request, tmp_path_factory):
    """A car that stays in its valley: its observations are far from a mean of 0 and a variance of 1."""
    return runnel.train(
        PPO(**SETTINGS, memory=request.param, normalise_observations=True), "gymnax:MountainCarContinuous-v0", "fused",
        envs=4, steps=STEPS, keep_every=STEPS // 2, seed=1, quiet=True,
        run_dir=tmp_path_factory.mktemp(request.param) / "run",
    )  # fmt: skip


@pytest.fixture
def trial(run):
    """Observations like those of the training, and what the loaded policy does on them."""
    (known,) = run.params.observations
    deviation = np.sqrt(known.variance)
    return exports.Trial(runnel.load(run), lambda space, rng: rng.normal(known.mean, deviation, (exports.ROWS, 2)))


def in_training(run, params, trial):
    """The actions of training's own policy with these parameters, in each step of a trial."""
    algorithm, spec = run.built.algorithm, run.built.graph.spec.groups["agent"]
    fresh = algorithm.initial_memory(spec)

    @jax.vmap
    def act(seen, begins, memory):
        memory = jax.tree.map(lambda new, old: jnp.where(begins, new, old), fresh, memory)
        return act_one(algorithm.act, params, seen, memory, jax.random.key(0), False, jnp.int32(0))

    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (exports.ROWS, *x.shape)), fresh)
    for step in range(exports.STEPS):
        acted = act(jnp.float32(trial.given[f"{step}/observation"]), trial.given[f"{step}/first"], memory)
        memory = acted.memory
        yield np.asarray(acted.action)


def test_its_statistics_matter(run, trial):
    """Without them, the policy would act otherwise: what the other tests compare depends on them."""
    (known,) = run.params.observations
    assert known.count > STEPS - 1
    assert np.abs(known.mean / np.sqrt(known.variance)).max() > 2
    without = run.params._replace(observations=[statistics.initial_statistics((2,))])
    for found, other in zip(in_training(run, run.params, trial), in_training(run, without, trial), strict=True):
        assert np.abs(found - other).max() > 100 * EXACT["atol"] + 100 * EXACT["rtol"] * np.abs(found).max()


def test_it_acts_alike_in_training_when_loaded_and_when_saved(run, trial, tmp_path):
    saved = exports.Trial(runnel.load(runnel.load(run).save(tmp_path / "saved")), trial.draw)
    for wanted, loaded, again in zip(in_training(run, run.params, trial), trial.actions, saved.actions, strict=True):
        np.testing.assert_allclose(loaded, wanted, **EXACT)
        np.testing.assert_array_equal(again, loaded)


def test_an_older_policy_has_the_statistics_of_its_time(run, trial):
    older = runnel.policies(run).query("agent", version=run.result["updates"] // 2)
    policy = runnel.load(older[0])
    (then,), (now,) = policy.params.observations, run.params.observations
    assert then.count < 0.6 * now.count
    for wanted, found in zip(
        in_training(run, policy.params, trial), exports.Trial(policy, trial.draw).actions, strict=True
    ):
        np.testing.assert_allclose(found, wanted, **EXACT)


@pytest.mark.parametrize("format", ["stablehlo", pytest.param("onnx", marks=needs_onnx)])
def test_it_acts_alike_when_exported(format, run, trial, tmp_path):
    """Also from the directory of a policy that was saved, in a process without Runnel."""
    saved = runnel.load(run).save(tmp_path / "saved")
    made = [runnel.export(run, tmp_path / "run", format), runnel.export(runnel.load(saved), tmp_path / "again", format)]
    for directory in made:
        np.savez(directory / "trial.npz", **trial.given)
    exports.run(made)
    for directory in made:
        found = np.load(directory / "found.npz")
        for step, wanted in enumerate(in_training(run, run.params, trial)):
            np.testing.assert_allclose(found[f"{step}/action"], wanted, rtol=1e-4, atol=1e-5)
