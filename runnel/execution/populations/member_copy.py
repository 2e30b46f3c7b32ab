"""Replaces a member of a population by a copy of another, on disk: its checkpoint, its settings and its logs.

Every step can be repeated: an interrupted decision is applied again from the beginning.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runnel.algorithm import Algorithm
from runnel.config import serialization
from runnel.config import settings as fields
from runnel.errors import RunFailed, UserError, nearest
from runnel.execution import plan_settings
from runnel.execution.building import read_config
from runnel.execution.run import read_result
from runnel.execution.session.checkpoints import NOT_SAVED
from runnel.execution.session.refused_updates import ENDS
from runnel.execution.snapshots.policy_recorder import score_of
from runnel.execution.trust import admit, sign
from runnel.recording import run_directory
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.checkpoint_directory import BEFORE
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.events import EventLog, read_events
from runnel.recording.files import OF_THE_MACHINE, as_user_error, write_json_atomically
from runnel.recording.population_file import Round
from runnel.reporting.statistics import flat

COPIED, RETRIED = "copied", "retried"
"""The events of a member that continues from another one's state, and of one that continues after a failure."""


def has_failed(directory: Path) -> bool:
    """Whether a member's training has failed. A full disk during its checkpoint is no failure: the member resumes."""
    result = read_result(directory)
    if result is None:
        return _was_about_to_fail(directory)
    reason = str(result.get("reason", ""))
    of_the_machine = reason.startswith(NOT_SAVED) or reason in map(os.strerror, OF_THE_MACHINE)
    return result.get("status") == "failed" and not of_the_machine


def _was_about_to_fail(directory: Path) -> bool:
    """Whether a member was killed after the checkpoint of its failure, before it recorded the failure."""
    decisions = [event for event in read_events(directory) if event["event"] in ("nan", COPIED, RETRIED)]
    newest = Checkpoints(directory).newest() if decisions and decisions[-1].get("action") == ENDS else None
    return newest is not None and decisions[-1].get("iterations") == int(newest.name.removesuffix(BEFORE))


def score(directory: Path, objective: str) -> float:
    """The score of a member, by its newest evaluation, otherwise by its newest episodes; minus infinity without
    either."""
    if has_failed(directory):
        return -math.inf
    evaluated = read_evaluations(directory)
    if evaluated and objective == "return":
        found = evaluated[-1].get("score")  # by `eval_metric`, if there is one
        return -math.inf if found is None else float(found)
    if evaluated:
        return score_of(flat(evaluated[-1], ""), objective)
    result = read_result(directory) or {}
    found = {"return": result.get("mean_return")}
    for prefix, table in (("env/", result.get("env")), ("return/", result.get("group_returns"))):
        found |= {f"{prefix}{name}": value for name, value in (table or {}).items()}
    name = objective.removeprefix("min:")
    if name not in found and found["return"] is not None:
        raise RunFailed(
            f"objective={objective}: no episode has it{nearest(name, found)}; the length and others need eval_every="
        )
    value = found.get(name)
    sign = -1.0 if objective != name else 1.0
    return sign * float(value) if value is not None and math.isfinite(value) else -math.inf


def with_settings(directory: Path, settings: Mapping[str, float], trust: Collection[str]) -> dict[str, Any]:
    """A member's configuration with other settings, signed; raises UserError if its algorithm cannot have them."""
    config = read_config(directory)
    admit(directory, config, trust)
    algorithm = serialization.from_json(config["algorithm"], Algorithm)
    known = fields.hints_of(type(algorithm))
    for name in settings:
        if name not in known:
            raise UserError(f"{type(algorithm).__name__} has no setting '{name}'{nearest(name, known)}")
    try:
        changed = replace(algorithm, **settings)  # type: ignore[type-var]
    except (TypeError, ValueError) as error:
        raise UserError(f"{type(algorithm).__name__}: {error}") from None
    fields.check(changed)
    config = {**config, "algorithm": plan_settings.to_json(changed, plan_settings.asked_in(config["algorithm"]))}
    config.pop("code", None)
    code = sign(config, directory).code
    return config if code is None else {**config, "code": code}


def apply(member: int, members: Sequence[Path], decided: Round, trust: Collection[str]) -> None:
    """Lets one member follow a decision. `members`: the directories of all."""
    own, parent = members[member], members[decided.parents[member]]
    config = with_settings(own, decided.settings[member], trust)
    write_json_atomically(own / "config.json", config)
    copied = own != parent and Checkpoints(own).newest() is not None
    if copied:
        with as_user_error(own / "checkpoints"):
            Checkpoints(own).copy_states(Checkpoints(parent))
    if copied or member in decided.failed:
        _note(own, parent, decided, member, COPIED if copied else RETRIED)
    if member in decided.failed:  # it continues, and its failure is recorded in the lineage
        with as_user_error(own / "result.json"):
            run_directory.remove(own, "result.json")


def _note(own: Path, parent: Path, decided: Round, member: int, event: str) -> None:
    known = [each for each in read_events(own) if each["event"] == event]
    if known and known[-1].get("round") == decided.round:
        return  # it was cut short after this
    chosen = ", ".join(f"{name}={value:.4g}" for name, value in decided.settings[member].items())
    what = f"it is a copy of {parent.name}" if event == COPIED else "it has failed"
    EventLog(own).record(
        event, reason=f"after {decided.env_steps:,} steps {what}",
        action=f"it continues with {chosen}" if chosen else "", round=decided.round, parent=decided.parents[member],
        settings=decided.settings[member],
    )  # fmt: skip
