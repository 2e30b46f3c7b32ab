"""A team of two with one reward: the game that separates QMIX from VDN (Rashid et al., 2018)."""

import jax
import jax.numpy as jnp
import numpy as np

from runnel import AgentSpec, Box, Discrete, EnvSpec, TimeStep
from runnel.observations import parted

FIRST, SAFE, RISKY = 0, 1, 2  # the states
PAYS = np.array([[[0, 0], [0, 0]], [[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)  # [state, action, action]


class TwoStep:
    """One agent chooses the game that both play next; then they play it.

    One game pays 7 whatever they do. The other pays 8 if both take action 1, and 0 or 1 otherwise.
    """

    see = Box((3,), np.dtype(np.float32), 0.0, 1.0)  # the state, one-hot
    spec = EnvSpec("two_step", {"team": AgentSpec(parted(see, state=see), Discrete(2), agents=2)}, max_episode_steps=2)

    def reset(self, key):
        return jnp.int32(FIRST), self._observe(jnp.int32(FIRST))

    def step(self, state, action, key):  # action: [2]
        reward = jnp.asarray(PAYS)[state, action[0], action[1]]
        after = jnp.where(action[0] == 0, SAFE, RISKY).astype(jnp.int32)
        observation = self._observe(after)
        return after, TimeStep(observation, jnp.stack([reward, reward]), state != FIRST, jnp.bool_(False))

    def _observe(self, state):
        here = jax.nn.one_hot(state, 3, dtype=jnp.float32)
        return parted(jnp.stack([here, here]), state=jnp.stack([here, here]))
