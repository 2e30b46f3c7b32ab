"""The members of a directory, trained together from the start or continuation of the first to the end of the last."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from runnel.config.run_config import RunConfig
from runnel.errors import UserError
from runnel.execution.members.backend import MemberBackend, Standing, WaitingMember
from runnel.execution.members.fused_members import FusedMembers, SharedPrograms
from runnel.execution.members.member_run import member_config
from runnel.execution.members.processes import MemberProcesses
from runnel.execution.members.stacked_members import StackedMembers
from runnel.execution.run import may_be_done, read_result
from runnel.recording import members_file, provenance, requests, stacks
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.files import write_json_atomically
from runnel.recording.members_file import Member
from runnel.reporting import metrics_server, report
from runnel.reporting.live_view import LiveView, forgiving
from runnel.reporting.run_summary import members_summary
from runnel.reporting.statistics import members_statistics
from runnel.system import startup
from runnel.system.signals import Interrupted, StopRequest

SHOW_S: Final = 0.25
"""The interval in seconds at which members are checked."""


@dataclass(frozen=True)
class Members:
    """Several runs that have ended."""

    result: dict[str, Any]  # as in result.json
    run_dir: Path
    members: tuple[Path, ...]  # the directory of each run

    def __repr__(self) -> str:
        names = ("status", "algorithm", "environment", "members", "iqm_return")
        facts = [f"{name}={self.result[name]!r}" for name in names if name in self.result]
        return f"Members({', '.join([*facts, f'run_dir={str(self.run_dir)!r}'])})"


class MemberGroup:
    """All members of a directory, from the start or continuation of the first to the end of the last.

    Its parameters are one list because seeds, sweeps and populations, which make groups, each ask for other parts of
    it; most of them have a default.
    """

    def __init__(
        self, directory: Path, quiet: bool, began: float, launcher: str, address: str | None,
        steps: int | None = None, trust: Collection[str] = (), objects: Mapping[str, Any] | None = None,
        only: Collection[int] | None = None, programs: SharedPrograms | None = None, stacked: bool = False,
        title: str = "", batch: Collection[int] | None = None, asked_in: Path | None = None,
    ):  # fmt: skip
        """`objects`: algorithm or environment, where no other process can import them. `only`: the members to train,
        where the others stay as they are. `batch`: the members that programs have places for, where they are not all;
        those of them that do not train have ended. `programs`: those that other groups have compiled. `stacked`: the
        members are recorded together, as they are already in a directory that has stacks. `title`: what is shown above
        their progress. `asked_in`: where requests are left, if it is another directory."""
        self.directory, self.quiet, self.began, self.steps = directory, quiet, began, steps
        self._requests = requests.Waiting(asked_in or directory)
        self.members = members_file.read(directory)
        self._shown = [index for index in range(len(self.members)) if only is None or index in only]
        self._before, self._title = members_file.read_result(directory), title
        self._stacked = stacked or bool(stacks.read(directory, len(self.members)))
        self.asked = ""
        """The signal that has asked the members to end."""
        self._total, waiting, ended = 0, [], []
        for index in sorted({*self._shown, *(range(len(self.members)) if batch is None else batch)}):
            path = directory / self.members[index].directory
            config, asked = member_config(path, steps)
            member = WaitingMember(index, path, config, asked)
            self._total += asked.steps if index in self._shown else 0
            (waiting if index in self._shown and not self._is_done(path, asked) else ended).append(member)
        self._known: dict[str, tuple[tuple[int, int, int], Standing]] = {}  # what results said when they were last read
        self._names = member_names(directory, self.members)
        self._programs = programs or SharedPrograms()
        self._backend = self._make_backend(waiting, ended, launcher, address, trust, objects or {})

    def _is_done(self, path: Path, asked: RunConfig) -> bool:
        return may_be_done(read_result(path), asked) and (self._stacked or Checkpoints(path).newest() is not None)

    def _make_backend(
        self, waiting: list[WaitingMember], ended: list[WaitingMember], launcher: str, address: str | None,
        trust: Collection[str], objects: Mapping[str, Any],
    ) -> MemberBackend:  # fmt: skip
        if not waiting:
            return MemberProcesses([], 1, self.steps, trust)
        if self._stacked:
            total = len(self.members)
            stacked = StackedMembers.of(self.directory, waiting, trust, objects, self._programs, total, ended)
            if stacked is not None:
                return stacked
        fused = FusedMembers.of(waiting, trust, objects, self._programs, ended)
        if fused is not None:
            return fused
        if objects:
            raise UserError(
                f"members under this distribution have processes of their own, which cannot import the "
                f"{' or the '.join(objects)}; put it into a module, or use fused"
            )
        return MemberProcesses.of(waiting, self.steps, trust, launcher, address)

    def run(self, asked: Callable[[], str] = lambda: "") -> Members:
        """Trains the members and writes the result of all. `asked`: see `train`."""
        if self._backend.over() and self._before.get("finished") == len(self.members):  # nothing is left to train
            return self._ended_with(self._before)
        provenance.record(self.directory, {})
        self.train(asked=asked)
        self.asked = self.asked or asked()
        result = self.result()
        write_json_atomically(self.directory / "result.json", result)
        report.write(self.directory)
        return self._ended_with(result)

    def train(self, view: LiveView | None = None, asked: Callable[[], str] = lambda: "") -> None:
        """Trains all members that have something left to train; a signal ends it, and `asked` names it.

        Each member's results are in its own directory. `view`: an existing view of the progress of all members of the
        directory. `asked`: the signal that was received while the group was created.
        """
        backend = self._backend
        with StopRequest(self._stop) as stopping, contextlib.ExitStack() as stack:
            if asked():
                return
            stack.callback(backend.close)
            if view is None:
                named = self._title or title(self.directory, self.members)
                view = stack.enter_context(LiveView(self._total, self.quiet, named))
                startup.through(view.starting)
            else:
                self._shown = list(range(len(self.members)))
            said = 0
            try:
                while not backend.over():
                    said = _say(view, backend.notes, said)
                    backend.advance()
                    said = _say(view, backend.notes, said)
                    for text in backend.news():
                        view.event(text)
                    self.show(view)
                    self._take_requests()
                    backend.wait(SHOW_S)
            except Interrupted:
                backend.abort()
                raise
            self.show(view)
            del stopping

    def _take_requests(self) -> None:
        asked = self._requests.taken()
        if requests.CHECKPOINT in asked:
            self._backend.ask_for_checkpoint()
        if requests.STOP in asked and not self.asked:
            self._stop(signal.SIGINT)  # as Ctrl-C does

    def result(self) -> dict[str, Any]:
        """The results of all members."""
        seconds = self._before.get("wall_seconds", 0.0) + time.monotonic() - self.began
        return members_result(self.directory, self.members, self.asked, seconds)

    def _ended_with(self, result: dict[str, Any]) -> Members:
        if not self.quiet and sys.stdout is not None:
            print(members_summary(result, self.directory), file=forgiving(sys.stdout), flush=True)
        return Members(result, self.directory, tuple(self.directory / member.directory for member in self.members))

    def _stop(self, number: int) -> None:
        self.asked = signal.Signals(number).name
        self._backend.stop(number)

    def show(self, view: LiveView) -> None:
        """Shows the progress of all members."""
        training = self._backend.standing()
        known = [training.get(index) or self._ended(self.members[index]) for index in self._shown]
        if not any(each.env_steps for each in known):
            return
        startup.end()
        returns = [each.mean_return for each in known if each.mean_return is not None]
        record: dict[str, Any] = {
            "env_steps": sum(each.env_steps for each in known),
            "steps_per_second": sum(each.steps_per_second or 0.0 for each in known) or None,
            "mean_return": float(np.median(returns)) if returns else None,
        }
        if len(returns) > 1:
            record["return_quartiles"] = [float(q) for q in np.quantile(returns, [0.25, 0.75])]
        view.update(record)
        metrics_server.describe({"run": self.directory.name, **self._names, "members": len(self._shown)}, self._total)
        names = [self.members[index].directory for index in self._shown]
        standings = {name: (each.env_steps, each.mean_return) for name, each in zip(names, known, strict=True)}
        metrics_server.report({k: v for k, v in record.items() if k != "return_quartiles"}, members=standings)

    def _ended(self, member: Member) -> Standing:
        """The progress of a member that does not train now."""
        path = self.directory / member.directory
        try:
            found = os.stat(path / "result.json", follow_symlinks=False)
            changed = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            return Standing(0, None)
        known = self._known.get(member.directory)
        if known is None or known[0] != changed:  # there may be thousands, looked at several times a second
            result = read_result(path) or {}
            known = (changed, Standing(result.get("env_steps") or 0, result.get("mean_return")))
            self._known[member.directory] = known
        return known[1]


def _say(view: LiveView, notes: Sequence[str], said: int) -> int:
    """Shows new notes; returns the number of notes so far."""
    for note in notes[said:]:
        view.note(note)
    return len(notes)


def title(directory: Path, members: Sequence[Member]) -> str:
    """The title of the members' live view."""
    names = member_names(directory, members)
    return f"{names['algorithm']} on {names['environment']}, {names['distribution']}, {len(members)} members"


