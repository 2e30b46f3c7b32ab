"""Functions of the user's that a run calls: after updates, evaluations and checkpoints.

    def on_evaluation(progress):
        print(progress.env_steps, progress.evaluation["mean_return"])
        return progress.evaluation["mean_return"] < 475      # False ends the run

    runnel.train("ppo", "CartPole-v1", eval_every=10_000, on_evaluation=on_evaluation)

They run in the user's own process, between two looks at the workers, which train on meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runnel.errors import StateLost, UserError, a
from runnel.policy import Policies, Policy


@dataclass(frozen=True)
class Progress:
    """How far a run has come. It is a copy: changing it changes nothing."""

    run_dir: Path
    env_steps: int
    updates: int
    episodes: int
    mean_return: float | None
    """Of the newest 100 episodes; None before the first ends."""
    metrics: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The newest line of metrics.jsonl."""
    evaluation: Mapping[str, Any] | None = None
    """The newest evaluation, as in evaluations.jsonl."""
    checkpoint: Path | None = None
    """The newest checkpoint of this session."""
    _policy: Callable[[], Policy | Policies] = field(default=lambda: None, repr=False, compare=False)  # type: ignore[assignment]

    def policy(self) -> Policy | Policies:
        """The policy at this point: in `on_evaluation` that was evaluated, in `on_checkpoint` that was saved, else the
        newest. It is fetched when this is called."""
        return self._policy()


Callback = Callable[[Progress], Any]


@dataclass
class Callbacks:
    """The functions, and how often they are called."""

    on_update: Callback | None = None
    on_evaluation: Callback | None = None
    on_checkpoint: Callback | None = None
    every_s: float = 1.0
    stopped: str = ""  # the callback that has ended the run
    error: Exception | None = None  # what it raised
    _called_at: float = float("-inf")

    def __post_init__(self) -> None:
        for name in ("on_update", "on_evaluation", "on_checkpoint"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise UserError(
                    f"{name}={given!r}: found {a(given)}, expected a function of one argument",
                    keywords=(name,),
                )

    def is_due(self) -> bool:
        """Whether it is time for `on_update`."""
        return self.on_update is not None and time.monotonic() >= self._called_at + self.every_s

    def call(self, name: str, progress: Progress) -> None:
        """Calls one of them, if there is one. What it raises ends the run, after a checkpoint."""
        function = getattr(self, name)
        if function is None or self.stopped:
            return
        try:
            answer = function(progress)
        except StateLost:
            raise  # a worker was lost while the callback waited for it
        except Exception as error:
            self.stopped, self.error = name, error
        else:
            if answer is False:
                self.stopped = name
        if name == "on_update":
            self._called_at = time.monotonic()
