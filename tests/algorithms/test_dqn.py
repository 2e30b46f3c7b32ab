"""DQN: exploration, target network, and what one gradient does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bandits import SPEC, transitions

import runnel
from runnel import distributions
from runnel.algorithms.dqn import DQN
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.observations import parted
from runnel.ops import exploration
from runnel.replay import Prioritised
from runnel.types import AgentSpec, Box, Discrete, EnvSpec

FLAG = np.dtype(np.bool_)
PARTED = AgentSpec(parted(Box((2,)), Box((3,), FLAG, 0, 1), Box((), FLAG, 0, 1)), Discrete(3))
RAINBOW = {"dueling": True, "noisy": True, "prioritised": True}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("settings", [{}, {"prioritised": True, "n_step": 3}, {"double": False}, RAINBOW])
def test_every_variant_can_be_traced(settings, x64):
    with jax.enable_x64(x64):
        graph = trace(DQN(**settings), EnvSpec("toy", {"agent": PARTED if settings == RAINBOW else SPEC}), 4)
        assert list(graph.nodes) == ["environment", "act", "rollout", "map", "replay", "gradient", "apply"]
        assert graph.nodes["gradient"].output["out"].priorities.shape == (64,)


def test_only_discrete_actions():
    with pytest.raises(UserError, match="DQN: found Box actions of 'toy', expected Discrete"):
        trace(DQN(), EnvSpec.single("toy", Box((2,)), Box((1,))), 4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_step": 0}, "n_step=0.*1 or more"),
        ({"n_step": 5, "unroll": 4}, "n_step=5; it must be no more than unroll, which is 4"),
        ({"epsilon_end": 1.5}, "epsilon_end=1.5.*0 to 1"),
        ({"epsilon_spread": -1.0}, "epsilon_spread=-1.0.*0 or more"),
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
    algorithm = DQN(
        hidden=(8,), batch=64, samples_per_insert=8.0, epsilon_start=1.0, epsilon_end=0.1, epsilon_steps=800
    )
    params = algorithm.init(jax.random.key(0), SPEC).params
    at = [float(algorithm.epsilon(params._replace(updates=jnp.int32(n)))) for n in (0, 50, 100, 1000)]
    np.testing.assert_allclose(at, [1.0, 0.55, 0.1, 0.1], rtol=1e-5)  # an update stands for 64 / 8 steps


def test_acting_explores_and_evaluation_does_not():
    algorithm = DQN(hidden=(8,), epsilon_end=0.3)
    params = algorithm.init(jax.random.key(0), SPEC).params
    best = int(params.values(jnp.ones(2)).argmax())
    assert (actions(algorithm, params, False) == best).all()
    np.testing.assert_allclose(np.bincount(actions(algorithm, params, True)) / 2000, 1 / 3, atol=0.05)
    late = params._replace(updates=jnp.int32(10**6))
    np.testing.assert_allclose((actions(algorithm, late, True) == best).mean(), 0.7 + 0.1, atol=0.05)


def test_noise_explores_instead_of_epsilon():
    algorithm = DQN(hidden=(8,), noisy=True)
    params = algorithm.init(jax.random.key(0), SPEC).params
    assert float(algorithm.epsilon(params)) == 0.0
    assert len(np.unique(actions(algorithm, params, True))) > 1
    assert (actions(algorithm, params, False) == int(params.values(jnp.ones(2)).argmax())).all()  # by the means
    set_by_hand = dataclasses.replace(algorithm, epsilon_end=0.1)
    assert float(set_by_hand.epsilon(params)) == pytest.approx(0.1)


def test_dueling_values_are_a_value_and_advantages_around_it():
    values = DQN(hidden=(8,), dueling=True).init(jax.random.key(0), SPEC).params.values
    last = values.last["params"]
    assert len(last) == 4  # two streams of two layers
    features = values.network.apply(values.torso, jnp.ones(2))
    hidden = jax.nn.relu(features @ last["Dense_2"]["kernel"] + last["Dense_2"]["bias"])
    value = hidden @ last["Dense_3"]["kernel"] + last["Dense_3"]["bias"]
    np.testing.assert_allclose(values(jnp.ones(2)).mean(), value[0], rtol=1e-4)


def test_each_environment_has_its_own_epsilon():
    """As evenly spread as Ape-X's, from epsilon to its eighth power, whatever the number of environments."""
    exponent = np.log(exploration.spread(jnp.float32(0.4), jnp.arange(64), 7.0)) / np.log(0.4)
    np.testing.assert_allclose(np.sort(exponent), np.linspace(1, 8, 64), atol=0.1)
    algorithm = DQN(hidden=(8,), epsilon_start=0.5, epsilon_end=0.5, epsilon_spread=20.0)
    params = algorithm.init(jax.random.key(0), SPEC).params
    best, keys = int(params.values(jnp.ones(2)).argmax()), jax.random.split(jax.random.key(0), 2000)
    for index, wanted in ((0, 1 - 0.5 * 2 / 3), (1, 1.0)):
        acted = jax.vmap(lambda key, i=index: algorithm.act(params, jnp.ones(2), (), key, True, i).action)(keys)
        np.testing.assert_allclose((acted == best).mean(), wanted, atol=0.05)


