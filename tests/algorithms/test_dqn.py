"""DQN: exploration, target network, and what one gradient does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.algorithms.dqn import DQN
from runnel.errors import UserError
from runnel.flow import trace
from runnel.ops.n_step import Transition
from runnel.replay import Prioritised
from runnel.types import AgentSpec, Box, Discrete, EnvSpec

SPEC = AgentSpec(Box((2,)), Discrete(3))


def transitions(n=32, seed=0):
    """Of a bandit with two states: action 1 pays in the first, action 2 in the second. Nothing follows."""
    rng = np.random.default_rng(seed)
    state, action = rng.integers(0, 2, n), rng.integers(0, 3, n)
    s_tm1 = np.eye(2, dtype=np.float32)[state]
    reward = (action == state + 1).astype(np.float32)
    zeros = np.zeros(n, np.float32)
    return jax.tree.map(jnp.asarray, Transition(s_tm1, action.astype(np.int32), reward, zeros, s_tm1))


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("settings", [{}, {"prioritised": True, "n_step": 3}, {"double": False}])
def test_every_variant_can_be_traced(settings, x64):
    with jax.enable_x64(x64):
        graph = trace(DQN(**settings), EnvSpec.single("toy", Box((2,)), Discrete(3)), 4)
        assert list(graph.nodes) == ["environment", "act", "rollout", "map", "replay", "gradient", "apply"]
        assert graph.nodes["gradient"].output["out"].priorities.shape == (64,)


def test_only_discrete_actions():
    with pytest.raises(UserError, match="DQN acts in Discrete spaces; 'toy' wants Box actions"):
        trace(DQN(), EnvSpec.single("toy", Box((2,)), Box((1,))), 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 0}, "n_step=0.*1 or more"),
        ({"epsilon_end": 1.5}, "epsilon_end=1.5.*0 to 1"),
        ({"samples_per_insert": 0.0}, "samples_per_insert=0.0.*above 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        DQN(**settings)


def actions(algorithm, params, explore):
    keys = jax.random.split(jax.random.key(0), 2000)
    return jax.vmap(lambda key: algorithm.act(params, jnp.ones(2), (), key, explore).action)(keys)


def test_epsilon_falls_linearly_with_environment_steps():
    algorithm = DQN(batch=64, samples_per_insert=8.0, epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=800)
    params = algorithm.init(jax.random.key(0), SPEC).params
    at = [float(algorithm.epsilon(params._replace(updates=jnp.int32(n)))) for n in (0, 50, 100, 1000)]
    np.testing.assert_allclose(at, [1.0, 0.55, 0.1, 0.1], rtol=1e-5)  # an update stands for 64 / 8 steps


def test_acting_explores_and_evaluation_does_not():
    algorithm = DQN(epsilon_end=0.3)
    params = algorithm.init(jax.random.key(0), SPEC).params
    best = int(params.values(jnp.ones(2)).argmax())
    assert (actions(algorithm, params, False) == best).all()
    np.testing.assert_allclose(np.bincount(actions(algorithm, params, True)) / 2000, 1 / 3, atol=0.05)
    late = params._replace(updates=jnp.int32(10**6))
    np.testing.assert_allclose((actions(algorithm, late, True) == best).mean(), 0.7 + 0.1, atol=0.05)


def test_the_target_follows_every_so_often():
    algorithm = DQN(target_period=2)
    state = algorithm.init(jax.random.key(0), SPEC)
    step = jax.jit(lambda state: algorithm.learn(state, transitions(), jax.random.key(0))[0])

    def same(state):
        pairs = zip(jax.tree.leaves(state.target), jax.tree.leaves(state.params.values), strict=True)
        return all(bool((a == b).all()) for a, b in pairs)

    once = step(state)
    assert not same(once)
    assert same(step(once))


def test_bootstrap_is_that_of_the_target_at_the_action_chosen_online():
    algorithm = DQN()
    state = algorithm.init(jax.random.key(0), SPEC)
    state = state._replace(target=algorithm.init(jax.random.key(1), SPEC).params.values)
    items = transitions()._replace(discount_t=jnp.full(32, 0.5), s_t=jax.random.normal(jax.random.key(2), (32, 2)))
    for double in (True, False):
        _, out = dataclasses.replace(algorithm, double=double).gradient(state, items, jax.random.key(0))
        online, target = state.params.values, state.target
        chosen = jax.vmap(online if double else target)(items.s_t).argmax(-1)
        bootstrap = jnp.take_along_axis(jax.vmap(target)(items.s_t), chosen[:, None], 1)[:, 0]
        q_tm1 = jnp.take_along_axis(jax.vmap(online)(items.s_tm1), items.a_tm1[:, None], 1)[:, 0]
        np.testing.assert_allclose(out.priorities, jnp.abs(items.r_t + 0.5 * bootstrap - q_tm1), rtol=1e-3, atol=1e-5)


def test_weights_correct_for_priorities():
    """An item drawn twice as often as it should be counts half as much, at exponent 1."""
    algorithm = DQN(prioritised=True, importance_exponent=1.0)
    state = algorithm.init(jax.random.key(0), SPEC)
    items = transitions(2)
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), items)
    probability = jnp.array([2 / 3, 1 / 3, 2 / 3])
    weighted, _ = algorithm.gradient(state, Prioritised(twice, probability, jnp.arange(3)), jax.random.key(0))
    plain, _ = algorithm.gradient(state, items, jax.random.key(0))
    scale = 3 / 2  # of means over 3 and over 2
    for a, b in zip(jax.tree.leaves(weighted), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a * scale, b, rtol=1e-3, atol=1e-6)


def test_a_bandit_is_solved():
    algorithm = DQN(learning_rate=1e-2, hidden=(16,))
    state = algorithm.init(jax.random.key(0), SPEC)
    learn = jax.jit(algorithm.learn)
    for update in range(100):
        state, _ = learn(state, transitions(seed=update), jax.random.key(0))
    q = jax.vmap(state.params.values)(jnp.eye(2))
    np.testing.assert_allclose(q, [[0, 1, 0], [0, 0, 1]], atol=0.1)
