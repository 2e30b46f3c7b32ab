"""n-step transitions against a reference that walks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.observations import parted
from runnel.ops.n_step import n_step_transitions
from runnel.types import Trajectory

DISCOUNT = 0.9


def unroll(seed, steps, columns, ends):
    rng = np.random.default_rng(seed)
    ended = rng.random((steps, columns)) < ends
    truncated = ended & (rng.random((steps, columns)) < 0.5)
    observation, last_observation = rng.normal(size=(2, steps, columns, 2)).astype(np.float32)
    return Trajectory(
        observation, rng.integers(0, 3, (steps, columns)), rng.normal(size=(steps, columns)).astype(np.float32),
        ended & ~truncated, truncated, last_observation, (), (), (), (), (), (),
    )  # fmt: skip


def walk(trajectory, t, b, n):
    """Where the transition that begins at step t of column b leads."""
    steps = trajectory.reward.shape[0]
    total, weight = 0.0, 1.0
    for k in range(t, min(t + n, steps)):
        total += weight * trajectory.reward[k, b]
        weight *= DISCOUNT
        if trajectory.terminated[k, b]:
            return total, 0.0, None
        if trajectory.truncated[k, b]:
            break
    if trajectory.truncated[k, b] or k == steps - 1:
        return total, weight, trajectory.last_observation[k, b]
    return total, weight, trajectory.observation[k + 1, b]


@functools.partial(jax.jit, static_argnums=1)
def transitions(trajectory, n):
    return n_step_transitions(trajectory, n, DISCOUNT)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([(1, 2, 3), (6, 2, 1), (6, 2, 3), (3, 2, 5)]),
)
def test_transitions_end_with_the_episode_the_unroll_or_n(seed, ends, size):
    steps, columns, n = size
    trajectory = unroll(seed, steps, columns, ends)
    found = jax.tree.map(np.asarray, transitions(jax.tree.map(jnp.asarray, trajectory), n))
    assert found.r_t.shape == (steps * columns,)
    for t in range(steps):
        for b in range(columns):
            i = t * columns + b
            reward, discount, s_t = walk(trajectory, t, b, n)
            np.testing.assert_array_equal(found.s_tm1[i], trajectory.observation[t, b])
            assert found.a_tm1[i] == trajectory.action[t, b]
            np.testing.assert_allclose(found.r_t[i], reward, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found.discount_t[i], discount, rtol=1e-5)
            if s_t is not None:
                np.testing.assert_array_equal(found.s_t[i], s_t)


def test_steps_without_a_turn_do_not_count():
    """If two agents take turns, the transition of a choice ends at the agent's next turn, or with the unroll."""
    trajectory = unroll(0, 6, 2, ends=0.0)
    active = np.array([[True, False], [False, True]] * 3)
    told = [parted(seen, active=active) for seen in (trajectory.observation, trajectory.last_observation)]
    turns = trajectory._replace(observation=told[0], last_observation=told[1])
    found, reward = n_step_transitions(turns, 1, DISCOUNT), trajectory.reward
    for t, b in ((0, 0), (2, 0), (1, 1), (3, 1)):
        row = 2 * t + b
        np.testing.assert_allclose(found.r_t[row], reward[t, b] + DISCOUNT * reward[t + 1, b], rtol=1e-5)
        np.testing.assert_allclose(found.discount_t[row], DISCOUNT**2, rtol=1e-5)
        np.testing.assert_array_equal(found.s_t["observation"][row], trajectory.observation[t + 2, b])
    np.testing.assert_allclose(found.discount_t[2 * 5 + 1], DISCOUNT, rtol=1e-5)  # the unroll ends with this turn
    two = n_step_transitions(turns, 2, DISCOUNT)
    np.testing.assert_array_equal(two.s_t["observation"][0], trajectory.observation[4, 0])
