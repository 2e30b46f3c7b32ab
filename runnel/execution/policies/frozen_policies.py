"""Stored policies that act for groups which do not learn (`--frozen`).

A frozen policy acts with the run's settings. Settings that would change its actions are refused. (`GROUP=RUN_DIR@TAG`
instead of an algorithm uses the policy with its own settings: `group_algorithms`.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from runnel.algorithm import Algorithm
from runnel.config import serialization
from runnel.errors import UserError
from runnel.execution.building import BuiltRun
from runnel.execution.policies.stored_policies import StoredPolicy
from runnel.graph.rollout_act import rollout_act
from runnel.policy.acting_parameters import same_acting
from runnel.recording.parameters import check_fit, parameter_leaves
from runnel.types import PyTree


def frozen_parameters(
    built: BuiltRun, group: str, fresh: PyTree, stored: StoredPolicy
) -> tuple[dict[str, Any], list[str]]:
    """The parameters that a group acts with, by name, and warnings for the user. `fresh`: a state of the group."""
    algorithm = built.algorithm.for_group(group)
    own, found = serialization.to_json(algorithm), stored.config.algorithm
    if _class_of(found) != _class_of(own):
        raise UserError(
            f"frozen=: {stored.where} is a policy of {_class_of(found)}, expected one of {_class_of(own)}, as this run "
            f"trains; {group}=RUN_DIR@TAG in place of the algorithm acts with a policy of any",
            keywords=("frozen",),
            page="use-a-policy#start-another-run-from-it",
        )
    if stored.config.precision != built.graph.precision:
        raise UserError(
            f"frozen=: {stored.where} was trained with precision={stored.config.precision}, found "
            f"precision={built.graph.precision}, with which it would choose other actions; expected the same",
            keywords=("frozen", "precision"),
        )
    wanted = {name: leaf for name, leaf in parameter_leaves(fresh).items() if name.startswith("params")}
    arrays = stored.arrays()
    check_fit(arrays, wanted, stored.where)
    settings = found.get("settings")
    differ = _differing(own["settings"], settings if isinstance(settings, Mapping) else {}, type(algorithm))
    notes = [f"acts with {stored.where} and does not learn"]
    if changed := settings_that_change_acting(built, group, differ, explore=False):
        raise UserError(
            f"frozen=: with the settings of this run {stored.where} would choose other actions: "
            f"{_listed(own['settings'], differ, changed)}",
            keywords=("frozen",),
        )
    if changed := settings_that_change_acting(built, group, differ, explore=True):
        notes.append(
            f"explores as this run does, not as it was trained to: {_listed(own['settings'], differ, changed)}"
        )
    return {name: arrays[name] for name in wanted}, notes


def _class_of(algorithm: Mapping[str, Any]) -> str:
    return str(algorithm.get("class") or algorithm.get("unavailable"))


def _differing(own: Mapping[str, Any], found: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """The stored settings that differ from those of the run, as JSON. One that an older version did not have is the
    default."""
    defaults = {f.name: list(f.default) if isinstance(f.default, tuple) else f.default for f in dataclasses.fields(cls)}
    stored = {name: found.get(name, defaults[name]) for name in own}
    return {name: value for name, value in stored.items() if value != own[name] and value is not dataclasses.MISSING}


def settings_that_change_acting(built: BuiltRun, group: str, differ: Mapping[str, Any], explore: bool) -> list[str]:
    """The settings that change the actions of the policy."""
    plain, unknown = {}, []
    for name, value in differ.items():
        try:
            plain[name] = serialization.plain_value(value)
        except UserError:  # nothing of a stored policy is imported to compare it
            unknown.append(name)
    if not plain or _acts_alike(built, group, plain, explore):
        return unknown
    alone = [name for name, value in plain.items() if not _acts_alike(built, group, {name: value}, explore)]
    return [*(alone or plain), *unknown]


def _acts_alike(built: BuiltRun, group: str, settings: Mapping[str, Any], explore: bool) -> bool:
    spec, own = built.graph.spec.groups[group], built.algorithm.for_group(group)
    try:
        other: Algorithm = dataclasses.replace(own, **settings)  # type: ignore[type-var]
        acts = [(each, rollout_act(each, group, spec)) for each in (own, other)]
        return same_acting(acts[0], acts[1], spec, group, explore)
    except Exception:  # one setting does not go without another, or the file was edited
        return False


def _listed(own: Mapping[str, Any], differ: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name} (found {_short(own[name])}, trained with {_short(differ[name])})" for name in names)


def _short(value: Any) -> str:
    return repr(value)[:60]
