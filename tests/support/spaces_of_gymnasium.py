"""A Gymnasium environment of any spaces, which writes down what it is asked to do."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

OBSERVATIONS = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "wide box": spaces.Box(-10, 10, (2, 2), np.float64),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "started": spaces.Discrete(4, start=3),
    "tree": spaces.Dict({
        "z": spaces.Discrete(3, start=-1), "a": spaces.Tuple((spaces.MultiDiscrete([2, 3], start=[5, 0]),
                                                             spaces.Box(-1, 1, (2,), np.float64))),
        "b": spaces.MultiBinary(3),
    }),
    "pair": spaces.Tuple((spaces.Discrete(2, start=7), spaces.Box(-1, 1, (1,), np.float32))),
}  # fmt: skip

ACTIONS = {
    "two": spaces.Discrete(2),
    "five": spaces.Discrete(3, start=5),
    "many": spaces.MultiDiscrete([2, 3, 4]),
    "started": spaces.MultiDiscrete([2, 3], start=[-1, 4]),
    "grid": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 1]]),
    "binary": spaces.MultiBinary(3),
    "box": spaces.Box(-2, 3, (2,), np.float32),
    "wide": spaces.Box(np.array([-1.0, 0.0]), np.array([1.0, 4.0]), dtype=np.float64),
    "whole": spaces.Box(-3, 4, (2,), np.int64),
}

DONE: list[Any] = []
"""The actions that environments of this process were given."""


class Anything(gymnasium.Env):
    """Gives random observations for six steps."""

    def __init__(self, observation: str = "box", action: str = "two"):
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.clock = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        DONE.append(action)
        assert action in self.action_space
        self.clock += 1
        return self.observation_space.sample(), 1.0, self.clock == 6, False, {}
