"""Functions of the user's that a run calls: after updates, evaluations and checkpoints.

    def on_evaluation(progress):
        print(progress.env_steps, progress.evaluation["mean_return"])
        return progress.evaluation["mean_return"] < 475      # False ends the run

    runnel.train("ppo", "CartPole-v1", eval_every=10_000, on_evaluation=on_evaluation)

They run in the user's own process, between two looks at the workers, which train on meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runnel.errors import StateLost, UserError, a
from runnel.policy import Policies, Policy


@dataclass(frozen=True)
class Progress:
    """The progress of a run. It is a copy: changing it has no effect on the run."""

    run_dir: Path
    env_steps: int
    updates: int
    episodes: int
    mean_return: float | None
    """The mean of the newest 100 episodes; None before the first ends."""
    metrics: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """The newest line of metrics.jsonl; empty before the first."""
    evaluation: Mapping[str, Any] | None = None
    """The newest evaluation, as in evaluations.jsonl, with tuples for lists."""
    checkpoint: Path | None = None
    """The newest checkpoint of this session."""
    _policy: Callable[[], Policy | Policies] = field(default=lambda: None, repr=False, compare=False)  # type: ignore[assignment]

    def policy(self) -> Policy | Policies:
        """The evaluated policy in `on_evaluation`, the saved one in `on_checkpoint`, and the newest in `on_update`. It
        is fetched when this is called."""
        return self._policy()


Callback = Callable[[Progress], Any]


def read_only(value: Any) -> Any:
    """A copy of JSON values that cannot be changed: mappings are views, lists are tuples."""
    if isinstance(value, Mapping):
        return MappingProxyType({name: read_only(part) for name, part in value.items()})
    return tuple(map(read_only, value)) if isinstance(value, list | tuple) else value


@dataclass
class Callbacks:
    """The functions, and the interval between calls."""

    on_update: Callback | None = None
    on_evaluation: Callback | None = None
    on_checkpoint: Callback | None = None
    every_s: float = 1.0
    every: int | None = None  # environment steps: between two calls, instead of seconds
    stopped: str = ""  # the callback that has ended the run
    error: Exception | SystemExit | None = None  # what it raised
    _called_at: float = float("-inf")
    _called_at_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("on_update", "on_evaluation", "on_checkpoint"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise UserError(
                    f"{name}={given!r}: found {a(given)}, expected a function of one argument",
                    keywords=(name,),
                )

    def check_evaluation(self, eval_every: int | None) -> None:
        """Refuses an `on_evaluation` that no evaluation would ever call."""
        if self.on_evaluation is not None and eval_every is None:
            raise UserError(
                "on_evaluation=: found a run without evaluations, expected eval_every=STEPS, by which they are asked "
                "for when it is trained",
                keywords=("on_evaluation", "eval_every"),
            )

    @contextlib.contextmanager
    def may_exit(self) -> Iterator[None]:
        """Surrounds a run, in which nothing else may end this process: re-raises a callback's `sys.exit` at its end."""
        yield
        if isinstance(self.error, SystemExit):
            raise self.error

    def given(self, name: str) -> bool:
        """Whether there is such a callback."""
        return getattr(self, name) is not None

    def is_due(self, env_steps: int) -> bool:
        """Whether it is time for `on_update`."""
        if self.on_update is None:
            return False
        if self.every is not None:
            return env_steps // self.every > self._called_at_steps // self.every
        return time.monotonic() >= self._called_at + self.every_s

    def next_mark(self, env_steps: int) -> int | None:
        """The environment step at which `on_update` is due next, if steps decide."""
        return None if self.on_update is None or self.every is None else (env_steps // self.every + 1) * self.every

    def begin(self, env_steps: int) -> None:
        """The run begins here, resumes, or returns to a checkpoint."""
        self._called_at_steps = env_steps

    def call(self, name: str, progress: Progress) -> None:
        """Calls one of them, if it is given. An exception ends the run, after a checkpoint."""
        function = getattr(self, name)
        if function is None or self.stopped:
            return
        try:
            answer = function(progress)
        except StateLost:
            raise  # a worker was lost while the callback waited for it
        except (Exception, SystemExit) as error:  # `sys.exit` too: it is the user's program that ends
            self.stopped, self.error = name, error
        else:
            if answer is False:
                self.stopped = name
        if name == "on_update":
            self._called_at, self._called_at_steps = time.monotonic(), progress.env_steps
