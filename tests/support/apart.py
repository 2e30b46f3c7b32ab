"""Two groups that share an environment and do not influence each other."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from toys import Reinforce

from runnel.environment import TimeStep
from runnel.types import AgentSpec, Box, Discrete, EnvSpec

SIZES = {"hunter": 2, "runners": 3}
"""By group: the numbers that it observes."""


class Apart:
    """Each group walks on a line of its own and is rewarded for being near 0. Where a step leads is random."""

    spec = EnvSpec(
        "apart",
        {group: AgentSpec(Box((size,), np.dtype(np.float32), -9.0, 9.0), Discrete(2)) for group, size in SIZES.items()},
        10,
    )

    def _observe(self, state):
        places, clock = state
        return {group: jnp.full(size, places[group]).at[-1].set(clock / 10) for group, size in SIZES.items()}

    def reset(self, key):
        keys = dict(zip(SIZES, jax.random.split(key), strict=True))
        state = ({group: jax.random.uniform(keys[group], (), jnp.float32, -1, 1) for group in SIZES}, jnp.int32(0))
        return state, self._observe(state)

    def step(self, state, action, key):
        places, clock = state
        keys = dict(zip(SIZES, jax.random.split(key), strict=True))
        moved = {
            group: places[group] + jnp.where(action[group] == 1, 0.2, -0.2) * jax.random.uniform(keys[group])
            for group in SIZES
        }
        state = ({group: place.astype(jnp.float32) for group, place in moved.items()}, clock + 1)
        reward = {group: -jnp.abs(place) for group, place in state[0].items()}
        return state, TimeStep(self._observe(state), reward, jnp.bool_(False), clock + 1 >= 10)


@dataclass(frozen=True)
class SlowRunners(Reinforce):
    """Updates of the runners take long: their learner is behind where it may be."""

    unroll: int = 2
    learning_rate: float = 0.05
    max_staleness = 4
    work: int = 500_000

    def learn(self, state, trajectory, key):
        state, out = super().learn(state, trajectory, key)
        if trajectory.observation.shape[-1] == SIZES["runners"]:
            out["work"] = jax.lax.fori_loop(0, self.work, lambda i, x: jnp.sin(x + 1e-3 * i), out["loss"])
        return state, out
