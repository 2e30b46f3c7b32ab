"""A cycle of three states whose values are known, cut after four steps; as a JAX and as a Gymnasium environment.

    0 -> 1 -> 2 -> 0 -> ..., reward 1 for leaving state 2, whatever the action.

Nothing ever terminates: cutting is of the training, not of the task. An episode is cut on state 1 and the next
begins on state 0, so a value that treats the cut as an end, or bootstraps from the next episode, is wrong.
"""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.types import Box, Discrete, EnvSpec

LIMIT = 4
DISCOUNT = 0.9
VALUES = np.array([DISCOUNT**2, DISCOUNT, 1.0]) / (1 - DISCOUNT**3)  # of states 0, 1 and 2


class Cycle:
    """As pure functions."""

    spec = EnvSpec.single("cycle", Box((3,), np.dtype(np.float32), 0.0, 1.0), Discrete(2), LIMIT)

    def _see(self, place):
        return jax.nn.one_hot(place, 3, dtype=jnp.float32)

    def reset(self, key):
        return (jnp.int32(0), jnp.int32(0)), self._see(0)

    def step(self, state, action, key):
        place, clock = state
        after = ((place + 1) % 3, clock + 1)
        reward = jnp.where(place == 2, 1.0, 0.0)
        return after, TimeStep(self._see(after[0]), reward, jnp.bool_(False), clock + 1 >= LIMIT)


class CycleEnv(gymnasium.Env):
    """The same as a Gymnasium environment."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.clock = 0, 0
        return np.eye(3, dtype=np.float32)[0], {}

    def step(self, action):
        reward = float(self.place == 2)
        self.place, self.clock = (self.place + 1) % 3, self.clock + 1
        return np.eye(3, dtype=np.float32)[self.place], reward, False, self.clock >= LIMIT, {}
