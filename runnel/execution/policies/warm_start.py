"""Starts a run with the parameters of stored policies (`--init-from`).

Parameters are matched by their names. The optimiser starts fresh, and so do a learner's own counters, such as the one
that its learning rate or its exploration follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from runnel.errors import UserError, nearest
from runnel.execution.building import BuiltRun
from runnel.execution.policies.frozen_policies import frozen_parameters
from runnel.execution.policies.stored_policies import Source, StoredPolicy, find
from runnel.policy.acting_parameters import acting_names
from runnel.recording.events import EventLog
from runnel.recording.parameters import as_leaf, check_fit, parameter_leaves, path_name, stored_type
from runnel.runtime.programs.loop import Loop
from runnel.types import PyTree

SHOWN = 6
"""The number of names that a line lists. All of them are in `events.jsonl`."""


class WarmStart(NamedTuple):
    """The initial states, and warnings for the user."""

    states: dict[str, PyTree]  # by group: whole states; groups that start fresh are not in it
    notes: tuple[str, ...]
    matched: dict[str, MatchedLeaves]  # by group: the leaves that notes list the first of


class MatchedLeaves(NamedTuple):
    """How the leaves of a group's state, by name, match a stored policy."""

    source: str  # where the policy is stored
    stored: list[str]  # as they were stored
    counters: list[str]  # start fresh: they count what the learner has done
    misfits: list[str]  # start fresh: found and expected type
    missing: list[str]  # start fresh: not stored


def warm_start(
    built: BuiltRun, seed: int, init_from: Source | Mapping[str, Source] | None,
    frozen: Mapping[str, Source] | None = None,
) -> WarmStart:  # fmt: skip
    """The first states of a run. `init_from`: one source for all groups that learn, or one for each of some groups.

    `frozen`: the policies of groups that do not learn, which must fit in every parameter.
    """
    groups, frozen = list(built.graph.states), frozen or {}
    learning = [group for group in built.graph.learning_groups if group not in frozen]
    sources: dict[str, Any] = {} if init_from is None else dict.fromkeys(learning, init_from)
    sources = dict(init_from) if isinstance(init_from, Mapping) else sources
    states, notes, matched = {}, [], {}
    for group, source in [*sources.items(), *frozen.items()]:
        if group not in groups:
            raise UserError(f"init_from=: there is no group '{group}'{nearest(group, groups)}", keywords=("init_from",))
        stored = _of_group(find(source), group, "frozen" if group in frozen else "init_from")
        fresh = Loop(built.graph).init_state(jax.numpy.uint32(seed), group)
        if group in frozen:
            taken, said = frozen_parameters(built, group, fresh, stored)
        else:
            taken, said, matched[group] = _that_fit(fresh, stored, _counters(built, group, fresh))
        states[group] = _replaced(fresh, taken)
        notes += [f"{group}: {text}" if len(groups) > 1 else text for text in said]
    return WarmStart(states, tuple(notes), matched)


def record_matched(run_dir: Path, matched: Mapping[str, MatchedLeaves]) -> None:
    """Records all leaves by name: the notes list the first of them."""
    if matched:
        groups = {group: leaves._asdict() for group, leaves in matched.items()}
        EventLog(run_dir).record("warm_start", action="training begins", groups=groups)


def fitted_parameters(like: PyTree, stored: StoredPolicy) -> PyTree:
    """The parameters of a stored policy, for acting as those of the state `like` do; refused where they do not fit."""
    wanted = {name: leaf for name, leaf in parameter_leaves(like).items() if name.startswith("params")}
    arrays = stored.arrays()
    check_fit(arrays, wanted, stored.where)
    return _replaced(like, {name: arrays[name] for name in wanted}).params


def with_parameters(fresh: PyTree, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """A fresh state with those of its parameters that were stored."""
    return _replaced(fresh, {name: arrays[name] for name in parameter_leaves(fresh) if name in arrays})


def _of_group(found: Mapping[str, StoredPolicy], group: str, keyword: str) -> StoredPolicy:
    """The policy for a group: that of the same name, or the only one."""
    if group in found:
        return found[group]
    if len(found) == 1:
        return next(iter(found.values()))
    raise UserError(
        f"{keyword}=: there is no policy of group '{group}' among {', '.join(found)}; name the groups: "
        "{'GROUP': 'RUN_DIR@TAG'}",
        keywords=(keyword,),
    )


def _counters(built: BuiltRun, group: str, fresh: PyTree) -> list[str]:
    """The leaves that count what the learner has done, and begin with the run: whole numbers, except for those that
    actions depend on even without exploring."""
    act: Any = next(node.function for node in built.graph.of_kind("act") if node.group == group)
    needed = acting_names(
        built.algorithm.for_group(group), act, built.graph.spec.groups[group], fresh, explores=(False,)
    )
    return [
        name
        for name, leaf in parameter_leaves(fresh).items()
        if not leaf.shape and jax.numpy.issubdtype(leaf.dtype, jax.numpy.integer) and name not in needed
    ]


def _that_fit(
    fresh: PyTree, stored: StoredPolicy, counters: list[str]
) -> tuple[dict[str, np.ndarray], list[str], MatchedLeaves]:
    """The stored parameters for a fresh state, by name; warnings for the user; and how all leaves match."""
    arrays, wanted = stored.arrays(), parameter_leaves(fresh)
    taken, misfits, missing = {}, [], []
    for name, leaf in wanted.items():
        if name in counters:
            continue
        if name not in arrays:
            missing.append(name)
        elif (arrays[name].shape, arrays[name].dtype) != stored_type(leaf):
            found, (shape, dtype) = arrays[name], stored_type(leaf)
            misfits.append(f"{name} ({found.dtype}{list(found.shape)}, expected {dtype}{list(shape)})")
        else:
            taken[name] = arrays[name]
    if not any(name.startswith("params") for name in taken):
        reason = _some(misfits) or f"it has {_some(list(arrays))}, expected {_some(list(wanted))}"
        raise UserError(
            f"init_from=: no parameter of {stored.where} fits this run: {reason}",
            keywords=("init_from",),
            page="use-a-policy#start-another-run-from-it",
        )
    whole = len(wanted) - len(counters)
    which = "does the counter" if len(counters) == 1 else "do the counters"
    fresh_too = f", as {which} {_some(counters)}" if counters else ""
    notes = [f"{len(taken)} of {whole} parameters are those of {stored.where}; the optimiser starts fresh{fresh_too}"]
    notes += [f"they do not fit and start fresh: {_some(misfits)}"] if misfits else []
    notes += [f"not stored, start fresh: {_some(missing)}"] if missing else []
    return taken, notes, MatchedLeaves(stored.where, list(taken), counters, misfits, missing)


def _replaced(state: PyTree, taken: Mapping[str, np.ndarray]) -> PyTree:
    """A state with other values under these names."""

    def pick(path: Any, leaf: Any) -> Any:
        name = path_name(path)
        return as_leaf(taken[name], leaf) if name in taken else leaf

    return jax.tree_util.tree_map_with_path(pick, state)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
