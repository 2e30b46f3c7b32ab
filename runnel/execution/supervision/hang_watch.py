"""Ends a single-process run that hangs in its environment, or does not end when it is asked to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from runnel.recording import checkpoint
from runnel.runtime.single_process import evaluation, program
from runnel.runtime.workers import player
from runnel.system import tracebacks
from runnel.system.tracebacks import Frame

STEPPING: Final = ((player.__file__, "step"), (evaluation.__file__, "play_watched"))
"""Our calls in which an environment steps: in training and in evaluation."""

RESETTING: Final = ((player.__file__, "reset"), (player.__file__, "restore"))
"""Those in which environments are reset and played again."""

OPENING: Final = (*RESETTING, (program.__file__, "make_program"), (evaluation.__file__, "make_evaluator"))
"""Those in which they are made, too."""

OPENING_S: Final = 300.0
"""How long those may take at least."""

SHOWN_S: Final = 3.0
"""So long after it was asked to end, a run shows what it is at."""

HELD_S: Final = 1.0
"""After so long without a step, a run waits for its environment."""

END_S, LAST_S = 25.0, 5.0
"""How long it may take to end with a checkpoint, and how long without one."""


@dataclass
class HangWatch:
    """Looks at a run from another thread; see `look`.

    `steps()` counts the steps it has taken, `asked()` is the signal that asked it to end, or "". What it finds is
    said by `say`, and where it is too late it calls `end(reason, within_s)`.
    """

    hang_after_s: float
    steps: Callable[[], int]
    asked: Callable[[], str]
    say: Callable[[str], None]
    end: Callable[[str, float], None]
    clock: Callable[[], float] = time.monotonic
    stack: Callable[[], Sequence[Frame]] = tracebacks.main_thread
    text: Callable[[], str] = tracebacks.text
    longest_s: float = 1.0  # between two looks: what is more, this process itself was stopped for (Ctrl-Z)
    _looked: float | None = field(default=None, init=False)
    _seen: int = field(default=-1, init=False)
    _silent_s: float = field(default=0.0, init=False)
    _asked_s: float = field(default=0.0, init=False)
    _shown: bool = field(default=False, init=False)

    def look(self) -> None:
        """To be called several times a second."""
        now, before = self.clock(), self._looked
        self._looked = now
        passed = 0.0 if before is None else min(now - before, self.longest_s)
        stack = self.stack()
        if self.asked():
            self._look_for_the_end(stack, passed)
        else:
            self._look_for_a_hang(stack, passed)

    def held(self) -> Frame | None:
        """The line at which the run has waited for its environment for a while, if it has."""
        stack = self.stack()
        if self._silent_s < HELD_S or self.limit(stack) is None:
            return None
        called = any(_within(stack, *call) for call in (*STEPPING, *RESETTING))
        return tracebacks.place(stack) if called else tracebacks.own(stack)

    def _look_for_a_hang(self, stack: Sequence[Frame], passed: float) -> None:
        steps = self.steps()
        limit = self.limit(stack)
        self._silent_s = self._silent_s + passed if steps == self._seen and limit is not None else 0.0
        self._seen = steps
        if limit is not None and self._silent_s > limit:
            at = tracebacks.place(stack)
            self.say(f"the environment has not returned for {self._silent_s:.0f} s:\n{self.text()}")
            self.end(f"the environment has not returned for {self._silent_s:.0f} s (--hang-after), in {at}", LAST_S)

    def limit(self, stack: Sequence[Frame]) -> float | None:
        """How long the run may stay where it is; None where it is not in an environment."""
        if tracebacks.compiles(stack):
            return None
        if any(_within(stack, *call) for call in STEPPING):
            return self.hang_after_s
        return max(OPENING_S, self.hang_after_s) if any(_within(stack, *call) for call in OPENING) else None

    def _look_for_the_end(self, stack: Sequence[Frame], passed: float) -> None:
        if _within(stack, checkpoint.__file__, "save"):  # a slow disk, and the very thing that was asked for
            return
        self._asked_s += passed
        if self._asked_s > SHOWN_S and not self._shown:
            self._shown = True
            end = f"ends without a checkpoint after {END_S:.0f} s; once more ends at once"
            self.say(f"waits for {tracebacks.place(stack)}; {end}:\n{self.text()}")
        if self._asked_s > END_S:
            self.end(f"did not return from {tracebacks.place(stack)}", LAST_S)


def _within(stack: Sequence[Frame], file: str, function: str) -> bool:
    return any(frame.file == file and frame.function == function for frame in stack)
