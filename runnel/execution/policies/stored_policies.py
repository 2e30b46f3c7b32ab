"""Finds stored policies by name: `RUN_DIR@TAG`, a run, a snapshot, or a directory that `Policy.save` wrote."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runnel import distributions
from runnel.algorithm import Algorithm
from runnel.config.policy_config import PolicyConfig
from runnel.errors import UserError, a, nearest
from runnel.execution.building import BuiltRun, rebuild
from runnel.execution.run import Run, of_run, unsound
from runnel.execution.snapshots.descriptions import described_policies
from runnel.policy import Policy
from runnel.recording import member_checkpoints, members_file, policy_directory, run_directory
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.parameters import as_numpy, parameter_leaves
from runnel.recording.policy_store import LATEST, PolicyStore, Snapshot
from runnel.types import PyTree

Source = str | Path | Run | Snapshot | PolicyStore | Policy


@dataclass(frozen=True)
class StoredPolicy:
    """A policy on disk: its description, and a function that reads its parameters."""

    config: PolicyConfig
    arrays: Callable[[], Mapping[str, np.ndarray]]
    directory: Path  # that of the run, or its own
    where: str  # what errors call it
    algorithm: Algorithm | None = None  # of a `Run` whose class no other process can import


def split_name(name: str | Path, tag: str = LATEST) -> tuple[Path, str]:
    """The directory and the tag of `RUN_DIR@TAG`; a directory whose own name has an `@` is taken as it is."""
    if os.path.exists(name):  # False, too, for what no file system takes as a name
        return Path(name), tag
    path, at, named = str(name).rpartition("@")
    if not at or not path:
        raise UserError(run_directory.absent(name), page="use-a-policy#load-it-and-act")
    if not os.path.exists(path):
        raise UserError(run_directory.absent(path), page="use-a-policy#load-it-and-act")
    if not named:
        raise UserError(f"found '{name}', expected a tag after the '@', such as {path}@{LATEST}")
    if tag not in ("", LATEST, named):
        raise UserError(f"found '{name}' beside tag='{tag}', expected one of them", keywords=("tag",))
    return Path(path), named


def of_member(source: Source, member: int | None) -> Source:
    """The run of one member, where a source is a directory of several runs, `DIR` or `DIR@TAG`; else the source."""
    if member is None:
        return source
    if not isinstance(source, str | Path):
        raise UserError(
            f"member={member}: found {a(source)}, expected the path of a directory of several runs",
            keywords=("member",),
        )
    directory, tag = split_name(source, "")
    found = member_checkpoints.directory_of(directory, member)
    return f"{found}@{tag}" if tag else found


def find(
    source: Source, tag: str = LATEST, group: str | None = None, algorithm: Algorithm | None = None,
    note: Callable[[str], None] = lambda text: None, built: BuiltRun | None = None,
) -> dict[str, StoredPolicy]:  # fmt: skip
    """The stored policies that a name refers to, by group. Imports nothing, unless a run has stored no policies.

    `note` is called with warnings for the user. `built`: the run, if it is built already.
    """
    if isinstance(source, PolicyStore):
        source = source.run_dir
    if isinstance(source, Snapshot):
        return {source.group: _of_snapshot(source, algorithm)}
    if isinstance(source, Policy):
        stored = StoredPolicy(source.config, lambda: source.arrays, Path(), "the policy", source.algorithm)
        return {source.config.group: stored}
    run = source if isinstance(source, Run) else None
    directory, tag = (run.run_dir, tag) if run is not None else split_name(source, tag)  # type: ignore[arg-type]
    if run is None:
        members_file.refuse_several(directory)
        member_checkpoints.take_out(directory)
    if run is None and (names := policy_directory.names_in(directory)):
        return _saved(directory, names, tag, group, algorithm)
    store = PolicyStore(directory)
    if tag == LATEST and not store.query():
        return _of_checkpoint(run or directory, group, algorithm, note, built)
    held = run.built.algorithm if run is not None and run.built is not None else algorithm
    return {each: _of_snapshot(snapshot, held) for each, snapshot in store.find(tag, group).items()}


NOT_LEARNT = (":OpponentPool", ":Scripted")
"""The names of classes that act for groups that do not learn."""


def learnt(found: Mapping[str, StoredPolicy]) -> dict[str, StoredPolicy]:
    """The trained ones among several policies; all if none was trained."""
    own = {g: each for g, each in found.items() if not str(each.config.algorithm.get("class")).endswith(NOT_LEARNT)}
    return own or dict(found)


def _saved(
    directory: Path, names: Sequence[str], tag: str, group: str | None, algorithm: Algorithm | None
) -> dict[str, StoredPolicy]:
    """A directory that holds a policy, or one for each of several groups, and nothing else."""
    if tag != LATEST:
        raise UserError(f"{directory} holds one policy for each group, and no '{tag}'; leave the tag out")
    found = {}
    for name in names:
        config = policy_directory.read_config(directory, name)
        arrays = functools.partial(policy_directory.read_arrays, directory, name, config)
        own = None if algorithm is None else algorithm.for_group(config.group)
        found[config.group] = StoredPolicy(config, arrays, directory, str(directory / name), own)
    if group is not None and group not in found:
        raise UserError(f"{directory} has no policy of group '{group}'{nearest(group, found)}")
    return found if group is None else {group: found[group]}


def _of_snapshot(snapshot: Snapshot, algorithm: Algorithm | None) -> StoredPolicy:
    own = None if algorithm is None else algorithm.for_group(snapshot.group)
    return StoredPolicy(snapshot.config, snapshot.arrays, snapshot.run_dir, str(snapshot.path), own)


def _of_checkpoint(
    run: Path | Run, group: str | None, algorithm: Algorithm | None, note: Callable[[str], None], built: BuiltRun | None
) -> dict[str, StoredPolicy]:
    """The policies in the newest checkpoint of a run that stored none. Creates the environment to know its spaces."""
    directory, config, given = of_run(run, algorithm, None)
    built = built or rebuild(directory, config, distributions.default_for("host"), **given)
    counters: dict[str, Any] = {}

    def refuse(states: PyTree, found: dict[str, Any]) -> str | None:
        counters.update(found)
        return unsound(built, config["seed"], states, found)

    states, checkpoint = Checkpoints(directory).load_states(built.graph.states, note, refuse)
    if group is not None and group not in states:
        raise UserError(f"{directory} has no policy of group '{group}'{nearest(group, states)}")
    described = described_policies(built, config)
    env_steps, updates = int(counters.get("env_steps", 0)), int(counters.get("updates", 0))
    return {
        each: StoredPolicy(
            replace(described[each], env_steps=env_steps, version=updates // len(states)),
            lambda state=state: {name: as_numpy(leaf) for name, leaf in parameter_leaves(state).items()},
            directory,
            str(checkpoint),
            built.algorithm.for_group(each),
        )
        for each, state in states.items()
        if group in (None, each)
    }


def describe(stored: Mapping[str, StoredPolicy]) -> dict[str, Any]:
    """The version, steps and place of the policies, for results that used them."""
    (first, *_) = stored.values()
    return {"version": first.config.version, "env_steps": first.config.env_steps, "policy": first.where}
