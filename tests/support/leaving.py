"""Environments that try to end the process they are in, as if all were well."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


def leave(how: str) -> None:
    if how == "exit":
        sys.exit(0)
    elif how == "_exit":
        os._exit(0)
    elif how == "interrupt":
        raise KeyboardInterrupt
    elif how == "thread":
        thread = threading.Thread(target=os._exit, args=(0,))
        thread.start()
        thread.join()


class Leaving(CartPoleEnv):
    """CartPole that leaves at every step."""

    def __init__(self, how: str, where: str = "step"):
        super().__init__()
        self.how = how
        if where == "make":
            leave(how)

    def step(self, action: Any) -> Any:
        leave(self.how)
        return super().step(action)


def leaving(how: str, where: str = "step") -> gymnasium.Env:
    return Leaving(how, where)
