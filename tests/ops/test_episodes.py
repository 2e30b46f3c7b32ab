"""Returns and lengths counted all at once equal those counted step by step."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.ops import episodes as ops

count = jax.jit(ops.count)
discounted_sum = jax.jit(ops.discounted_sum, static_argnums=3)


@st.composite
def cases(draw):
    envs, steps = draw(st.sampled_from([(1, 7), (3, 1), (3, 7)]))  # few shapes: each is compiled
    unrolls = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    reward = rng.integers(-3, 4, (unrolls, steps, envs)).astype(np.float32)
    return reward, rng.random((unrolls, steps, envs)) < density


@given(cases())
@settings(max_examples=60, deadline=None)
def test_counting_an_unroll_at_once_equals_counting_each_step(case):
    reward, done = case
    envs = reward.shape[-1]
    counted = ops.init(envs, ["agent"])
    sums, lengths, ended = np.zeros(envs), np.zeros(envs, int), []
    total = 0
    for r, d in zip(reward, done, strict=True):
        counted, finished = count(counted, {"agent": jnp.asarray(r)}, jnp.asarray(d))
        total += int(finished.count)
        for t in range(len(r)):
            sums, lengths = sums + r[t], lengths + 1
            ended += [(float(sums[e]), int(lengths[e])) for e in range(envs) if d[t, e]]
            sums, lengths = np.where(d[t], 0, sums), np.where(d[t], 0, lengths)
    np.testing.assert_allclose(counted.reward["agent"], sums)
    np.testing.assert_array_equal(counted.length, lengths)
    assert total == len(ended)
    newest = ended[-ops.WINDOW :]
    assert int(counted.filled) == len(newest)
    assert sorted(map(float, counted.returns["agent"][: len(newest)])) == sorted(r for r, _ in newest)
    if newest:
        np.testing.assert_allclose(ops.mean_return(counted), np.mean([r for r, _ in newest]), rtol=1e-5)


def test_the_window_holds_the_newest_hundred_in_order_of_step_and_environment():
    steps, envs = 30, 9
    reward = np.arange(steps * envs, dtype=np.float32).reshape(steps, envs)
    counted, _ = count(ops.init(envs, ["agent"]), {"agent": jnp.asarray(reward)}, jnp.ones((steps, envs), bool))
    assert sorted(np.asarray(counted.returns["agent"])) == list(range(steps * envs - 100, steps * envs))


def test_before_the_first_end_the_mean_return_is_nan():
    assert np.isnan(ops.mean_return(ops.init(2, ["agent"])))


@given(cases(), st.sampled_from([0.5, 0.99]))
@settings(max_examples=60, deadline=None)
def test_the_discounted_sum_equals_the_recursion(case, discount):
    reward, done = case
    before = np.zeros(reward.shape[-1], np.float32)
    wanted = before.astype(np.float64)
    for r, d in zip(reward, done, strict=True):
        before = discounted_sum(jnp.asarray(before), jnp.asarray(r), jnp.asarray(d), discount)
        for t in range(len(r)):
            wanted = np.where(d[t], 0.0, r[t] + discount * wanted)
    np.testing.assert_allclose(before, wanted, rtol=1e-4, atol=1e-5)
