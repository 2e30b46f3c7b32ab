"""A custom Gymnasium environment: a function that makes a new one at each call."""

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformReward


def windy_pendulum(wind: float = 0.0, render_mode: str | None = None) -> gymnasium.Env:
    """Pendulum-v1 with small rewards, in a wind from one side."""

    class Windy(gymnasium.ActionWrapper):
        def action(self, action):
            return np.clip(action + wind, self.action_space.low, self.action_space.high)

    environment = gymnasium.make("Pendulum-v1", render_mode=render_mode)
    return TransformReward(Windy(environment), lambda reward: reward / 10)
