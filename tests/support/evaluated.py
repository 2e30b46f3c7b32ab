"""An environment whose settings in evaluation may differ from those in training: slow, fragile, or alike."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    """Walk right to the end, which pays 1; slips now and then, and ends after 12 steps at the latest."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, slow_s: float = 0.0, raises: str = "", kills: str = "", draws_globally: bool = False, bonus: float = 0.0,
        wide: bool = False, breaks: str = "", hangs: str = "",
    ):  # fmt: skip
        """`slow_s`: how long each step takes. `raises`: `made`, `reset` or `stepped`; `now and then` in every second
        episode or so, some in `reset`, some in `step`. `kills`: a file; the process that can remove it is killed.
        `breaks`: a file; as long as it is there, `reset` raises. `hangs`: a file; the process that can remove it
        stands still, not at its first step. `draws_globally`: its luck is drawn from NumPy's global generator."""
        if raises == "made":
            raise RuntimeError("no such place")
        self.slow_s, self.raises, self.kills, self.bonus, self.breaks = slow_s, raises, kills, bonus, breaks
        self.draws_globally, self.hangs = draws_globally, hangs
        if wide:
            self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if self.raises == "reset" or (self.breaks and Path(self.breaks).exists()):
            raise RuntimeError("broken ground")
        self.place, self.clock = int(self.np_random.integers(0, 4)), 0
        self.doomed = self.raises == "now and then" and self.place == 2
        if self.raises == "now and then" and self.place == 3:
            raise RuntimeError("broken ground")
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        if self.raises == "stepped" or (self.doomed and self.clock == 2):
            raise RuntimeError("broken ground")
        if self.kills and _removed(self.kills):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.hangs and self.clock == 2 and _removed(self.hangs):
            threading.Event().wait()
        if self.slow_s:
            time.sleep(self.slow_s)
        luck = np.random.random() if self.draws_globally else self.np_random.random()
        self.place = int(np.clip(self.place + (1 if action == 1 and luck > 0.2 else -1), 0, 6))
        self.clock += 1
        there = self.place == 6
        return self._seen(), float(there) - 0.01 * self.clock + self.bonus, there, self.clock >= 12, {}

    def _seen(self) -> np.ndarray:
        return np.array([self.place / 6, self.clock / 12], np.float32)


def _removed(file: str) -> bool:
    """Whether this process was the one that could remove it."""
    try:
        Path(file).unlink()
    except FileNotFoundError:
        return False
    return True
