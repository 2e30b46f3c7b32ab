"""An environment whose step costs what one asks for: by work, not by the clock, so that a busy machine shows."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

NAME = "benchmarks._costly:Costly"

_SOME = 10_000


class Costly(gymnasium.Env):
    """Adds `work` numbers up in every step; otherwise nothing happens for `length` steps.

    With `noise`, observations are such that nothing can compress them.
    """

    def __init__(self, work: int = 1000, size: int = 8, length: int = 500, noise: bool = False):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (size,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._work, self._size, self._length = range(work), size, length
        self._noise = noise
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._step = 0
        return np.zeros(self._size, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        total = 0.0
        for number in self._work:
            total += number
        self._step += 1
        observation = np.full(self._size, self._step / self._length, np.float32)
        if self._noise:
            observation = self.np_random.random(self._size, np.float32)
        return observation, float(action == 0), self._step >= self._length, False, {}


def work_for(cost_us: float) -> int:
    """How much `work` makes a step cost so many microseconds here, when nothing disturbs it."""

    def step_us(work: int, steps: int) -> float:
        environment = Costly(work, length=1 << 30)
        environment.reset(seed=0)
        started = time.perf_counter()
        for _ in range(steps):
            environment.step(0)
        return (time.perf_counter() - started) / steps * 1e6

    empty = min(step_us(0, 500) for _ in range(20))
    full = min(step_us(_SOME, 20) for _ in range(50))
    return max(0, round((cost_us - empty) * _SOME / (full - empty)))
