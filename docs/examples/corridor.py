"""A JAX environment: walk to the right end of a corridor within 20 steps."""

import jax
import jax.numpy as jnp
import numpy as np

from runnel import Box, Discrete, EnvSpec, TimeStep


class Corridor:
    """One environment, as pure functions; runnel batches it and begins the next episode."""

    limit = 20  # steps

    def __init__(self, length: int = 8):
        self.length = length
        observation = Box((2,), np.dtype(np.float32), 0.0, 1.0)  # the place, and the remaining time
        self.spec = EnvSpec.single("corridor", observation, Discrete(2), max_episode_steps=self.limit)

    def reset(self, key):
        place, clock = jax.random.randint(key, (), 0, self.length // 2), jnp.int32(0)
        return (place, clock), self._observe(place, clock)

    def step(self, state, action, key):
        place, clock = state
        slips = jax.random.bernoulli(key, 0.1)
        place = jnp.clip(place + jnp.where((action == 1) & ~slips, 1, -1), 0, self.length)
        clock = clock + 1
        terminated = place == self.length  # no value after it
        truncated = clock >= self.limit  # cut off: the last observation has a value
        reward = jnp.where(terminated, 1.0, -0.01)
        metrics = {"is_success": terminated}
        return (place, clock), TimeStep(self._observe(place, clock), reward, terminated, truncated, metrics)

    def render(self, state):
        """A picture, for `runnel eval --video`: uint8 [height, width, 3]."""
        picture = np.full((20, 20 * (self.length + 1), 3), 255, np.uint8)
        picture[:, 20 * int(state[0]) : 20 * int(state[0]) + 20] = (0, 114, 178)
        return picture

    def _observe(self, place, clock):
        return jnp.stack([place / self.length, 1 - clock / self.limit]).astype(jnp.float32)
