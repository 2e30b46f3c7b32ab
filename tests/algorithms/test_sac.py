"""SAC: its losses by NumPy, probabilities by SciPy, and the temperature. What all three share is in test_continuous."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from continuous import (
    KEY,
    SMALL,
    SPEC,
    apply_of,
    blank,
    check_slope,
    gradient_of,
    moved,
    slow_critics,
    slow_policy,
    slow_unit,
    transitions,
)
from scipy import integrate, stats

from runnel.algorithms.sac import SAC
from runnel.errors import UserError
from runnel.nn import SquashedGaussian

ALGORITHM = SAC(**SMALL)


def warm():
    return moved(SAC)._replace(log_temperature=jnp.log(jnp.float32(0.3)))


def slow_sample(policy, s, key):
    """[batch, 2], [batch] what the policy draws by this key, and its log-probability."""
    mean, log_std = np.split(slow_policy(policy, s), 2, -1)
    std = np.exp(np.clip(log_std, -20, 2))
    drawn = mean + std * np.asarray(jax.random.normal(key, mean.shape))
    action = np.tanh(drawn)
    return action, (stats.norm(mean, std).logpdf(drawn) - np.log(1 - action**2)).sum(-1)


def test_losses_and_their_slopes_are_those_of_the_paper():
    state, items = warm(), transitions()
    grads, out = gradient_of(ALGORITHM)(state, items, KEY)
    key_tm1, key_t = jax.random.split(KEY)
    a_t, log_prob_t = slow_sample(state.params.policy, items.s_t, key_t)
    v_t = slow_critics(state.target, items.s_t, a_t).min(-1) - 0.3 * log_prob_t
    target = items.r_t + items.discount_t * v_t

    def errors(critics):
        return target[:, None] - slow_critics(critics, items.s_tm1, slow_unit(items.a_tm1))

    def critic_loss(critics):
        return 0.5 * (errors(critics) ** 2).sum(-1).mean()

    def policy_loss(policy):
        a_tm1, log_prob_tm1 = slow_sample(policy, items.s_tm1, key_tm1)
        return (0.3 * log_prob_tm1 - slow_critics(state.critics, items.s_tm1, a_tm1).min(-1)).mean()

    entropy = -slow_sample(state.params.policy, items.s_tm1, key_tm1)[1].mean()
    np.testing.assert_allclose(out.critic_loss, critic_loss(state.critics), rtol=1e-3)
    np.testing.assert_allclose(out.policy_loss, policy_loss(state.params.policy), rtol=1e-3)
    np.testing.assert_allclose(out.priorities, np.abs(errors(state.critics)).mean(-1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose((out.entropy, out.temperature), (entropy, 0.3), rtol=1e-3)
    check_slope(critic_loss, state.critics, grads.critics)
    check_slope(policy_loss, state.params.policy, grads.policy)
    np.testing.assert_allclose(grads.log_temperature, entropy + 2, rtol=1e-3)  # of 2 elements, -2 is asked for


@pytest.mark.parametrize(("log_std", "rises"), [(0.0, False), (-4.0, True)], ids=["wide", "narrow"])
def test_the_temperature_moves_towards_the_entropy_asked_for(log_std, rises):
    """It falls while the policy is more random than asked, and rises while it is less."""
    state = blank(SAC)
    policy = state.params.policy
    bias = jnp.asarray([0.0, 0.0, log_std, log_std], jnp.float32)
    head = {"params": {**policy.head["params"], "bias": bias}}
    state = state._replace(params=state.params._replace(policy=policy.replace(head=head)))
    grads, out = gradient_of(ALGORITHM)(state, transitions(), KEY)
    assert (out.entropy < -2) == rises
    assert (apply_of(ALGORITHM)(state, grads).log_temperature > state.log_temperature) == rises


@pytest.mark.slow
def test_where_one_action_pays_the_policy_stays_as_random_as_asked():
    algorithm = SAC(target_entropy=-1.0, learning_rate=1e-2, **SMALL)
    items = transitions(64)
    items = items._replace(r_t=-jnp.sum(items.a_tm1**2, -1), discount_t=jnp.zeros(64))
    keys = jax.random.split(KEY, 500)
    trained = jax.jit(lambda state: jax.lax.scan(lambda s, k: algorithm.learn(s, items, k), state, keys))
    _, out = trained(algorithm.init(KEY, SPEC))
    np.testing.assert_allclose(out.entropy[-50:].mean(), -1.0, atol=0.2)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.3), (-2.0, 0.5)])
def test_probabilities_of_a_squashed_gaussian_add_up(mean, std):
    one = SquashedGaussian(jnp.array([mean]), jnp.log(jnp.array([std])))
    action, log_prob = jax.vmap(one.sample_and_log_prob)(jax.random.split(KEY, 20_000))
    action, log_prob = np.asarray(action[:, 0], np.float64), np.asarray(log_prob, np.float64)

    def density(x):
        return stats.norm(mean, std).pdf(np.arctanh(x)) / (1 - x**2)

    inner = np.abs(action) < 0.999  # beyond it, float32 has few digits of 1 - x left
    np.testing.assert_allclose(log_prob[inner], np.log(density(action[inner])), atol=5e-3)
    np.testing.assert_allclose(integrate.quad(density, -1 + 1e-9, 1 - 1e-9, limit=200)[0], 1.0, atol=1e-3)
    np.testing.assert_allclose((action < np.tanh(mean)).mean(), 0.5, atol=0.02)
    np.testing.assert_allclose(one.mode(), [np.tanh(mean)], rtol=1e-6)


def test_a_policy_at_the_edge_stays_finite():
    edge = SquashedGaussian(jnp.array([100.0, -100.0]), jnp.array([2.0, -20.0]))
    slopes = jax.grad(lambda d: edge._replace(mean=d).sample_and_log_prob(KEY)[1])(edge.mean)
    assert np.isfinite(slopes).all()
    assert np.isfinite(edge.sample_and_log_prob(KEY)[1])


def test_bad_settings_are_refused():
    with pytest.raises(UserError, match=r"initial_temperature=0.0.*above 0"):
        SAC(initial_temperature=0.0)