def member_names(directory: Path, members: Sequence[Member]) -> dict[str, str]:
    """The algorithm, environment and distribution of the members, as in result.json."""
    config, _ = member_config(directory / members[0].directory)
    return {
        "algorithm": _class_names(config["algorithm"]).lower(),
        "environment": config["environment"]["name"],
        "distribution": _class_names(config["distribution"]).lower(),
    }


def _class_names(stored: Mapping[str, Any]) -> str:
    """The class of a stored algorithm or distribution; of an algorithm for each group, those of all."""
    groups = (stored.get("settings") or {}).get("algorithms")
    if isinstance(groups, Mapping) and isinstance(groups.get("dict"), Mapping):
        return ",".join(f"{group}={_class_names(each)}" for group, each in groups["dict"].items())
    return str(stored.get("class")).rpartition(":")[2]


def members_result(directory: Path, members: Sequence[Member], asked: str, wall_seconds: float) -> dict[str, Any]:
    """The results of all members. `asked`: the signal that asked them to end, if any."""
    runs = []
    for member in members:
        found = read_result(directory / member.directory) or {"status": "not begun"}
        runs.append({"directory": member.directory, "seed": member.seed, "settings": member.settings,
                     "status": found.get("status"), "env_steps": found.get("env_steps") or 0,
                     "return": final_return(found), **_reason(found)})  # fmt: skip
    statuses = [run["status"] for run in runs]
    status = "finished" if all(s == "finished" for s in statuses) else "interrupted" if asked else "failed"
    scores = np.array([run["return"] for run in runs if run["return"] is not None])
    return {
        "status": status,
        **member_names(directory, members),
        "members": len(runs),
        "finished": statuses.count("finished"),
        "env_steps": sum(run["env_steps"] for run in runs),
        "wall_seconds": wall_seconds,
        "without_return": len(runs) - len(scores),
        **(members_statistics(scores) if len(scores) else {}),
        "runs": runs,
    }


def final_return(result: Mapping[str, Any]) -> float | None:
    """The return of a member's last evaluation, or the mean of its last 100 episodes."""
    evaluated = result.get("evaluation")
    found = evaluated.get("mean_return") if isinstance(evaluated, Mapping) else result.get("mean_return")
    return float(found) if isinstance(found, int | float) else None


def _reason(result: Mapping[str, Any]) -> dict[str, str]:
    return {"reason": result["reason"]} if result.get("reason") else {}
