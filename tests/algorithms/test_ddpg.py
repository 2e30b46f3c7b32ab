"""DDPG: losses and gradients against ones worked out by NumPy. What all three share is in test_continuous."""

import jax
import jax.numpy as jnp
import numpy as np
import rlax
from continuous import (
    KEY,
    SMALL,
    SPEC,
    assert_same,
    blank,
    check_slope,
    gradient_of,
    moved,
    slow_critics,
    slow_policy,
    slow_unit,
    transitions,
)

from runnel.algorithms.ddpg import DDPG

ALGORITHM = DDPG(**SMALL)


def test_losses_and_their_slopes_are_those_of_the_paper():
    state, items = moved(DDPG), transitions()
    grads, out = gradient_of(ALGORITHM)(state, items, KEY)
    a_t = np.tanh(slow_policy(state.target.policy, items.s_t))
    target = items.r_t + items.discount_t * slow_critics(state.target.critics, items.s_t, a_t)[:, 0]

    def errors(critics):
        return target - slow_critics(critics, items.s_tm1, slow_unit(items.a_tm1))[:, 0]

    def critic_loss(critics):
        return 0.5 * (errors(critics) ** 2).mean()

    def policy_loss(policy):
        return -slow_critics(state.critics, items.s_tm1, np.tanh(slow_policy(policy, items.s_tm1))).mean()

    np.testing.assert_allclose(out.critic_loss, critic_loss(state.critics), rtol=1e-4)
    np.testing.assert_allclose(out.policy_loss, policy_loss(state.params.policy), rtol=1e-4)
    np.testing.assert_allclose(out.priorities, np.abs(errors(state.critics)), rtol=1e-3, atol=1e-4)
    check_slope(critic_loss, state.critics, grads.critics)
    check_slope(policy_loss, state.params.policy, grads.policy)


def test_the_policy_goes_up_the_slope_of_the_critic():
    """As `rlax.dpg_loss` has it."""
    state, items = moved(DDPG), transitions()

    @jax.jit
    @jax.grad
    def slope(policy):
        a_tm1 = jax.vmap(policy)(items.s_tm1)
        dqda = jax.vmap(jax.grad(lambda a, s: state.critics(s, a)[0]))(a_tm1, items.s_tm1)
        return jax.vmap(rlax.dpg_loss)(a_tm1, dqda).sum(-1).mean()

    grads, _ = gradient_of(ALGORITHM)(state, items, KEY)
    assert_same(grads.policy, slope(state.params.policy), rtol=1e-3)


def test_noise_is_of_the_size_asked_for():
    params = blank(DDPG).params._replace(updates=jnp.int32(1))
    act = jax.jit(jax.vmap(lambda key: ALGORITHM.act(params, jnp.ones(3), (), key, True).action))
    drawn = act(jax.random.split(KEY, 4000))
    reach = (np.asarray(SPEC.action.high) - np.asarray(SPEC.action.low)) / 2
    np.testing.assert_allclose(drawn.std(0), 0.1 * reach, rtol=0.05)
