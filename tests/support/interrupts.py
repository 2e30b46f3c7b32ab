"""Stopping a run in its middle, from inside it."""

import signal
from typing import Any


class StopAt:
    """A sink that interrupts the run, as Ctrl-C does, at its first record of so many steps or more."""

    def __init__(self, env_steps: int):
        self.env_steps, self.stopped = env_steps, False

    def write(self, record: dict[str, Any]) -> None:
        if not self.stopped and record["env_steps"] >= self.env_steps:
            self.stopped = True
            signal.raise_signal(signal.SIGINT)

    def close(self) -> None: ...
