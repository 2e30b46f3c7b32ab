"""Members of one program, each driven by its own session as if it trained alone.

    shared = SharedProgram(program, seeds, settings, schedule)
    shared.views[3].run(...)        # in the thread of member 3's session; waits until all members have asked

A call trains all members for the smallest number of iterations that one of them has asked for. A member that has ended
takes part until half of them have; then the program is compiled for the remaining ones. Members are at different
iterations if one returned to a checkpoint, or if a run was killed while it wrote checkpoints: those that are behind
train first, and the others wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from runnel.errors import RunFailed
from runnel.runtime.programs import totals
from runnel.runtime.programs.carry import Carry
from runnel.runtime.programs.episode_sums import EpisodeSums
from runnel.runtime.programs.snapshots import SnapshotSchedule, SnapshotTaker
from runnel.runtime.programs.totals import ProgressDelta
from runnel.runtime.single_process.cohort import Called, CohortProgram
from runnel.runtime.single_process.member_program import MOST_ITERATIONS, MemberProgram
from runnel.types import PyTree

CALL_S: Final = 0.5
"""The target length of a call; twice that of a single run, since every member reports after it."""

LOOK_S: Final = 0.1
"""The interval in seconds at which a waiting member checks whether its run is to end."""

NOBODY: Final = -1
"""Marks a row without a member, in calls of a fixed number of members."""


class _Asked(NamedTuple):
    """The call that a member waits for."""

    iterations: int
    target: float


class Cohort:
    """Members at the same iteration, with their carries stacked."""

    def __init__(self, members: Sequence[int], carry: Carry):
        self.members, self.carry = list(members), carry
        self.iteration = int(carry.iteration)
        self._fetched: dict[str, PyTree] = {}

    def moved(self, carry: Carry, iterations: int = 0) -> None:
        self.carry, self.iteration, self._fetched = carry, self.iteration + iterations, {}

    def fetched(self, name: str) -> PyTree:
        """A field of the carry on the host: a copy, since the next call overwrites the device's memory."""
        if name not in self._fetched:
            self._fetched[name] = jax.tree.map(np.array, jax.device_get(getattr(self.carry, name)))
        return self._fetched[name]


