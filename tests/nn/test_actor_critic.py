"""Actor-critics: unrolling equals stepping, towers are apart, and the pytree knows how to apply itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen

from runnel.nn import GRU, LSTM, ActionValues, ActorCritic, head_for, initial_memory, network_for
from runnel.nn.lstm import LSTMMemory
from runnel.ops import hardware
from runnel.types import Box, Discrete, MultiDiscrete, zeros

SPACE, ACTIONS = Box((3,)), Discrete(2)


def create(core=None, towers=True):
    network = network_for(SPACE, (8,))
    return ActorCritic.create(jax.random.key(0), network, head_for(ACTIONS), zeros(SPACE), core, towers)


def stepwise(step, memory, initial, inputs, first):
    """The computation of acting: resets the memory at the beginning of an episode, and steps."""
    outputs = []
    for x, begins in zip(inputs, first, strict=True):
        memory, output = step(initial if begins else memory, x)
        outputs.append(output)
    return jax.tree.map(lambda *x: jnp.stack(x), *outputs)


FIRST = np.array([False, False, True, False, True, True, False])


@pytest.mark.parametrize("core", [GRU(5), LSTM(5)], ids=["gru", "lstm"])
def test_a_core_unrolls_as_it_steps_with_resets(core):
    with jax.enable_x64(True):
        features = jax.random.normal(jax.random.key(1), (7, 3))
        params = core.init(jax.random.key(0), features[0])
        start = jax.tree.map(jnp.ones_like, core.initial_memory())
        found = core.unroll(params, start, features, jnp.asarray(FIRST))

        def step(memory, x):
            memory = core.step(params, memory, x)
            return memory, memory

        wanted = stepwise(step, start, core.initial_memory(), features, FIRST)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), found, wanted)
        assert core.output(found).shape == (7, 5)


@pytest.mark.parametrize("core", [GRU(5), LSTM(5)], ids=["gru", "lstm"])
def test_a_core_forgets_at_the_beginning_of_an_episode(core):
    features = jax.random.normal(jax.random.key(1), (7, 3))
    params = core.init(jax.random.key(0), features[0])

    def outputs(start):
        memory = jax.tree.map(lambda x: jnp.full_like(x, start), core.initial_memory())
        return core.output(core.unroll(params, memory, features, jnp.asarray(FIRST)))

    one, other = outputs(-1.0), outputs(1.0)
    assert (one[1] != other[1]).any()
    np.testing.assert_array_equal(one[2:], other[2:])


def test_lstm_is_that_of_flax():
    with jax.enable_x64(True):
        lstm, features = LSTM(5), jax.random.normal(jax.random.key(1), (3,))
        params = lstm.init(jax.random.key(0), features)
        memory = LSTMMemory(*jax.random.normal(jax.random.key(2), (2, 5)))
        weights = {}
        for i, gate in enumerate("ifog"):
            part = slice(5 * i, 5 * i + 5)
            weights["i" + gate] = {"kernel": params.inputs[:, part]}
            weights["h" + gate] = {"kernel": params.memory[:, part], "bias": params.bias[part]}
        cell = linen.OptimizedLSTMCell(5, param_dtype=jnp.float64)
        (c, h), _ = cell.apply({"params": weights}, (memory.cell, memory.hidden), features)
        found = lstm.step(params, memory, features)
        np.testing.assert_allclose(found.cell, c, rtol=1e-12)
        np.testing.assert_allclose(found.hidden, h, rtol=1e-12)


@pytest.mark.parametrize("towers", [True, False], ids=["towers", "shared"])
@pytest.mark.parametrize(
    "core", [None, GRU(4), pytest.param(LSTM(4), marks=pytest.mark.slow)], ids=["none", "gru", "lstm"]
)
@pytest.mark.parametrize("launch_bound", [True, False])
def test_unroll_equals_stepping(core, towers, launch_bound, monkeypatch):
    monkeypatch.setattr("runnel.nn.actor_critic.launch_bound", lambda: launch_bound)
    model = create(core, towers)
    observations = jax.random.normal(jax.random.key(1), (7, 3))
    memory = initial_memory(core, towers)
    unrolled = model.unroll(observations, jnp.asarray(FIRST), memory)

    def step(memory, observation):
        prediction = model.step(observation, memory)
        return prediction.memory, jnp.append(prediction.distribution.logits, prediction.value)

    wanted = stepwise(step, memory, memory, observations, FIRST)
    assert jax.tree.map(jnp.shape, unrolled.memory) == jax.tree.map(lambda x: (7, *x.shape), memory)
    found = jnp.concatenate([unrolled.distribution.logits, unrolled.value[:, None]], -1)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_towers_are_apart():
    """A gradient of the value leaves the policy's half of the torso alone."""
    grads = jax.grad(lambda model: model.step(jnp.ones(3), ()).value)(create())
    for leaf in jax.tree.leaves(grads.trunk):
        assert (leaf[0] == 0).all()
    assert any((leaf[1] != 0).any() for leaf in jax.tree.leaves(grads.trunk))


