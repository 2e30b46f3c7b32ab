"""Divides very many members into stacks, each of which is one program with one checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from runnel.config.run_config import RunConfig
from runnel.errors import UserError
from runnel.execution.building import BuiltRun
from runnel.execution.members.backend import END_S, Standing, WaitingMember
from runnel.execution.members.fused_members import (
    Divided,
    DividedProgram,
    FusedMembers,
    SharedPrograms,
    devices_of,
    divide,
    side_calls,
)
from runnel.execution.members.member_memory import shortage, that_fit
from runnel.execution.members.stacked_evaluations import StackedEvaluations
from runnel.execution.members.stacked_run import StackedRun
from runnel.recording import run_directory, stacks
from runnel.recording.files import as_user_error, one_line
from runnel.system import startup

STACKED_ABOVE: Final = 64
"""More members than this, in one program, are recorded together."""


def check_stackable(asked: RunConfig) -> None:
    """Refuses options that only members with separate sessions support."""
    expected = f"{STACKED_ABOVE} members or fewer for it"
    for name in ("keep_every", "keep_every_s", "init_from", "frozen", "opponents"):
        if getattr(asked, name):
            raise UserError(f"{name}=: found it for more than {STACKED_ABOVE} members, expected {expected}",
                            keywords=(name, "seeds"))  # fmt: skip
    if asked.on_nan == "rollback":
        raise UserError(
            f"on_nan=rollback: found it for more than {STACKED_ABOVE} members, which train in step; expected stop or "
            f"skip, or {expected}",
            keywords=("on_nan", "seeds"),
        )


class StackedMembers:
    """Trains the stacks of a directory one after another."""

    def __init__(self, directory: Path, divided: Divided, programs: SharedPrograms, total: int):
        self._directory, self._divided, self._programs, self._total = directory, divided, programs, total
        self.notes = list(divided.notes)
        self._sizes: list[int] = []  # of all stacks, those that have ended included
        self._waiting = self._stacks()
        self._running: StackedRun | None = None
        self._begun: DividedProgram | None = None  # the members of that one
        self._left_out: list[DividedProgram] = []  # members of stacks that have checkpoints of their own
        self._alone: FusedMembers | None = None  # trains those, after all stacks
        self._thread: threading.Thread | None = None
        self._news: list[str] = []
        self._stopped: int | None = None
        if len(self._waiting) == 1:
            self.notes.append(f"memory for all {len(self._waiting[0][1].members)} members at once")
        if len(self._waiting) > 1:
            sizes = ", ".join(str(len(stack.members)) for _, stack in self._waiting)
            self.notes.append(f"{len(self._waiting)} stacks of {sizes} members, one after another")

    @classmethod
    def of(
        cls, directory: Path, waiting: Sequence[WaitingMember], trust: Collection[str], objects: Mapping[str, Any],
        programs: SharedPrograms, total: int, ended: Sequence[WaitingMember] = (),
    ) -> Self | None:  # fmt: skip
        """`total`: the number of members of the directory. `ended`: those that have nothing left to train. None if the
        members' distribution is another."""
        divided = divide(waiting, trust, objects, programs, ended)
        return None if divided is None else cls(directory, divided, programs, total)

    def _stacks(self) -> list[tuple[int, DividedProgram]]:
        """The members that wait, by the number of their stack: as they were divided when they began."""
        listed = stacks.read(self._directory, self._total)
        if not listed:
            listed = [[m.number for m, _ in part] for each in self._divided.programs for part in self._parts(each)]
            stacks.write(self._directory, listed)
        self._sizes = [len(numbers) for numbers in listed]
        found = []
        for k, numbers in enumerate(listed):
            own = [each._replace(members=[pair for pair in each.members if pair[0].number in numbers])
                   for each in self._divided.programs]  # fmt: skip
            own = [each for each in own if each.members]
            if len(own) > 1:
                raise UserError(
                    f"{self._directory}: found members in {stacks.name_of(k)} that cannot share a program; was "
                    f"{stacks.FILE} or a config.json edited?"
                )
            found += [(k, each) for each in own]
        return found

    def _parts(self, divided: DividedProgram) -> list[list[tuple[WaitingMember, BuiltRun]]]:
        """Stacks of as many members as fit into memory, of equal size if the number divides."""
        members, devices = divided.members, devices_of(divided.members[0][1])
        program = self._program(divided)
        startup.phase(f"compiling for {len(members)} members")
        fit = that_fit(program, len(members), side_calls(program, devices), devices)
        if not fit:
            self.notes.append(shortage(program, devices))
            fit = 1
        count = -(-len(members) // fit)
        size = -(-len(members) // count)
        return [members[start : start + size] for start in range(0, len(members), size)]

    def _program(self, divided: DividedProgram) -> Any:
        member, built = divided.members[0]
        return self._programs.program(built, member.config, divided.traced)

    def advance(self) -> None:
        if self._alone is not None:
            return self._alone.advance()
        if self._thread is not None and not self._thread.is_alive():
            assert self._running is not None
            assert self._begun is not None
            self._left_out += [
                self._begun._replace(members=self._running.left_out[k : k + STACKED_ABOVE], size=None)
                for k in range(0, len(self._running.left_out), STACKED_ABOVE)
            ]
            self._thread = self._running = self._begun = None
        if self._stopped is not None:
            self._waiting, self._left_out = [], []
        if self._thread is None and self._waiting:
            self._begin(*self._waiting.pop(0))
        elif self._thread is None and self._left_out:
            self._begin_alone()

    def wait(self, seconds: float) -> None:
        if self._alone is not None:
            self._alone.wait(seconds)
        elif self._thread is not None:
            self._thread.join(seconds)

    def _begin(self, stack: int, divided: DividedProgram) -> None:
        directory, members = self._directory / stacks.name_of(stack), divided.members
        with as_user_error(directory):
            run_directory.make_directory(self._directory, directory.name)
        program, self._begun = self._program(divided), divided
        startup.phase(f"compiling for {len(members)} members")
        run = StackedRun(
            directory, members, program, divided.traced, side_calls(program, devices_of(members[0][1])),
            StackedEvaluations(directory, self._programs.evaluations), whole=self._sizes[stack],
        )  # fmt: skip

        def body() -> None:
            try:
                run.run()
            except BaseException as error:
                self._news.append(f"{directory.name} failed: {one_line(error)}")
            self._news += run.notes

        self._running = run
        if self._stopped is not None:  # a signal was received before it existed
            run.stopped = True
        self._thread = threading.Thread(target=body, name=directory.name, daemon=True)
        self._thread.start()

    def _begin_alone(self) -> None:
        """Members that ended before the others, or were continued alone, continue with separate sessions."""
        count = sum(len(each.members) for each in self._left_out)
        self._news.append(f"{count} members continue from checkpoints of their own")
        self._alone, self._left_out = FusedMembers(self._left_out, self._programs), []
        if self._stopped is not None:
            self._alone.stop(self._stopped)
        self._alone.advance()

    def over(self) -> bool:
        if self._alone is not None:
            return self._alone.over()
        return self._thread is None and not self._waiting and not self._left_out

    def standing(self) -> dict[int, Standing]:
        if self._alone is not None:
            return self._alone.standing()
        return {} if self._running is None else self._running.standing()

    def news(self) -> list[str]:
        news, self._news = self._news, []
        return news if self._alone is None else [*news, *self._alone.news()]

    def stop(self, number: int) -> None:
        self._stopped = number
        if self._alone is not None:
            self._alone.stop(number)
        if self._running is not None:
            self._running.stopped = True

    def ask_for_checkpoint(self) -> None:
        if self._alone is not None:
            self._alone.ask_for_checkpoint()
        if self._running is not None:
            self._running.checkpoint_asked = True

    def abort(self) -> None:
        """Nothing is left to end: threads end with the process."""

    def close(self) -> None:
        deadline = time.monotonic() + END_S
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._alone is not None:
            self._alone.close()
