"""The results of a sweep's trials, read from the directories of their members."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from runnel.execution.members.member_group import Members, final_return, members_result
from runnel.execution.run import read_result
from runnel.execution.sweeps.trials import Trial
from runnel.recording import members_file
from runnel.recording.sweep_file import BEST, SweepSpec

SURROUNDINGS: Final = tuple(
    os.strerror(number).lower()
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.EROFS)
)
"""Failures that a trial's settings do not cause: the same trial may succeed later."""

MEMORY: Final = (os.strerror(errno.ENOMEM).lower(), "resource_exhausted", "out of memory")
"""Failures that a trial's settings may cause, or other processes: the trial is repeated once."""


class MemberOutcomes(NamedTuple):
    """The outcomes of a trial's members."""

    scores: list[float | None]  # of those that were trained to the end
    failed: list[str]  # why others failed, for a reason of their own
    unfinished: list[str]  # what keeps others from an end
    exhausted: list[str]  # why others failed that found too little memory


def member_outcomes(members: Sequence[Path], steps: int) -> MemberOutcomes:
    """The outcomes of members that were to be trained for `steps` steps."""
    found = MemberOutcomes([], [], [], [])
    for directory in members:
        result = read_result(directory) or {}
        reason = str(result.get("reason") or "")
        if result.get("status") == "finished" and (result.get("env_steps") or 0) >= steps:
            if _is_evaluated(result):
                found.scores.append(_objective(result))
            else:
                found.failed.append("its last evaluation failed")
        elif result.get("status") == "failed" and any(text in reason.lower() for text in MEMORY):
            found.exhausted.append(reason)
        elif result.get("status") == "failed" and not any(text in reason.lower() for text in SURROUNDINGS):
            found.failed.append(reason or "failed")
        else:
            found.unfinished.append(f"{directory.name}: {reason or 'was not trained to the end'}")
    return found


def _is_evaluated(result: Mapping[str, Any]) -> bool:
    """Whether a member's newest evaluation, if it has any, is the one at its end."""
    evaluated = result.get("evaluation")
    return evaluated is None or evaluated.get("env_steps") == result.get("env_steps")


def _objective(result: Mapping[str, Any]) -> float | None:
    """The score of a member's last evaluation, otherwise the mean return of its newest episodes."""
    evaluated = result.get("evaluation")
    if evaluated is None or "score" not in evaluated:
        return final_return(result)
    found = evaluated["score"]
    return float(found) if isinstance(found, int | float) else None


def objective(found: MemberOutcomes) -> float | None:
    """The mean over a trial's seeds; None where one of them failed or has no score."""
    scores = [each for each in found.scores if each is not None]
    if found.failed or found.exhausted or not scores or len(scores) < len(found.scores):
        return None
    mean = float(np.mean(scores))
    return mean if np.isfinite(mean) else None


def sweep_result(
    directory: Path, spec: SweepSpec, trials: Sequence[Trial], best: int | None, winner: Members | None, asked: str,
    reason: str, wall_seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """The result.json of a sweep: that of its members, and its trials."""
    members = members_file.read(directory) if members_file.holds_members(directory) else []
    status = "interrupted" if asked else "failed" if reason else "finished"
    rows = [_row(spec, number, trial, [member.directory for member in members]) for number, trial in enumerate(trials)]
    return {
        **(members_result(directory, members, asked, wall_seconds) if members else {"wall_seconds": wall_seconds}),
        "status": status,
        **({"reason": reason} if reason else {}),
        "sampler": spec.sampler,
        "trials": rows,
        "trials_asked": spec.trials,
        "best": None if best is None else {**rows[best], "config": BEST},
        "winner": None if winner is None else _winner(winner.result, spec),
    }


def _row(spec: SweepSpec, number: int, trial: Trial, members: Sequence[str]) -> dict[str, Any]:
    values = trial.record.values
    reached = max(values, default=None)
    own = spec.members_of(number)
    return {
        "trial": number,
        "status": trial.ended or "running",
        "objective": None if reached is None else values[reached],
        "steps": 0 if reached is None else spec.rungs[reached],
        "settings": trial.settings,
        "members": list(members[own.start : own.stop]),
        **({"reason": trial.reason} if trial.reason else {}),
    }


def _winner(result: Mapping[str, Any], spec: SweepSpec) -> dict[str, Any]:
    names = ("finished", "iqm_return", "iqm_interval", "mean_return", "median_return", "min_return", "max_return")
    return {"seeds": list(spec.winner_seeds), **{name: result[name] for name in names if name in result}}
