"""A bandit with two states and three actions, after which nothing follows."""

import jax
import jax.numpy as jnp
import numpy as np

from runnel.ops.n_step import Transition
from runnel.types import AgentSpec, Box, Discrete

SPEC = AgentSpec(Box((2,)), Discrete(3))


def transitions(n=32, seed=0):
    """Action 1 pays in the first state, action 2 in the second."""
    rng = np.random.default_rng(seed)
    state, action = rng.integers(0, 2, n), rng.integers(0, 3, n)
    s_tm1 = np.eye(2, dtype=np.float32)[state]
    reward = (action == state + 1).astype(np.float32)
    zeros = np.zeros(n, np.float32)
    return jax.tree.map(jnp.asarray, Transition(s_tm1, action.astype(np.int32), reward, zeros, s_tm1))
