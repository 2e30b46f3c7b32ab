"""TD3: its losses by NumPy, smoothed targets, and a policy that waits. What all three share is in test_continuous."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from continuous import (
    KEY,
    SMALL,
    apply_of,
    check_slope,
    differ,
    gradient_of,
    moved,
    slow_critics,
    slow_policy,
    slow_unit,
    transitions,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.algorithms.td3 import TD3
from runnel.errors import UserError
from runnel.nn import critics

ALGORITHM = TD3(**SMALL)


def test_losses_and_their_slopes_are_those_of_the_paper():
    state, items = moved(TD3), transitions()
    grads, out = gradient_of(ALGORITHM)(state, items, KEY)
    noise = np.clip(0.2 * np.asarray(jax.random.normal(KEY, (16, 2))), -0.5, 0.5)
    a_t = np.clip(np.tanh(slow_policy(state.target.policy, items.s_t)) + noise, -1, 1)
    target = items.r_t + items.discount_t * slow_critics(state.target.critics, items.s_t, a_t).min(-1)

    def errors(critics):
        return target[:, None] - slow_critics(critics, items.s_tm1, slow_unit(items.a_tm1))

    def critic_loss(critics):
        return 0.5 * (errors(critics) ** 2).sum(-1).mean()

    def policy_loss(policy):
        return -slow_critics(state.critics, items.s_tm1, np.tanh(slow_policy(policy, items.s_tm1)))[:, 0].mean()

    np.testing.assert_allclose(out.critic_loss, critic_loss(state.critics), rtol=1e-4)
    np.testing.assert_allclose(out.policy_loss, policy_loss(state.params.policy), rtol=1e-4)
    np.testing.assert_allclose(out.priorities, np.abs(errors(state.critics)).mean(-1), rtol=1e-3, atol=1e-4)
    check_slope(critic_loss, state.critics, grads.critics)
    check_slope(policy_loss, state.params.policy, grads.policy)


@settings(deadline=None, max_examples=10)
@given(
    action=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=4),
    noise=st.floats(0, 1),
    limit=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_smoothing_stays_near_and_within_bounds(action, noise, limit, seed):
    algorithm = TD3(target_noise=noise, target_noise_clip=limit)
    action = np.asarray([action], np.float32)
    smoothed = np.asarray(algorithm.smoothed(jnp.asarray(action), jax.random.key(seed)))
    assert (np.abs(smoothed) <= 1).all()
    assert (np.abs(smoothed - action) <= limit + 1e-6).all()


def test_smoothing_is_noise_of_the_size_asked_for():
    smoothed = TD3(target_noise=0.2).smoothed(jnp.zeros((4000, 2)), KEY)
    np.testing.assert_allclose(smoothed.std(), 0.2, rtol=0.05)
    assert np.abs(smoothed).max() == 0.5  # of 8,000, some lie beyond 2.5 deviations


def test_policy_and_targets_change_with_every_second_update():
    state, changed = moved(TD3), []
    grads, _ = gradient_of(ALGORITHM)(state, transitions(), KEY)
    for _ in range(6):
        after = apply_of(ALGORITHM)(state, grads)
        assert any(differ(after.critics, state.critics))
        parts = [
            (after.params.policy, state.params.policy),
            (after.policy_optimiser, state.policy_optimiser),
            (after.target.policy, state.target.policy),
            (after.target.critics, state.target.critics),
        ]
        changed.append({any(differ(*pair)) for pair in parts})
        state = after
    assert changed == [{False}, {True}] * 3
    assert (state.policy_optimiser[0].count, state.critic_optimiser[0].count) == (3, 6)


def test_critics_differ_and_say_the_same_jointly_and_apart(monkeypatch):
    two, items = moved(TD3).critics, transitions()
    values = []
    for joint in (False, True):
        monkeypatch.setattr(critics, "launch_bound", lambda found=joint: found)
        values.append(jax.jit(lambda s, a: jax.vmap(two)(s, a))(items.s_tm1, items.a_tm1))
    np.testing.assert_allclose(*values, rtol=1e-4, atol=1e-6)
    assert (values[0][:, 0] != values[0][:, 1]).all()


def test_bad_settings_are_refused():
    with pytest.raises(UserError, match=r"policy_delay=0.*1 or more"):
        TD3(policy_delay=0)
