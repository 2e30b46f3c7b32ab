"""Environments that take their whole process with them."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv


class Deadly(CartPoleEnv):
    """CartPole that in one episode, once it is `at` steps old, exits, crashes or hangs its process.

    The episode is told by its seed, the first that takes the file `mark`; `times`: how often it does it, for the
    processes that come after remember by the file.
    """

    def __init__(self, how: str, mark: str, at: int = 5, times: int = 1):
        super().__init__()
        self.how, self.mark, self.at, self.times = how, Path(mark), at, times
        self.seed, self.steps = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.seed, self.steps = -1 if seed is None else seed, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == self.at and self._mine():
            self._die()
        return super().step(action)

    def _mine(self) -> bool:
        """Whether this is the episode, and has not done it often enough."""
        try:
            with self.mark.open("x") as file:  # of all who come here first, one
                file.write(f"{self.seed} ")
            return True
        except FileExistsError:
            done = self.mark.read_text().split()
        if done[:1] != [str(self.seed)] or len(done) >= self.times:
            return False
        with self.mark.open("a") as file:
            file.write(f"{self.seed} ")
        return True

    def _die(self) -> None:
        if self.how == "exit":
            os._exit(3)
        elif self.how == "crash":
            ctypes.string_at(0)
        else:
            time.sleep(3600)


def deadly(how: str, mark: str, at: int = 5, times: int = 1) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Deadly(how, mark, at, times), 200)


class Sometimes(CartPoleEnv):
    """CartPole that exits its process in some episodes, whenever they are played, at their third step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self.doomed, self.steps = seed is not None and seed % 50 == 7, 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.doomed and self.steps == 3:
            os._exit(3)
        return super().step(action)


def sometimes() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Sometimes(), 200)


class Always(CartPoleEnv):
    """Exits its process in every episode, at its second step."""

    def step(self, action: Any) -> Any:
        os._exit(3)


def always() -> gymnasium.Env:
    return Always()
