"""An environment that hangs from the moment a file is there, whose name stands in RUNNEL_TEST_HANG."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv


def hang(how: str) -> None:
    if how == "sleep":
        time.sleep(3600)
    while how == "spin":
        pass
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # no handler runs until it is over


class Hanging(CartPoleEnv):
    def __init__(self, how: str, close_too: bool = False):
        super().__init__()
        self.how, self.close_too, self.hangs = how, close_too, False

    def step(self, action: Any) -> Any:
        named = os.environ.get("RUNNEL_TEST_HANG")
        if named and Path(named).exists():
            self.hangs = True
            Path(named).with_suffix(".hangs").touch()
            hang(self.how)
        return super().step(action)

    def close(self) -> None:
        if self.close_too and self.hangs:
            hang(self.how)
