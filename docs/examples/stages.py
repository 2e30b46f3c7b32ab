"""A custom stage between acting and learning."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from reinforce import Reinforce


@dataclass(frozen=True)
class NoisyRewards(Reinforce):
    """Reinforce on rewards with noise, clipped to [-1, 1]."""

    noise: float = 0.1

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=self.unroll)
        flow.learn(self.learn, flow.map(self.relabel, trajectory))

    def relabel(self, trajectory, key):  # a stage that names `key` or `params` receives them
        noise = self.noise * jax.random.normal(key, trajectory.reward.shape, trajectory.reward.dtype)
        return trajectory._replace(reward=jnp.clip(trajectory.reward + noise, -1, 1))
