"""CartPole that does something bad at a moment one chooses: the environment of the fault scenarios.

What it does is told by environment variables, since they reach the workers of every library alike:

    FAULT_DIR    a directory; without it nothing bad ever happens
    FAULT_KIND   raise, nan, nan_reward, shape, hang, exit or segfault
    FAULT_WHEN   once: the first environment to step after FAULT_DIR/armed appears, and no other
                 always: every episode from then on that begins far to the right (1 in 50), at its fifth step

It needs gymnasium alone, of any version from 0.29 on.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

NAME = "benchmarks._fault_env:Faulty"

EPISODE_STEPS = 500
ALIVE_EVERY_STEPS = 32
FAR_RIGHT = 0.048
"""Episodes begin between -0.05 and 0.05."""


class EnvironmentBroke(RuntimeError):
    """What `raise` raises."""


class Faulty(gymnasium.Env):
    """CartPole-v1, until told otherwise."""

    def __init__(self, **_: Any):
        self._cart = CartPoleEnv()
        self.observation_space = self._cart.observation_space
        self.action_space = self._cart.action_space
        self._directory = Path(os.environ["FAULT_DIR"]) if "FAULT_DIR" in os.environ else None
        self._kind = os.environ.get("FAULT_KIND", "")
        self._always = os.environ.get("FAULT_WHEN", "once") == "always"
        self._episode_steps = self._steps = 0
        self._began_far_right = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        observation, info = self._cart.reset(seed=seed)
        self._episode_steps = 0
        self._began_far_right = bool(observation[0] > FAR_RIGHT)
        return observation, info

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._episode_steps += 1
        observation, reward, terminated, _, info = self._cart.step(int(action))
        if self._directory is not None:
            self._say_alive(self._directory)
            if self._due(self._directory):
                observation, reward = _misbehave(self._kind, observation, reward)
        return observation, float(reward), terminated, self._episode_steps >= EPISODE_STEPS, info

    def _say_alive(self, directory: Path) -> None:
        """Players are known by the file of their process's name, and by when it was touched last."""
        self._steps += 1
        if self._steps % ALIVE_EVERY_STEPS == 0:
            (directory / "players").mkdir(exist_ok=True)
            (directory / "players" / str(os.getpid())).touch()

    def _due(self, directory: Path) -> bool:
        if not self._kind or not os.path.exists(directory / "armed"):
            return False
        if self._always:
            if not (self._began_far_right and self._episode_steps == 5):
                return False
            mode = os.O_APPEND
        else:
            mode = os.O_EXCL
        try:
            fired = os.open(directory / "fired", os.O_WRONLY | os.O_CREAT | mode, 0o644)
        except FileExistsError:
            return False
        os.write(fired, f"{time.time()} {os.getpid()}\n".encode())
        os.close(fired)
        return True


def _misbehave(kind: str, observation: np.ndarray, reward: Any) -> tuple[np.ndarray, Any]:
    match kind:
        case "raise":
            raise EnvironmentBroke("the environment broke, as it was told to")
        case "nan":
            return np.full_like(observation, math.nan), reward
        case "nan_reward":
            return observation, math.nan
        case "shape":
            return np.zeros(observation.shape[0] + 1, observation.dtype), reward
        case "hang":
            time.sleep(3600)
        case "exit":
            os._exit(1)
        case "segfault":
            ctypes.string_at(0)
    return observation, reward
