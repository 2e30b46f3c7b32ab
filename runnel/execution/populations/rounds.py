"""The rounds of a population: members train, the rule decides, the decision is recorded, members apply it.

This order makes a population safe to kill. If it is killed while members train, each resumes from its newest
checkpoint. If it is killed after a decision was recorded, the decision is applied again, from the beginning; no member
trains before all have applied it.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from runnel.errors import RunFailed, UserError
from runnel.execution.members.fused_members import SharedPrograms
from runnel.execution.members.member_group import MemberGroup, Members, title
from runnel.execution.populations import member_copy
from runnel.execution.run import read_result
from runnel.population import Decision, PopulationRule, random_numbers
from runnel.recording import members_file, population_file, provenance
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.files import write_json_atomically
from runnel.recording.population_file import PopulationConfig, Round
from runnel.reporting import report
from runnel.reporting.live_view import LiveView, forgiving
from runnel.reporting.run_summary import members_summary
from runnel.system import startup
from runnel.system.signals import StopRequest

ATTEMPTS: Final = 3
"""The number of attempts for members that end without a result, such as when the kernel runs out of memory."""


class PopulationRounds:
    """A population, from its present state to its end."""

    def __init__(
        self, directory: Path, rule: PopulationRule, quiet: bool, began: float, launcher: str, address: str | None,
        config: PopulationConfig | None = None, trust: Collection[str] = (), objects: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        """`config`: if it differs from population.json."""
        self.directory, self.rule, self.quiet = directory, rule, quiet
        self._members = members_file.read(directory)
        self._paths = [directory / member.directory for member in self._members]
        stored = population_file.read(directory, len(self._members))
        self._rounds = population_file.read_lineage(directory, len(self._members))
        self._config = config or stored
        chosen = [self._config.settings, *(each.settings for each in self._rounds)]
        if any(set(own) != set(rule.varying) for settings in chosen for own in settings):
            raise UserError(
                f"{directory}: found settings of members that are not those which the rule changes; was "
                f"{population_file.LINEAGE} or {population_file.FILE} edited?"
            )
        if not self._config.applied <= len(self._rounds) <= self._config.applied + 1:
            raise UserError(
                f"{directory}: found {len(self._rounds)} decisions, of which {self._config.applied} are applied; was a "
                "file edited?"
            )
        if config is not None and config != stored:
            self._check_steps(config.steps)
            population_file.write(directory, config)
        self._programs = SharedPrograms(rule.varying, len(self._members))
        self._group_arguments = (quiet, began, launcher, address)
        self._trust, self._objects, self._asked = trust, objects or {}, ""

    def _check_steps(self, steps: int) -> None:
        found = [(read_result(path) or {}).get("env_steps") or 0 for path in self._paths]
        taken = max([*found, *(each.env_steps for each in self._rounds)])
        if steps < taken or (self._rounds and steps <= self._rounds[-1].env_steps):
            raise UserError(
                f"steps={steps}: the members of {self.directory} have taken {taken:,} steps already; ask for more",
                keywords=("steps",),
            )

    def run(self) -> Members:
        before = members_file.read_result(self.directory)
        if before.get("status") == "finished" and self._target() == self._config.steps and not self._left():
            return self._ended_with(before)  # nothing is left to train
        provenance.record(self.directory, {})
        total = self._config.steps * len(self._members)
        try:
            with StopRequest(self._stop), LiveView(total, self.quiet, title(self.directory, self._members)) as view:
                startup.through(view.starting)
                over = self._advance(view)
        except Exception:
            with contextlib.suppress(UserError, OSError):  # such as a full disk, which may be what was raised
                write_json_atomically(self.directory / "result.json", self._result(over=False))
                report.write(self.directory)
            raise
        result = self._result(over)
        write_json_atomically(self.directory / "result.json", result)
        report.write(self.directory)
        return self._ended_with(result)

    def _ended_with(self, result: dict[str, Any]) -> Members:
        if not self.quiet and sys.stdout is not None:
            print(members_summary(result, self.directory), file=forgiving(sys.stdout), flush=True)
        return Members(result, self.directory, tuple(self._paths))

    def _advance(self, view: LiveView) -> bool:
        """Runs round after round; returns whether the last one is over."""
        while not self._asked:
            self.follow()
            self._train(view)
            if self._asked:
                break
            if self._target() == self._config.steps:
                return True
            self.decide(view)
        return not self._left() and self._target() == self._config.steps

    def _stop(self, number: int) -> None:
        self._asked = signal.Signals(number).name

    def _target(self) -> int:
        """The step up to which members train in this round."""
        return min((len(self._rounds) + 1) * self.rule.every, self._config.steps)

    # Training

    def _train(self, view: LiveView) -> None:
        """Trains all members until each has reached the end of the round or failed."""
        for _ in range(ATTEMPTS):
            left = self._left()
            if not left or self._asked:
                return
            group = self._group(left)
            group.train(view, lambda: self._asked)
            self._asked = self._asked or group.asked
            if any(read_result(self._paths[k]) for k in left):  # they say why, and would say so again
                break
        left = self._left()
        if left and not self._asked:
            raise RunFailed(
                f"{', '.join(self._paths[k].name for k in left[:4])} ended without a result ({self._reason(left[0])}); "
                f"continue with `runnel resume {self.directory}`"
            )

    def _group(self, members: Collection[int]) -> MemberGroup:
        return MemberGroup(
            self.directory, *self._group_arguments, self._target(), self._trust, self._objects, members, self._programs
        )

    def _left(self) -> list[int]:
        """Members that have something left to train in this round."""
        steps = self._target()
        return [k for k, path in enumerate(self._paths) if not (member_copy.has_failed(path) or _has_come(path, steps))]

    def _reason(self, member: int) -> str:
        return str((read_result(self._paths[member]) or {}).get("reason", "it was killed, or its disk is full"))

    # Deciding

    def decide(self, view: LiveView) -> None:
        """Records the decision after this round, which is final from here on."""
        number, now = len(self._rounds) + 1, population_file.settings_now(self._config, self._rounds)
        scores = np.array([member_copy.score(path, self.rule.objective) for path in self._paths])
        failed = [k for k, path in enumerate(self._paths) if member_copy.has_failed(path)]
        if len(failed) == len(self._paths):
            raise RunFailed(f"all members have failed, the first because {self._reason(0)}")
        decisions = self.rule.decide(random_numbers(self._config.seed, number), number, scores.copy(), now)
        self._check(decisions)
        decisions = _replaced(decisions, scores, failed)
        settings = [{**now[int(each.parent)], **_numbers(self.rule, each.settings)} for each in decisions]
        parents = [int(decided.parent) for decided in decisions]
        for path, own in zip(self._paths, settings, strict=True):
            member_copy.with_settings(path, own, self._trust)  # refuses what its algorithm cannot have
        found = [score if math.isfinite(score) else None for score in scores.tolist()]
        decided = Round(number, self._target(), found, failed, parents, settings)
        population_file.write_lineage(self.directory, [*self._rounds, decided])
        self._rounds.append(decided)
        for member, parent in decided.copied:
            view.note(f"{self._paths[member].name} is a copy of {self._paths[parent].name}")

    def _check(self, decisions: Any) -> None:
        """Refuses invalid decisions. Parents must keep their states, because a decision may be applied twice."""
        name, members = type(self.rule).__name__, len(self._paths)
        if not isinstance(decisions, list | tuple) or len(decisions) != members:
            raise UserError(f"{name}.decide: expected a list of {members} decisions, one for each member")
        for each in decisions:
            whole = isinstance(each, Decision) and isinstance(each.parent, int | np.integer)
            if not whole or isinstance(each.parent, bool) or not 0 <= int(each.parent) < members:
                raise UserError(f"{name}.decide: found {each!r}, expected runnel.Decision(parent, settings)")
            parent = int(each.parent)
            if int(decisions[parent].parent) != parent:
                raise UserError(
                    f"{name}.decide: member {parent} is copied and becomes a copy too; expected that a member whose "
                    "state is copied keeps its own"
                )

    def follow(self) -> None:
        """Applies the newest decision to all members that have not applied it yet."""
        if len(self._rounds) == self._config.applied:
            return
        decided = self._rounds[-1]
        for member in range(len(self._paths)):
            if self._changes(decided, member):
                member_copy.apply(member, self._paths, decided, self._trust)
        self._config = population_file.with_applied(self._config, decided.round)
        population_file.write(self.directory, self._config)
        self._programs.copy(decided.parents)

    def _changes(self, decided: Round, member: int) -> bool:
        before = population_file.settings_now(self._config, self._rounds[:-1])[member]
        kept = decided.parents[member] == member and decided.settings[member] == before
        return not kept or member in decided.failed

    # The end

    def _result(self, over: bool) -> dict[str, Any]:
        found = self._group(()).result()
        settings = population_file.settings_now(self._config, self._rounds)
        for run, own in zip(found["runs"], settings, strict=True):
            run["settings"] = own
            if not over and run["status"] == "finished":
                run["status"] = "interrupted"
        try:
            scores = [member_copy.score(path, self.rule.objective) for path in self._paths]
        except RunFailed:  # no member has what they are compared by
            scores = [-math.inf] * len(self._paths)
        best = int(np.argmax(scores)) if np.isfinite(scores).any() else None
        ended = sum(run["status"] == "finished" for run in found["runs"])
        return {
            **found,
            "status": "finished" if over and ended else "interrupted" if self._asked else "failed",
            "finished": ended,
            "best": None if best is None else {"member": best, "score": scores[best], **found["runs"][best]},
            "lineage": [
                {name: getattr(each, name) for name in ("round", "env_steps", "parents")} for each in self._rounds
            ],
        }


def _has_come(path: Path, steps: int) -> bool:
    result = read_result(path) or {}
    taken = result.get("env_steps")
    ended = result.get("status") == "finished" and type(taken) is int and taken >= steps
    return ended and Checkpoints(path).newest() is not None


def _replaced(decisions: Sequence[Decision], scores: np.ndarray, failed: Collection[int]) -> list[Decision]:
    """The decisions, with a copy of a good member for each failed member that was to keep its state.

    A rule knows only scores, and no member has one before its first episode has ended. The best of those that keep
    their own state are copied equally often.
    """
    kept = [k for k, each in enumerate(decisions) if int(each.parent) == k and k not in failed]
    good = sorted(kept, key=lambda k: (-scores[k], k))
    parents = {int(each.parent) for k, each in enumerate(decisions) if int(each.parent) != k}
    alone = [k for k in failed if int(decisions[k].parent) == k and k not in parents]
    found = list(decisions)
    for place, member in enumerate(alone if good else ()):
        found[member] = Decision(good[place % len(good)], decisions[member].settings)
    return found


def _numbers(rule: PopulationRule, settings: Any) -> dict[str, float]:
    """The settings of a decision, as they are stored."""
    try:
        found = {str(name): float(value) for name, value in dict(settings).items()}
    except (TypeError, ValueError, OverflowError):
        found = {"": math.nan}
    if not all(map(math.isfinite, found.values())):
        raise UserError(f"{type(rule).__name__}.decide: found the settings {settings!r}, expected finite numbers")
    return found
