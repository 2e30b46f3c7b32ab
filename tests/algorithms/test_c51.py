"""C51: distributions of returns, read as values and learnt by their projection."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bandits import SPEC, transitions

import runnel
from runnel.algorithms.c51 import C51
from runnel.algorithms.dqn import DQN
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.types import Box, Discrete, EnvSpec


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"atoms": 1}, "atoms=1.*above 1"), ({"v_min": 3.0, "v_max": 3.0}, "v_max=3.0.*above v_min, which is 3.0")],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        C51(**settings)


@pytest.mark.parametrize("x64", [False, True])
def test_the_loop_is_that_of_dqn(x64):
    with jax.enable_x64(x64):
        settings = {"prioritised": True, "n_step": 3, "dueling": True, "noisy": True}
        graph = trace(C51(**settings), EnvSpec.single("toy", Box((2,)), Discrete(3)), 4)
        assert list(graph.nodes) == ["environment", "act", "rollout", "map", "replay", "gradient", "apply"]
        assert graph.nodes["gradient"].output["out"].priorities.shape == (64,)


def test_values_are_means_of_the_distributions():
    algorithm = C51(atoms=3, v_min=-1.0, v_max=1.0)
    even, sure = jnp.zeros(3), jnp.array([-50.0, -50.0, 50.0])
    np.testing.assert_allclose(algorithm.mean(jnp.stack([even, sure])), [0.0, 1.0], atol=1e-6)


def test_the_loss_is_the_distance_to_the_projected_target():
    """A return of 0.25 between atoms 0 and 1 is assigned to the nearer one in three cases of four."""
    algorithm = C51(hidden=(8,), atoms=3, v_min=0.0, v_max=2.0)
    state = algorithm.init(jax.random.key(0), SPEC)
    items = transitions(1)._replace(r_t=jnp.full(1, 0.25))
    _, out = jax.jit(algorithm.gradient)(state, items, jax.random.key(0))
    log_probs = jax.nn.log_softmax(state.params.values(items.s_tm1[0])[items.a_tm1[0]])
    wanted = -(0.75 * log_probs[0] + 0.25 * log_probs[1])
    np.testing.assert_allclose(out.loss, wanted, rtol=1e-4)
    np.testing.assert_allclose(out.priorities, wanted, rtol=1e-4)


@pytest.mark.parametrize("double", [True, False])
def test_the_bootstrap_is_that_of_the_action_chosen_online(double):
    algorithm = C51(hidden=(8,), atoms=5, v_min=-1.0, v_max=1.0, double=double)
    state = algorithm.init(jax.random.key(0), SPEC)
    state = state._replace(target=algorithm.init(jax.random.key(1), SPEC).params.values)
    items = transitions(4)._replace(discount_t=jnp.ones(4), r_t=jnp.zeros(4), s_t=jnp.eye(2)[jnp.array([0, 1, 1, 0])])
    _, out = jax.jit(algorithm.gradient)(state, items, jax.random.key(0))
    online, target = state.params.values, state.target
    chosen = algorithm.mean((online if double else target).batch(items.s_t)).argmax(-1)
    rows = jnp.arange(4)
    labels = jax.nn.softmax(target.batch(items.s_t)[rows, chosen])  # nothing is gained on the way: no projection
    log_probs = jax.nn.log_softmax(online.batch(items.s_tm1)[rows, items.a_tm1])
    np.testing.assert_allclose(out.priorities, -(labels * log_probs).sum(-1), rtol=1e-3)


def test_a_bandit_is_solved():
    algorithm = C51(learning_rate=1e-2, hidden=(16,), v_min=-1.0, v_max=2.0, atoms=31, dueling=True)
    state = algorithm.init(jax.random.key(0), SPEC)
    learn = jax.jit(algorithm.learn)
    for update in range(100):
        state, _ = learn(state, transitions(seed=update), jax.random.key(update))
    q = algorithm.mean(state.params.values.batch(jnp.eye(2)))
    np.testing.assert_allclose(q, [[0, 1, 0], [0, 0, 1]], atol=0.15)


RAINBOW = {"dueling": True, "noisy": True, "prioritised": True, "epsilon_end": None}


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, RAINBOW], ids=["plain", "rainbow"])
def test_cartpole_is_learnt(tmp_path, settings):
    run = runnel.train(
        "c51", "CartPole-v1", steps=200_000, seed=1, stop_at_return=450, settings=settings, run_dir=tmp_path / "run",
        quiet=True,
    )  # fmt: skip
    assert run.result["mean_return"] >= 450


def test_settings_that_dqn_has_too_are_the_same():
    ours, theirs = ({field.name: field.default for field in dataclasses.fields(kind)} for kind in (C51, DQN))
    assert {name: value for name, value in ours.items() if name not in ("atoms", "v_min", "v_max")} == theirs
