"""Returns against slow references written step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.ops import returns
from runnel.types import Trajectory

DISCOUNT, LAMBDA = 0.9, 0.8


def trajectory_of(terminated, truncated, observation, last_observation, reward=None):
    """A trajectory of scalar observations; what no test looks at is empty."""
    reward = np.zeros(terminated.shape, np.float32) if reward is None else reward
    return Trajectory(
        observation, (), jnp.asarray(reward), jnp.asarray(terminated), jnp.asarray(truncated), last_observation,
        (), (), (), (), (), (),
    )  # fmt: skip


def random_unroll(seed, size, ends):
    """An unroll whose episodes end often, half of them by truncation."""
    steps, columns = size
    rng = np.random.default_rng(seed)
    ended = rng.random((steps, columns)) < ends
    truncated = ended & (rng.random((steps, columns)) < 0.5)
    observation, last_observation = rng.normal(size=(2, steps, columns)).astype(np.float32)
    reward = rng.normal(size=(steps, columns)).astype(np.float32)
    return trajectory_of(ended & ~truncated, truncated, observation, last_observation, reward)


def value(observation):
    """A value function that anybody can compute."""
    return 3.0 * observation + 1.0


@jax.jit
def next_values(trajectory):
    return returns.next_values(value, value(trajectory.observation), trajectory)


@jax.jit
def advantages(trajectory):
    v_tm1, v_t = value(trajectory.observation), next_values(trajectory)
    r_t, terminated, truncated = trajectory.reward, trajectory.terminated, trajectory.truncated
    return returns.advantages(r_t, terminated, truncated, v_tm1, v_t, DISCOUNT, LAMBDA)


def slow_advantages(trajectory, column):
    """GAE of one column, by walking forward from every step to the end of its episode or of the unroll."""
    observation, last = trajectory.observation[:, column], trajectory.last_observation[:, column]
    steps = len(observation)

    def v_next(t):
        if trajectory.terminated[t, column]:
            return 0.0
        if trajectory.truncated[t, column] or t == steps - 1:
            return value(last[t])
        return value(observation[t + 1])

    trajectory = jax.tree.map(np.asarray, trajectory)
    result = []
    for start in range(steps):
        total, weight = 0.0, 1.0
        for t in range(start, steps):
            total += weight * (trajectory.reward[t, column] + DISCOUNT * v_next(t) - value(observation[t]))
            weight *= DISCOUNT * LAMBDA
            if trajectory.terminated[t, column] or trajectory.truncated[t, column]:
                break
        result.append(total)
    return result


unrolls = st.builds(
    random_unroll,
    st.integers(0, 2**32 - 1),
    st.sampled_from([(1, 1), (7, 2)]),
    st.sampled_from([0.0, 0.2, 0.7, 1.0]),
)


@settings(deadline=None, max_examples=40)
@given(unrolls)
def test_advantages_are_right_at_truncations_and_terminations(trajectory):
    v_tm1 = value(trajectory.observation)
    found = advantages(trajectory)
    wanted = np.stack([slow_advantages(trajectory, b) for b in range(v_tm1.shape[1])], 1)
    np.testing.assert_allclose(found.advantage, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.target, found.advantage + v_tm1, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=20)
@given(unrolls)
def test_next_values_are_the_values_of_next_observations(trajectory):
    v_t = next_values(trajectory)
    going = ~np.asarray(trajectory.terminated)
    np.testing.assert_allclose(v_t[going], value(returns.next_observation(trajectory))[going], rtol=1e-5, atol=1e-6)


def test_next_values_take_the_memory_after_the_step():
    no, yes = np.zeros((3, 1), bool), np.array([[False], [True], [False]])
    trajectory = trajectory_of(no, yes, np.zeros((3, 1), np.float32), np.full((3, 1), 10.0, np.float32))
    memory = jnp.array([[1.0], [2.0], [3.0]])
    v_t = returns.next_values(lambda o, m: o + m, jnp.full((3, 1), -1.0), trajectory, memory)
    np.testing.assert_array_equal(v_t[:, 0], [-1.0, 12.0, 13.0])


def test_next_values_evaluate_no_more_rounds_than_a_column_needs():
    rounds = []
    truncated = np.zeros((8, 2), bool)
    truncated[2, 0] = True
    trajectory = trajectory_of(np.zeros((8, 2), bool), truncated, *np.zeros((2, 8, 2), np.float32))

    def counted(observation):
        jax.debug.callback(lambda: rounds.append(1))
        return observation

    returns.next_values(counted, jnp.zeros((8, 2)), trajectory).block_until_ready()
    jax.effects_barrier()
    assert len(rounds) == 2  # all columns at once, for the truncated step and for the last


def test_next_observation_of_trees_of_any_rank():
    truncated = np.array([[True, False], [False, False], [False, True]])
    observation = {"a": np.arange(6.0).reshape(3, 2), "b": np.arange(24).reshape(3, 2, 2, 2)}
    last = jax.tree.map(lambda x: x + 100, observation)
    found = returns.next_observation(trajectory_of(np.zeros((3, 2), bool), truncated, observation, last))
    np.testing.assert_array_equal(found["a"], [[100, 3], [4, 5], [104, 105]])
    np.testing.assert_array_equal(found["b"][0, 0], last["b"][0, 0])
    np.testing.assert_array_equal(found["b"][0, 1], observation["b"][1, 1])


@pytest.mark.parametrize("steps", [1, 5, 32, 33])
def test_parallel_lambda_returns_equal_those_of_rlax(steps):
    r_t, discount_t, v_t, lambda_t = jax.random.uniform(jax.random.key(0), (4, steps, 3))
    wanted = jax.vmap(rlax.lambda_returns, (1, 1, 1, 1), 1)(r_t, discount_t, v_t, lambda_t)
    np.testing.assert_allclose(returns.parallel_lambda_returns(r_t, discount_t, v_t, lambda_t), wanted, rtol=1e-5)


def test_discounted_sums_go_on_from_the_last_unroll_and_restart_with_an_episode():
    reward = jnp.array([[1.0], [1.0], [1.0]])
    ended = jnp.array([[False], [True], [False]])
    found = returns.discounted_sums(reward, ended, jnp.array([10.0]), 0.5)
    np.testing.assert_allclose(found[:, 0], [6.0, 4.0, 1.0])
