"""CartPole with its velocities hidden: solved only by remembering. `hidden:cartpole` names it."""

import gymnasium
import numpy as np


class PositionsOnly(gymnasium.ObservationWrapper):
    """Shows the cart's position and the pole's angle, and not how fast they change."""

    shown = np.array([0, 2])

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[self.shown], space.high[self.shown], dtype=space.dtype)

    def observation(self, observation):
        return observation[self.shown]


def cartpole(render_mode: str | None = None) -> gymnasium.Env:
    return PositionsOnly(gymnasium.make("CartPole-v1", render_mode=render_mode))
