"""A stage of one's own between acting and learning."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from reinforce import Reinforce


@dataclass(frozen=True)
class NoisyRewards(Reinforce):
    """Reinforce that is told its rewards with noise, and only what lies within one of zero."""

    noise: float = 0.1

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=self.unroll)
        flow.learn(self.learn, flow.map(self.relabel, trajectory))

    def relabel(self, trajectory, key):  # a stage that names `key` or `params` is given them
        noise = self.noise * jax.random.normal(key, trajectory.reward.shape, trajectory.reward.dtype)
        return trajectory._replace(reward=jnp.clip(trajectory.reward + noise, -1, 1))
