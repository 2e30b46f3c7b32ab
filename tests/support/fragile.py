"""An algorithm whose loss is not a number now and then."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from toys import Reinforce


@dataclass(frozen=True)
class Fragile(Reinforce):
    """Its loss is no number in update number `at`, counted from 0; or only where it then draws an unlucky number."""

    at: int = 3
    unlucky: int | None = None

    def learn(self, state, trajectory, key):
        new, out = super().learn(state, trajectory, key)
        bad = trajectory.version[0] == self.at
        if self.unlucky is not None:
            bad &= jax.random.key_data(key)[0] == jnp.uint32(self.unlucky)
        return new, {"loss": out["loss"] + jnp.where(bad, jnp.nan, 0.0)}
