"""Returns and lengths counted all at once equal those counted step by step."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.ops import episodes as ops
from runnel.runtime.programs.episode_counter import EpisodeCounter

count, push = jax.jit(ops.count), jax.jit(ops.push)
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
    running, window = ops.begin(envs, ["agent"]), ops.empty_window(["agent"])
    sums, lengths, ended = np.zeros(envs), np.zeros(envs, int), []
    total = 0
    for r, d in zip(reward, done, strict=True):
        running, finished = count(running, {"agent": jnp.asarray(r)}, jnp.asarray(d))
        window, count_ended = push(window, finished)
        total += int(count_ended)
        for t in range(len(r)):
            sums, lengths = sums + r[t], lengths + 1
            ended += [(float(sums[e]), int(lengths[e])) for e in range(envs) if d[t, e]]
            sums, lengths = np.where(d[t], 0, sums), np.where(d[t], 0, lengths)
    np.testing.assert_allclose(running.reward["agent"], sums)
    np.testing.assert_array_equal(running.length, lengths)
    assert total == len(ended)
    newest = ended[-ops.WINDOW :]
    assert int(window.filled) == len(newest)
    assert sorted(map(float, window.returns["agent"][: len(newest)])) == sorted(r for r, _ in newest)
    if newest:
        np.testing.assert_allclose(ops.mean_return(window), np.mean([r for r, _ in newest]), rtol=1e-5)


def test_the_window_holds_the_newest_hundred_in_order_of_step_and_environment():
    steps, envs = 30, 9
    reward = np.arange(steps * envs, dtype=np.float32).reshape(steps, envs)
    _, finished = count(ops.begin(envs, ["agent"]), {"agent": jnp.asarray(reward)}, jnp.ones((steps, envs), bool))
    window, _ = push(ops.empty_window(["agent"]), finished)
    assert sorted(np.asarray(window.returns["agent"])) == list(range(steps * envs - 100, steps * envs))


def test_before_the_first_end_the_mean_return_is_nan():
    assert np.isnan(ops.mean_return(ops.empty_window(["agent"])))


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


@given(cases(), st.sampled_from([0.5, 0.99]))
@settings(max_examples=60, deadline=None)
def test_counting_without_jax_is_the_same(case, discount):
    reward, done = case
    envs = reward.shape[-1]
    running, counter = ops.begin(envs, ["agent"]), EpisodeCounter(envs, {"agent": 1})
    total = jnp.zeros(envs)
    for r, d in zip(reward, done, strict=True):
        running, finished = count(running, {"agent": jnp.asarray(r)}, jnp.asarray(d))
        total = discounted_sum(total, jnp.asarray(r), jnp.asarray(d), discount)
        returns, lengths = counter.unroll({"agent": r}, d)
        counter.discount("agent", r, d, discount)
        np.testing.assert_allclose(returns["agent"], finished.returns["agent"], rtol=1e-5)
        np.testing.assert_array_equal(lengths, finished.lengths)
        np.testing.assert_allclose(counter.reward["agent"], running.reward["agent"], rtol=1e-5)
        np.testing.assert_array_equal(counter.length, running.length)
        np.testing.assert_allclose(counter.discounted["agent"], total, rtol=1e-4, atol=1e-5)
