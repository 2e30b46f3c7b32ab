"""An environment that fails as asked: what a run then prints is on the page about troubleshooting."""

import time

import gymnasium
import numpy as np


class Failing(gymnasium.Env):
    """Counts to ten; at the seventh step of an episode it does what `fails` says."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fails: str = "never"):
        self.fails, self.steps = fails, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        observation = np.full(1, self.steps / 10, np.float32)
        if self.steps == 7:
            if self.fails == "hangs":
                time.sleep(3600)
            if self.fails == "nan":
                observation[:] = np.nan
            if self.fails == "raises":
                raise RuntimeError("the simulator has lost its licence")
        return observation, 1.0, self.steps == 10, False, {}