def test_only_legal_actions_are_taken():
    algorithm = DQN(hidden=(8,), epsilon_start=0.5, epsilon_end=0.5)
    params = algorithm.init(jax.random.key(0), PARTED).params
    best = int(params.values(parted(jnp.ones(2), jnp.ones(3, bool), jnp.bool_(True))).argmax())
    legal = jnp.arange(3) != best
    keys = jax.random.split(jax.random.key(0), 2000)
    for explore in (True, False):
        seen = parted(jnp.ones(2), legal, jnp.bool_(True))
        acted = jax.vmap(lambda key, s=seen, e=explore: algorithm.act(params, s, (), key, e).action)(keys)
        assert set(np.unique(acted)) <= set(np.flatnonzero(legal))
        assert len(np.unique(acted)) == (2 if explore else 1)


def seen_by(items, legal=True, active=True):
    """Transitions whose observations carry legal actions and turns."""

    def part(seen):
        return parted(seen, jnp.broadcast_to(legal, (len(seen), 3)), jnp.broadcast_to(active, len(seen)))

    return items._replace(s_tm1=part(items.s_tm1), s_t=part(items.s_t))


def test_the_bootstrap_is_that_of_a_legal_action():
    algorithm = DQN(hidden=(8,))
    state = algorithm.init(jax.random.key(0), PARTED)
    items = transitions()._replace(discount_t=jnp.ones(32), r_t=jnp.zeros(32))
    seen = seen_by(items, jnp.array([False, True, False]))
    _, out = jax.jit(algorithm.gradient)(state, seen, jax.random.key(0))
    q = state.params.values.batch(seen.s_t)
    wanted = q[:, 1] - jnp.take_along_axis(q, items.a_tm1[:, None], 1)[:, 0]
    np.testing.assert_allclose(out.priorities, jnp.abs(wanted), rtol=1e-3, atol=1e-5)


def test_without_a_turn_the_moment_is_valued_and_no_action_is():
    algorithm = DQN(learning_rate=1e-2, hidden=(16,))
    state = algorithm.init(jax.random.key(0), PARTED)
    learn = jax.jit(algorithm.learn)
    for update in range(150):
        items = transitions(seed=update)
        state, _ = learn(state, seen_by(items._replace(r_t=jnp.ones(32)), active=False), jax.random.key(0))
    waiting = state.params.values.batch(seen_by(transitions(), active=False).s_tm1)
    np.testing.assert_allclose(waiting, 1.0, atol=0.05)
    grads, _ = jax.jit(algorithm.gradient)(state, seen_by(transitions(), active=False), jax.random.key(0))
    bias = grads.last["params"]["Dense_0"]["bias"]
    np.testing.assert_allclose(bias, bias.mean(), atol=1e-6)  # all actions alike


def test_the_target_follows_every_so_often():
    algorithm = DQN(hidden=(8,), target_period=2)
    state = algorithm.init(jax.random.key(0), SPEC)
    step = jax.jit(lambda state: algorithm.learn(state, transitions(), jax.random.key(0))[0])

    def same(state):
        pairs = zip(jax.tree.leaves(state.target), jax.tree.leaves(state.params.values), strict=True)
        return all(bool((a == b).all()) for a, b in pairs)

    once = step(state)
    assert not same(once)
    assert same(step(once))


def test_bootstrap_is_that_of_the_target_at_the_action_chosen_online():
    algorithm = DQN(hidden=(8,))
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
    algorithm = DQN(hidden=(8,), prioritised=True, importance_exponent=1.0)
    state = algorithm.init(jax.random.key(0), SPEC)
    items = transitions(2)
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x[:1]]), items)
    probability = jnp.array([2 / 3, 1 / 3, 2 / 3])
    weighted, _ = jax.jit(algorithm.gradient)(state, Prioritised(twice, probability, jnp.arange(3)), jax.random.key(0))
    plain, _ = jax.jit(algorithm.gradient)(state, items, jax.random.key(0))
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


@pytest.mark.slow
def test_rainbow_settings_learn_cartpole(tmp_path):
    settings = {**RAINBOW, "epsilon_end": None}  # not that of the tuned settings: noise explores
    run = runnel.train(
        "dqn", "CartPole-v1", steps=200_000, seed=1, stop_at_return=450, settings=settings, run_dir=tmp_path / "run",
        quiet=True,
    )  # fmt: skip
    assert run.result["mean_return"] >= 450


@pytest.mark.slow
def test_ape_x_learns_cartpole(tmp_path):
    """DQN from prioritised replay with actors that run free, each of its environments with its own epsilon."""
    settings = {"prioritised": True, "n_step": 3, "epsilon_spread": 7.0}
    run = runnel.train(
        "dqn", "CartPole-v1", distributions.load("async")(actors=2), steps=200_000, seed=1, stop_at_return=450,
        settings=settings, run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    assert run.result["mean_return"] >= 450
