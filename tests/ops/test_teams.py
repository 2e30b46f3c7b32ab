"""Columns of several agents taken together."""

import jax.numpy as jnp
import numpy as np

from runnel.observations import parted, view
from runnel.ops.teams import taking_part, together
from runnel.types import Trajectory


def trajectory(steps=2, envs=3, agents=2):
    numbers = jnp.arange(steps * envs * agents, dtype=jnp.float32).reshape(steps, envs * agents)
    seen = jnp.stack([numbers, -numbers], -1)
    state = jnp.repeat(jnp.arange(steps * envs, dtype=jnp.float32).reshape(steps, envs, 1), agents, 1)
    ended = jnp.repeat(jnp.arange(envs) == 1, agents) & jnp.ones((steps, 1), bool)
    observation = parted(seen, active=numbers >= 0, state=state)
    return Trajectory(observation, numbers, numbers, ended, ~ended, observation, ended, (), (), *[numbers[0]] * 3)


def test_a_team_is_a_column_paid_the_mean():
    one = together(trajectory(), 2)
    np.testing.assert_array_equal(one.action, np.arange(12).reshape(2, 3, 2))
    np.testing.assert_array_equal(one.reward, [[0.5, 2.5, 4.5], [6.5, 8.5, 10.5]])
    np.testing.assert_array_equal(one.terminated, [[False, True, False]] * 2)
    np.testing.assert_array_equal(one.truncated, [[True, False, True]] * 2)
    seen, _, active, state = view(one.observation)
    assert (seen.shape, active.shape) == ((2, 3, 2, 2), (2, 3, 2))
    np.testing.assert_array_equal(seen[..., 0], one.action)
    np.testing.assert_array_equal(state[..., 0], [[0, 1, 2], [3, 4, 5]])  # once for all agents


def test_agents_without_a_turn_do_not_count_unless_none_has_one():
    active = jnp.array([[True, False], [False, False], [True, True]])
    np.testing.assert_array_equal(taking_part(active), [[1, 0], [1, 1], [1, 1]])
    assert taking_part(None) == 1
