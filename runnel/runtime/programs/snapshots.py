"""When a run's parameters are kept, and the copies that are taken of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from runnel.recording.parameters import as_numpy, parameter_leaves
from runnel.types import PyTree

BEGINNING: Final = -1
"""Environment steps before a run has begun: it is at step 0 afterwards, which is a mark of every schedule."""


@dataclass(frozen=True)
class SnapshotSchedule:
    """Snapshots are due at every multiple of some numbers of environment steps, 0 included."""

    periods: tuple[int, ...] = ()
    optional: tuple[int, ...] = ()
    """Of these: the periods of snapshots that are left out where newer ones wait already."""

    def mark(self, before: int, now: int) -> int | None:
        """The newest multiple among the steps after `before`, up to `now`; None where there is none."""
        marks = [now // period * period for period in self.periods]
        return max((mark for mark in marks if mark > before), default=None)

    def needed(self, before: int, now: int) -> bool:
        """Whether a snapshot that is due must not be left out. That of step 0 never is."""
        return before < 0 or any(now // each * each > before for each in self.periods if each not in self.optional)

    def next_mark(self, now: int) -> int | None:
        """The first multiple after `now`."""
        return min(((now // period + 1) * period for period in self.periods), default=None)


ASKED: Final = -1
"""The mark of a snapshot that was asked for, and not due."""

NO_SNAPSHOTS: Final = SnapshotSchedule()


@dataclass(frozen=True)
class TakenSnapshot:
    """All groups' parameters at one moment of training."""

    mark: int  # the multiple that was due, or ASKED
    env_steps: int
    versions: dict[str, int]  # by group
    arrays: dict[str, dict[str, np.ndarray]]  # by group: the parameters by name


def take(states: Mapping[str, PyTree], versions: Mapping[str, int], env_steps: int, mark: int = ASKED) -> TakenSnapshot:
    """Copies the parameters of these states to the host."""
    arrays = {group: {n: as_numpy(leaf) for n, leaf in parameter_leaves(s).items()} for group, s in states.items()}
    return TakenSnapshot(mark, env_steps, {group: int(versions[group]) for group in states}, arrays)


MOST_WAITING: Final = 2
"""The most copies that wait to be fetched, besides the one that is being fetched: each is as large as a state."""


BEAT_S: Final = 0.1


class _Copied(NamedTuple):
    mark: int
    env_steps: int
    needed: bool
    copies: tuple[dict[str, dict[str, Any]], dict[str, Any]]  # by group: the parameters by name, and the version


@jax.jit
def _copy(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.copy, tree)


class SnapshotCopies:
    """Copies states on the device, and fetches the copies in a thread while training continues.

    Training waits for the copy on the device alone: its own arrays are overwritten by the next update. The thread ends
    where nothing is left to fetch.
    """

    def __init__(
        self, deliver: Callable[[TakenSnapshot], None], left_out: Callable[[int], None] = lambda mark: None,
        beat: Callable[[], None] = lambda: None,
    ):  # fmt: skip
        """`deliver` is called in the thread, with one snapshot after the other; `left_out` by `take`, with a mark;
        `beat` ten times a second where training waits."""
        self._deliver, self._left_out, self._beat = deliver, left_out, beat
        self._waiting: deque[_Copied] = deque()
        self._changed = threading.Condition()
        self._serving = False
        self._error: BaseException | None = None

    def take(
        self, mark: int, env_steps: int, states: Mapping[str, PyTree], versions: Mapping[str, Any], needed: bool = True
    ) -> None:
        """Copies these states. Where too many wait, the oldest that is not `needed` is left out; if all waiting ones
        are needed, this one is left out or, if it is needed too, training waits."""
        if not self._make_room(mark, needed):
            return
        leaves = {group: parameter_leaves(state) for group, state in states.items()}
        copied = _Copied(mark, env_steps, needed, _copy((leaves, {group: versions[group] for group in states})))
        with self._changed:
            self._waiting.append(copied)
            if not self._serving:
                self._serving = True
                threading.Thread(target=self._serve, name="snapshots", daemon=True).start()

    def flush(self) -> None:
        """Waits until all are delivered."""
        with self._changed:
            self._wait_for(lambda: not self._serving)
            self._raise()

    def _wait_for(self, done: Callable[[], bool]) -> None:
        while not self._changed.wait_for(done, BEAT_S):
            self._beat()

    def _make_room(self, mark: int, needed: bool) -> bool:
        """Whether there is room for one more."""
        spare: int | None = None
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                spare = next((k for k, each in enumerate(self._waiting) if not each.needed), None)
                if spare is not None:
                    mark = self._waiting[spare].mark
                    del self._waiting[spare]
                elif needed:
                    self._wait_for(lambda: len(self._waiting) < MOST_WAITING or not self._serving)
            self._raise()
            room = len(self._waiting) < MOST_WAITING
        if spare is not None or not room:
            self._left_out(mark)
        return room

    def _serve(self) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._error is not None:
                    self._serving = False
                    self._waiting.clear()
                    self._changed.notify_all()
                    return
                copied = self._waiting.popleft()
                self._changed.notify_all()
            try:
                leaves, versions = copied.copies
                arrays = {group: {n: as_numpy(leaf) for n, leaf in own.items()} for group, own in leaves.items()}
                own = {group: int(as_numpy(version)) for group, version in versions.items()}
                self._deliver(TakenSnapshot(copied.mark, copied.env_steps, own, arrays))
            except BaseException as error:  # raised where training looks for snapshots
                with self._changed:
                    self._error = error

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error


class SnapshotTaker:
    """Takes snapshots of a program that has all states in its own process."""

    def __init__(self, schedule: SnapshotSchedule):
        self.schedule = schedule
        self.env_steps = BEGINNING  # up to which marks were looked for
        self._fetched: deque[TakenSnapshot] = deque()
        self._copies = SnapshotCopies(self._fetched.append)

    def reached(self, env_steps: int, states: Mapping[str, PyTree], versions: Mapping[str, PyTree]) -> bool:
        """Training has come so far; returns whether a snapshot was due, and is taken."""
        mark = self.schedule.mark(self.env_steps, env_steps)
        self.env_steps = env_steps
        if mark is not None:
            self._copies.take(mark, env_steps, states, versions)
        return mark is not None

    def ask(self, states: Mapping[str, PyTree], versions: Mapping[str, PyTree]) -> None:
        """Takes one at once."""
        self._copies.take(ASKED, max(0, self.env_steps), states, versions)

    def fetch(self, wait: bool) -> list[TakenSnapshot]:
        """Those that were fetched since the last call; with `wait`, all that were taken."""
        if wait:
            self._copies.flush()
        return [self._fetched.popleft() for _ in range(len(self._fetched))]

    def begin(self, env_steps: int) -> None:
        """The program begins from a state with so many steps: drops what was taken later."""
        self.fetch(wait=True)
        self.env_steps = env_steps or BEGINNING
