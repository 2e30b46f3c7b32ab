"""Environments whose observations are parted: with illegal actions, or steps in which an agent has no turn."""

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.observations import parted
from runnel.types import AgentSpec, Box, Discrete, EnvSpec, MultiDiscrete

LIMIT = 8
BRIBE = 100.0
"""What an illegal action would pay."""


def flags(*shape):
    return Box(shape, np.dtype(np.bool_), 0, 1)


class Forbidden:
    """One of four actions is illegal in each step, and pays; of the legal ones, the lowest is right and pays 1."""

    spec = EnvSpec.single("forbidden", parted(Box((4,)), action_mask=flags(4)), Discrete(4), LIMIT)

    def _see(self, state):
        illegal, _ = state
        return parted(jax.nn.one_hot(illegal, 4, dtype=jnp.float32), action_mask=jnp.arange(4) != illegal)

    def _draw(self, key):
        return jax.random.randint(key, (), 0, 4, jnp.int32)

    def reset(self, key):
        state = (self._draw(key), jnp.int32(0))
        return state, self._see(state)

    def step(self, state, action, key):
        illegal, clock = state
        right = jnp.where(illegal == 0, 1, 0)
        reward = jnp.where(action == illegal, BRIBE, action == right).astype(jnp.float32)
        state = (self._draw(key), clock + 1)
        return state, TimeStep(self._see(state), reward, jnp.bool_(False), clock + 1 >= LIMIT)


class ForbiddenPairs(Forbidden):
    """The same of two at once: of each, one action in four is illegal."""

    spec = EnvSpec.single("pairs", parted(Box((8,)), action_mask=flags(8)), MultiDiscrete((4, 4)), LIMIT)

    def _see(self, state):
        illegal, _ = state
        legal = (jnp.arange(4) != illegal[:, None]).ravel()
        return parted(1.0 - legal.astype(jnp.float32), action_mask=legal)

    def _draw(self, key):
        return jax.random.randint(key, (2,), 0, 4, jnp.int32)

    def step(self, state, action, key):
        state, step = super().step(state, action, key)
        return state, step._replace(reward=step.reward.mean())


class Turns:
    """Two agents take turns to name the number they see; who has no turn sees nothing, and is paid for naming 1."""

    spec = EnvSpec("turns", {"players": AgentSpec(parted(Box((2,)), active=flags()), Discrete(2), agents=2)}, LIMIT)

    def _see(self, state):
        number, clock = state
        active = jnp.arange(2) == clock % 2
        seen = jnp.where(active[:, None], jax.nn.one_hot(number, 2, dtype=jnp.float32), 0.0)
        return parted(seen, active=active)

    def reset(self, key):
        state = (jax.random.randint(key, (), 0, 2, jnp.int32), jnp.int32(0))
        return state, self._see(state)

    def step(self, state, action, key):
        number, clock = state
        active = jnp.arange(2) == clock % 2
        reward = jnp.where(active, action == number, 10.0 * action).astype(jnp.float32)
        state = (jax.random.randint(key, (), 0, 2, jnp.int32), clock + 1)
        return state, TimeStep(self._see(state), reward, jnp.bool_(False), clock + 1 >= LIMIT)
