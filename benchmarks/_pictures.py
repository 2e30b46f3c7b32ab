"""A JAX environment of pictures, as large as Atari's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.environment import TimeStep
from runnel.types import Array, Box, Discrete, EnvSpec

NAME = "benchmarks._pictures:Pictures"


class Pictures:
    """Noise; action 0 is rewarded, and an episode ends after 100 steps."""

    spec = EnvSpec.single("pictures", Box((84, 84, 4), np.dtype(np.uint8), 0, 255), Discrete(4), 100)

    def _observe(self, key: Array) -> Array:
        return jax.random.bits(key, (84, 84, 4), jnp.uint8)

    def reset(self, key: Array) -> tuple[Any, Array]:
        return jnp.int32(0), self._observe(key)

    def step(self, clock: Any, action: Array, key: Array) -> tuple[Any, TimeStep]:
        reward = jnp.where(action == 0, 1.0, 0.0)
        return clock + 1, TimeStep(self._observe(key), reward, jnp.bool_(False), clock + 1 >= 100)