@pytest.mark.parametrize("space", [ACTIONS, MultiDiscrete((2, 3)), Box((2,))], ids=lambda space: type(space).__name__)
@pytest.mark.parametrize("towers", [True, False], ids=["towers", "shared"])
@pytest.mark.parametrize("launch_bound", [True, False])
def test_a_batch_equals_its_steps(space, towers, launch_bound, monkeypatch):
    monkeypatch.setattr("runnel.nn.actor_critic.launch_bound", lambda: launch_bound)
    model = ActorCritic.create(
        jax.random.key(0), network_for(SPACE, (8,)), head_for(space), zeros(SPACE), towers=towers
    )
    observations = jax.random.normal(jax.random.key(1), (5, 3))
    found, wanted = model.batch(observations), jax.vmap(lambda o: model.step(o, ()))(observations)
    sample = jax.vmap(lambda d, k: d.sample(k))(wanted.distribution, jax.random.split(jax.random.key(2), 5))
    np.testing.assert_allclose(found.value, wanted.value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        found.distribution.log_prob(sample), wanted.distribution.log_prob(sample), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(found.distribution.entropy().mean(), wanted.distribution.entropy().mean(), rtol=1e-4)


def test_towers_are_the_same_computed_together_or_apart(monkeypatch):
    model = create()
    apart = model.step(jnp.ones(3), ())
    monkeypatch.setattr("runnel.nn.actor_critic.launch_bound", lambda: True)
    together = model.step(jnp.ones(3), ())
    np.testing.assert_allclose(apart.value, together.value, rtol=1e-5)
    np.testing.assert_allclose(apart.distribution.logits, together.distribution.logits, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("core", [None, GRU(5)], ids=["none", "gru"])
def test_the_plain_form_of_a_step_gives_the_same(core):
    actor_critic, memory = create(core), initial_memory(core, True)
    x = jnp.array([0.5, -1.0, 2.0])
    wanted = actor_critic.step(x, memory)
    products = str(jax.make_jaxpr(lambda *given: actor_critic.step(*given))(x, memory)).count("dot_general")
    with hardware.plain_networks():
        found = actor_critic.step(x, memory)
        plain = str(jax.make_jaxpr(lambda *given: actor_critic.step(*given))(x, memory)).count("dot_general")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, wanted)
    assert plain == 2 * products  # each tower has its own, and an export of the policy needs half of them


@pytest.mark.parametrize("x64", [False, True])
def test_parameters_have_the_default_float(x64):
    with jax.enable_x64(x64):
        values = ActionValues.create(jax.random.key(0), network_for(SPACE), 2, zeros(SPACE))
        wanted = jnp.float64 if x64 else jnp.float32
        assert all(x.dtype == wanted for x in jax.tree.leaves((create(), create(GRU(4)), values)))
        assert values(jnp.ones(3, jnp.float32)).dtype == wanted


def test_a_network_may_have_no_layer():
    made = ActorCritic.create(jax.random.key(0), network_for(SPACE, ()), head_for(ACTIONS), zeros(SPACE))
    stepped = made.step(jnp.ones(3), ())
    together = made.batch(jnp.ones((2, 3)))
    np.testing.assert_allclose(together.value, jnp.stack([stepped.value] * 2), rtol=1e-6)


def test_structures_made_apart_are_equal():
    assert jax.tree.structure(create()) == jax.tree.structure(create())


def test_action_values():
    values = ActionValues.create(jax.random.key(0), network_for(SPACE), 4, zeros(SPACE))
    assert values(jnp.ones(3)).shape == (4,)