class SharedProgram:
    """The one program of several members.

    It is one class because all of it is under one lock: members ask, wait, load and leave in threads of their own, and
    each of these changes who is in the next call.
    """

    def __init__(
        self,
        program: CohortProgram,
        steps_per_iteration: int,
        seeds: Sequence[int],
        settings: Mapping[str, np.ndarray],
        schedule: SnapshotSchedule,
        parallel_calls: int = 1,
        name: str = "program",
        whole: int | None = None,
        skips: Sequence[bool] | None = None,
    ):
        """`settings`: [M] of each setting that is an argument of the program. `parallel_calls`: the number of calls,
        each in its own thread, into which members are divided on a device that one call does not fill. `whole`: the
        number of members that every call is compiled for, however few train, so that a member's numbers do not depend
        on the others. `skips`: [M] whether a member continues without refused updates; a call ends at those of others.
        """
        self._parallel_calls, self._threads = parallel_calls, ThreadPoolExecutor(parallel_calls, "members")
        self.name, self.steps_per_iteration = name, steps_per_iteration
        self._program, self._seeds, self._whole = program, list(seeds), whole
        self._schedule = schedule
        self._skips = np.zeros(len(seeds), np.bool_) if skips is None else np.array(skips, np.bool_)
        self.cohorts: list[Cohort] = []
        self._unmade = set(range(len(seeds)))  # not begun: they may continue from a checkpoint instead
        self._changed = threading.Condition(threading.RLock())
        self._iterations_per_call = 1
        self._error: BaseException | None = None
        self.seconds = 0.0
        """The seconds spent in calls."""
        self.begin(settings)

    def begin(self, settings: Mapping[str, np.ndarray], fresh: Sequence[int] = ()) -> None:
        """All members train with these settings, from their present states; those of `fresh` from the beginning."""
        self._settings = dict(settings)
        for member in fresh:
            if self.stands_at(member) is not None:
                self.take_out(member)
            self._unmade.add(member)
        self._live = set(range(len(self._seeds)))
        self._asked: dict[int, _Asked] = {}
        self._given: dict[int, tuple[ProgressDelta, EpisodeSums]] = {}
        self.views = [MemberProgram(self, member, SnapshotTaker(self._schedule)) for member in self._live]

    def close(self) -> None:
        """Frees the device's memory at once: views refer to the program and the program to views, and such cycles live
        until Python looks for them."""
        with self._changed:
            self.cohorts, self.views, self._live = [], [], set()
        self._threads.shutdown(wait=False)

    def copy(self, parents: Sequence[int]) -> None:
        """Each member continues from the learner's state of its parent, which keeps its own; nothing leaves the device.

        A member whose parent has left the program leaves it too.
        """
        with self._changed:
            children = {child: parent for child, parent in enumerate(parents) if child != parent}
            for target in self.cohorts:
                states = target.carry.states
                for source in self.cohorts:
                    pairs = [(target.members.index(child), source.members.index(parent))
                             for child, parent in children.items()
                             if child in target.members and parent in source.members]  # fmt: skip
                    if pairs:
                        rows, of = (np.array(each) for each in zip(*pairs, strict=True))
                        states = jax.tree.map(lambda x, y, rows=rows, of=of: x.at[rows].set(y[of]), states,
                                              source.carry.states)  # fmt: skip
                target.moved(self._program.place(target.carry._replace(states=states)))
            here = {member for cohort in self.cohorts for member in cohort.members}
            for child, parent in children.items():
                if child in here and parent not in here:
                    self.take_out(child)

    # What members ask for, in their own threads

    def run(
        self, member: int, iterations: int, target: float, stop: Callable[[], bool]
    ) -> tuple[ProgressDelta, EpisodeSums] | None:
        """Trains a member with all others; None if its run is asked to end before all have called."""
        with self._changed:
            self._asked[member] = _Asked(iterations, target)
            self._changed.notify_all()
            while member not in self._given:
                if self._error is not None:
                    raise RunFailed(f"the members' program failed: {self._error}") from self._error
                if stop():
                    del self._asked[member]
                    return None
                if self._asked.keys() >= self._live:
                    self._call()
                    self._changed.notify_all()
                else:
                    self._changed.wait(LOOK_S)
            return self._given.pop(member)

    def leave(self, member: int) -> None:
        """Removes a member that has ended: calls no longer wait for it."""
        with self._changed:
            self._live.discard(member)
            self._asked.pop(member, None)
            self._changed.notify_all()

    def field(self, member: int, name: str) -> PyTree:
        """A field of a member's carry, on the host."""
        with self._changed:
            cohort = self._cohort(member)
            row, axes = cohort.members.index(member), getattr(self._program.axes, name)
            return jax.tree.map(
                lambda axis, x: x if axis is None else x[row], axes, cohort.fetched(name), is_leaf=lambda x: x is None
            )

    def put(self, member: int, carry: Carry) -> None:
        """Continues a member from its own carry."""
        stacked = self._program.each(lambda x: np.asarray(x)[None], carry, np.asarray)
        with self._changed:
            self.take_out(member)
            self.cohorts.append(Cohort([member], self._program.place(stacked)))

    def begin_again(self, member: int) -> None:
        """Continues a member from the beginning."""
        with self._changed:
            self.take_out(member)
            self.cohorts.append(self._fresh([member]))

    def iteration(self, member: int) -> int:
        with self._changed:
            return 0 if member in self._unmade else self._cohort(member).iteration

    def stands_at(self, member: int) -> int | None:
        """The iteration of a member; None if it has not begun or has left."""
        with self._changed:
            return next((cohort.iteration for cohort in self.cohorts if member in cohort.members), None)

    def take_out(self, member: int) -> None:
        """Removes a member's state from the program."""
        with self._changed:
            if member in self._unmade:
                self._unmade.discard(member)
                return
            cohort = self._cohort(member)
            self.cohorts.remove(cohort)
            rows = [row for row, other in enumerate(cohort.members) if other != member]
            if rows:
                carry = self._program.each(lambda x: np.asarray(x)[np.array(rows)], cohort.carry, np.asarray)
                self.cohorts.append(Cohort([cohort.members[row] for row in rows], self._program.place(carry)))

    # Cohorts

    def _call(self) -> None:
        """Trains the members that are furthest behind, up to the iteration of the next ones."""
        try:
            self._gather()
            first = min(cohort.iteration for cohort in self.cohorts)
            now = [cohort for cohort in self.cohorts if cohort.iteration == first]
            later = min((c.iteration for c in self.cohorts if c.iteration > first), default=MOST_ITERATIONS)
            waiting = [self._asked[member].iterations for cohort in now for member in self._live_of(cohort)]
            count = min(self._iterations_per_call, later - first, *waiting)
            for cohort in now:
                self._program.prepare(len(cohort.members))
            started = time.monotonic()
            called = list(self._threads.map(lambda cohort: self._train(cohort, count), now))
            spent = time.monotonic() - started
        except BaseException as error:
            self._error = error
            raise
        self.seconds += spent
        if spent < CALL_S / 2 and all(each.iterations == self._iterations_per_call for each in called):
            self._iterations_per_call *= 2
        for cohort, found in zip(now, called, strict=True):
            self._give(cohort, found)

    def _train(self, cohort: Cohort, iterations: int) -> Called:
        targets = [self._asked[m].target if m in self._live else math.nan for m in cohort.members]
        carry, called = self._program.run(
            cohort.carry, self._values(cohort.members), iterations, np.array(targets, np.float32),
            self._skips[np.maximum(cohort.members, 0)],
        )  # fmt: skip
        cohort.moved(carry, called.iterations)
        return called

    def _give(self, cohort: Cohort, called: Called) -> None:
        """Distributes the results of a call."""
        window = cohort.fetched("window")
        for member in self._live_of(cohort):
            row = cohort.members.index(member)
            total, own = (jax.tree.map(lambda x, row=row: x[row], tree) for tree in (called.totals, window))
            self._given[member] = totals.read_host(called.iterations, total, own, bool(called.reached[row]))
            del self._asked[member]

    def _live_of(self, cohort: Cohort) -> list[int]:
        return [member for member in cohort.members if member in self._live]

    def _gather(self) -> None:
        """Merges cohorts at the same iteration, and drops those whose members have ended."""
        self._make()
        alike: list[list[Cohort]] = []
        for cohort in sorted(self.cohorts, key=lambda cohort: cohort.iteration):
            if not self._live_of(cohort):
                continue
            if alike and self._alike(alike[-1][0], cohort):
                alike[-1].append(cohort)
            else:
                alike.append([cohort])
        self.cohorts = [cohort for group in alike for cohort in self._regrouped(group)]

    def _regrouped(self, group: list[Cohort]) -> list[Cohort]:
        """Cohorts at the same iteration, as many of equal size as train side by side, most of their members live."""
        live = sum(len(self._live_of(cohort)) for cohort in group)
        there = sum(member != NOBODY for cohort in group for member in cohort.members)
        rows = there if self._whole is None and live > there // 2 else live
        size = self._size(rows)
        if all(len(cohort.members) == size for cohort in group) and len(group) == -(-rows // size):
            return group
        members = [member for cohort in group for member in self._live_of(cohort)]
        places = [np.array([cohort.members.index(m) for m in self._live_of(cohort)]) for cohort in group]

        def own(*leaves: Any) -> np.ndarray:
            return np.concatenate([np.asarray(leaf)[each] for leaf, each in zip(leaves, places, strict=True)])

        first, *others = (cohort.carry for cohort in group)
        carry = self._program.each(own, first, lambda x, *_: np.asarray(x), *others)
        order = np.argsort(members)  # by number, and not by who was first to be there
        carry = self._program.each(lambda x: x[order], carry)
        return self._split(sorted(members), carry)

    def _size(self, members: int) -> int:
        """The number of members in a call, if `members` are at the same iteration."""
        return self._program.call_size(members if self._whole is None else self._whole, self._parallel_calls)

    def _split(self, members: Sequence[int], carry: Carry) -> list[Cohort]:
        """Members with their carries, on the host or on the device, as cohorts that train side by side."""
        size = self._size(len(members))
        if size == len(members):
            return [Cohort(members, self._program.place(carry))]

        def part(start: int) -> Carry:
            rows = np.minimum(np.arange(start, start + size), len(members) - 1)  # the last one fills what is left over
            return self._program.each(lambda x: np.asarray(x)[rows], carry, np.asarray)

        def of(start: int) -> list[int]:
            own = list(members[start : start + size])
            return own + [NOBODY] * (size - len(own))

        return [Cohort(of(start), self._program.place(part(start))) for start in range(0, len(members), size)]

    def _alike(self, a: Cohort, b: Cohort) -> bool:
        """Whether the state shared by members of one program is equal in both."""
        found: list[bool] = []

        def compare(x: Any, y: Any) -> Any:
            found.append(np.array_equal(x, y))
            return x

        self._program.each(lambda x, _: x, a.carry, compare, b.carry)
        return all(found)

    def _make(self) -> None:
        if self._unmade:
            members, self._unmade = sorted(self._unmade), set()
            self.cohorts += self._split(members, self._fresh(members).carry)

    def _fresh(self, members: Sequence[int]) -> Cohort:
        made = [*members, *[members[-1]] * ((self._whole or 0) - len(members))]
        carry = self._program.fresh([self._seeds[m] for m in made], self._values(made))
        if len(made) > len(members):
            carry = self._program.each(lambda x: np.asarray(x)[: len(members)], carry)
        return Cohort(members, carry)

    def _values(self, members: Sequence[int]) -> dict[str, np.ndarray]:
        return {name: values[np.maximum(members, 0)] for name, values in self._settings.items()}

    def _cohort(self, member: int) -> Cohort:
        if member in self._unmade:
            self._make()
        found = next((cohort for cohort in self.cohorts if member in cohort.members), None)
        if found is None:
            raise RunFailed(f"member {member} has left the members' program, which does not have its state any more")
        return found
