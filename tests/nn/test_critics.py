"""Critics: each has parameters of its own, and values an observation together with an action."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.nn.critics import Critics, joint_network
from runnel.types import Box

SPACE, SIZE = Box((3,)), 2


class Own(nn.Module):
    """A user's network."""

    @nn.compact
    def __call__(self, observation):
        return nn.tanh(nn.Dense(4)(observation))


@pytest.mark.parametrize("network", [None, Own()], ids=["hidden", "own network"])
def test_critics_have_a_copy_of_the_network_each_and_see_observation_and_action(network):
    joint = joint_network(network, SPACE, SIZE, (8,), "relu")
    observation, action = jnp.array([0.5, -1.0, 2.0]), jnp.array([0.3, -0.6])
    critics = Critics.create(jax.random.key(0), joint, SIZE, observation, count=2)
    for leaf in jax.tree.leaves((critics.torso, critics.head)):
        first, second = np.asarray(leaf)
        assert not first.any() or (first != second).any()  # biases begin at 0
    values = critics(observation, action)
    assert values.shape == (2,)
    assert values[0] != values[1]
    assert (critics(observation + 1, action) != values).all()
    assert (critics(observation, action + 1) != values).all()
