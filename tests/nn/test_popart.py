"""PopArt: new statistics leave values as they were, and targets of any scale are learnt."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from actor_critics import SEEN, play

from runnel.algorithms.a2c import A2C
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.ppo import PPO
from runnel.nn import ActorCritic, head_for, network_for, popart
from runnel.types import AgentSpec, Discrete, zeros


def test_values_are_preserved_exactly_when_statistics_change():
    with jax.enable_x64(True):
        key = jax.random.key(0)
        network, observations = network_for(SEEN, (8,)), jax.random.normal(key, (5, 3))
        model = jax.jit(lambda: ActorCritic.create(key, network, head_for(Discrete(2)), zeros(SEEN)))()
        statistics = popart.initial(True)

        @jax.jit
        def said(model, statistics):
            prediction = model.batch(observations)
            return popart.value(statistics, prediction.value), prediction.distribution.logits

        @jax.jit
        def changed(model, statistics, scale):
            targets = scale * (3 + jax.random.normal(key, (4, 8)))
            return popart.updated(statistics, model, popart.moments(statistics, targets))

        values, logits = said(model, statistics)
        for scale in (1e3, 1e-2, 5.0):
            model, statistics = changed(model, statistics, scale)
            found = said(model, statistics)
            np.testing.assert_allclose(found[0], values, rtol=1e-9)
            np.testing.assert_array_equal(found[1], logits)


def test_statistics_are_those_of_the_targets_however_they_come():
    """In one batch, or in two whose moments are averaged; by present statistics or by older ones; far from 0."""
    with jax.enable_x64(True):
        targets = 5_000 + jax.random.normal(jax.random.key(0), (6, 8))
        start = popart.initial(True)
        one = popart.moved(start, popart.moments(start, targets))
        np.testing.assert_allclose([one.mean, one.deviation], [targets.mean(), targets.std()], rtol=1e-6)
        halves = [popart.moments(start, half) for half in jnp.split(targets, 2, 1)]
        for moments in (popart.moments(one, targets), jax.tree.map(lambda a, b: (a + b) / 2, *halves)):
            two = popart.moved(one, moments)
            np.testing.assert_allclose([two.mean, two.deviation], [targets.mean(), targets.std()], rtol=1e-6)


def test_without_it_nothing_changes():
    x, model = jnp.ones(3), object()
    assert popart.initial(False) is None
    assert popart.value(None, x) is x
    assert popart.normalised(None, x) is x
    assert popart.updated(None, model, popart.moments(None, x)) == (model, None)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PPO, A2C, IMPALA])
def test_large_returns_are_soon_predicted(algorithm):
    """Updates repeatedly from one unroll, each step of which has a reward of 5,000."""
    spec = AgentSpec(SEEN, Discrete(3))

    def predicted(rescale):
        chosen = algorithm(learning_rate=1e-2, hidden=(16,), discount=0.5, popart=rescale)
        learn, state = jax.jit(chosen.learn), chosen.init(jax.random.key(0), spec)
        played = play(chosen, state.params, spec.action, 4, 8)
        played = played._replace(reward=jnp.full((4, 8), 5_000.0))
        for i in range(60):
            state, _ = learn(state, played, jax.random.key(i))
        return popart.value(state.params.values, state.params.actor_critic.batch(played.observation[0]).value).mean()

    assert 4_000 < predicted(True) < 12_000
    assert predicted(False) < 1_000
