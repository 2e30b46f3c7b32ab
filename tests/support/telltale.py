"""An environment whose observations can be told among other bytes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

MARK = (1.2345678, -8.7654321, 3.1415927, 2.7182818)


class Telltale(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (len(MARK),), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.asarray(MARK, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return np.asarray(MARK, np.float32), float(action), self.steps == 20, False, {}


def telltale() -> gymnasium.Env:
    return Telltale()
