"""Distributions against what numpy and scipy say of them, and actions that fit their space."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from runnel.nn import Categorical, Gaussian, MultiCategorical, head_for
from runnel.types import Box, Discrete, MultiDiscrete

LOGITS = jnp.array([0.1, 1.0, -2.0])
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum()


def test_categorical():
    one = Categorical(LOGITS)
    np.testing.assert_allclose([one.log_prob(i) for i in range(3)], np.log(PROBS), rtol=1e-5)
    np.testing.assert_allclose(one.entropy(), stats.entropy(PROBS), rtol=1e-5)
    assert one.mode() == 1
    drawn = jax.vmap(one.sample)(jax.random.split(jax.random.key(0), 20_000))
    assert drawn.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(drawn) / 20_000, PROBS, atol=0.01)


def test_a_masked_category_has_a_finite_entropy():
    masked = Categorical(jnp.array([0.0, -1e30]))
    assert masked.entropy() == 0.0


def test_illegal_actions_are_never_drawn_and_have_no_gradient():
    legal = jnp.array([True, False, True, False])
    logits = jnp.array([0.5, 9.0, -0.5, 9.0])
    left = Categorical(logits[jnp.array([0, 2])])
    masked = Categorical(logits).masked(legal)
    drawn = np.asarray(jax.jit(jax.vmap(masked.sample))(jax.random.split(jax.random.key(0), 20_000)))
    assert drawn.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 20_000 * ~legal, 0.0)
    np.testing.assert_allclose((drawn == 0).mean(), jnp.exp(left.log_prob(0)), atol=0.01)
    assert masked.mode() == 0
    np.testing.assert_allclose(masked.entropy(), left.entropy(), rtol=1e-6)
    np.testing.assert_allclose(masked.log_prob(2), left.log_prob(1), rtol=1e-6)
    for quantity in (lambda d: d.entropy(), lambda d: d.log_prob(0), lambda d: d.log_prob(1)):
        grads = jax.jit(jax.grad(lambda x, f=quantity: f(Categorical(x).masked(legal))))(logits)
        assert np.isfinite(grads).all()
        np.testing.assert_array_equal(grads[~legal], 0.0)


@pytest.mark.parametrize("drawn", [0.0, 0.3, 1 - 2.0**-23])
def test_no_draw_is_too_low_or_too_high_for_the_legal_actions(drawn, monkeypatch):
    monkeypatch.setattr("runnel.ops.random.uniform", lambda key: jnp.float32(drawn))
    for legal in (np.arange(7) == i for i in range(7)):
        masked = Categorical(jnp.linspace(-3.0, 3.0, 7)).masked(jnp.asarray(legal))
        assert legal[masked.sample(jax.random.key(0))]


def test_each_part_of_a_vector_has_its_own_mask():
    parts = MultiCategorical((Categorical(jnp.zeros(2)), Categorical(jnp.zeros(3))))
    masked = parts.masked(jnp.array([False, True, True, False, False]))
    keys = jax.random.split(jax.random.key(0), 64)
    np.testing.assert_array_equal(jax.jit(jax.vmap(masked.sample))(keys), np.tile([1, 0], (64, 1)))
    np.testing.assert_array_equal(masked.mode(), [1, 0])
    np.testing.assert_allclose(masked.entropy(), 0.0)
    np.testing.assert_allclose(masked.log_prob(jnp.array([1, 0])), 0.0)


def test_multi_categorical_is_a_product():
    both = MultiCategorical((Categorical(LOGITS), Categorical(jnp.array([0.0, 3.0]))))
    sample = both.sample(jax.random.key(0))
    assert sample.shape == (2,)
    assert sample.dtype == jnp.int32
    np.testing.assert_array_equal(both.mode(), [1, 1])
    np.testing.assert_allclose(
        both.log_prob(sample),
        both.parts[0].log_prob(sample[0]) + both.parts[1].log_prob(sample[1]),
        rtol=1e-6,
    )
    np.testing.assert_allclose(both.entropy(), both.parts[0].entropy() + both.parts[1].entropy(), rtol=1e-6)


def test_gaussian():
    mean, std = np.array([0.5, -1.0]), np.array([0.3, 2.0])
    both = Gaussian(jnp.asarray(mean), jnp.log(jnp.asarray(std)))
    x = np.array([0.0, 1.0])
    np.testing.assert_allclose(both.log_prob(x), stats.norm(mean, std).logpdf(x).sum(), rtol=1e-5)
    np.testing.assert_allclose(both.entropy(), stats.norm(mean, std).entropy().sum(), rtol=1e-5)
    drawn = jax.vmap(both.sample)(jax.random.split(jax.random.key(0), 20_000))
    np.testing.assert_allclose(drawn.std(0), std, rtol=0.03)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize(
    "space",
    [
        Discrete(3),
        MultiDiscrete((2, 3, 4)),
        Box((2, 2), np.dtype(np.float32), -1.0, np.array([[1.0, 2.0], [3.0, np.inf]])),
        Box((), np.dtype(np.float32), 0.0, 1.0),
    ],
)
def test_actions_have_the_shape_and_dtype_of_their_space(space, x64):
    with jax.enable_x64(x64):
        head, features = head_for(space), jnp.ones(5)
        distribution = head.apply(head.init(jax.random.key(0), features), features)
        for sample in (distribution.sample(jax.random.key(1)), distribution.mode()):
            action = head.action(sample)
            assert action.shape == space.shape
            assert action.dtype == (jnp.float32 if isinstance(space, Box) else jnp.int32)
            assert distribution.log_prob(sample).shape == distribution.entropy().shape == ()


def test_real_actions_fill_their_bounds():
    head = head_for(Box((4,), np.dtype(np.float32), [-2.0, 0.0, -np.inf, -3e38], [2.0, 10.0, np.inf, 3e38]))
    np.testing.assert_allclose(head.action(jnp.zeros(4)), [0.0, 5.0, 0.0, 0.0])
    np.testing.assert_allclose(head.action(jnp.ones(4)), [2.0, 10.0, 1.0, 1.0])
    np.testing.assert_allclose(head.action(jnp.full(4, -7.0)), [-2.0, 0.0, -7.0, -7.0])


def test_policies_begin_near_uniform():
    head, features = head_for(Discrete(4)), jnp.ones(64)
    distribution = head.apply(head.init(jax.random.key(0), features), features)
    np.testing.assert_allclose(jax.nn.softmax(distribution.logits), 0.25, atol=0.02)


def test_distributions_pass_through_vmap():
    head, features = head_for(Box((3,))), jnp.ones((6, 5))
    params = head.init(jax.random.key(0), features[0])
    distribution = jax.vmap(head.apply, (None, 0))(params, features)
    assert distribution.log_prob(jnp.zeros((6, 3))).shape == (6,)
    assert distribution.entropy().shape == (6,)
