"""Starting a run from the parameters of stored policies (`--init-from`).

Parameters are matched by their names. The optimiser starts fresh, and so do a learner's own counters, such as the one
that its learning rate follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from runnel.config import serialization
from runnel.errors import UserError, nearest
from runnel.execution.building import BuiltRun
from runnel.execution.stored_policies import Source, StoredPolicy, find
from runnel.recording.parameters import as_leaf, check_fit, parameter_leaves, path_name, stored_type
from runnel.runtime.programs.loop import Loop
from runnel.types import PyTree

SHOWN = 6
"""How many names a line lists."""


class WarmStart(NamedTuple):
    """The states to begin with, and what the user should know about them."""

    states: dict[str, PyTree]  # by group: whole states; groups that start fresh are not in it
    notes: tuple[str, ...]


def warm_start(
    built: BuiltRun, seed: int, init_from: Source | Mapping[str, Source] | None,
    frozen: Mapping[str, Source] | None = None,
) -> WarmStart:  # fmt: skip
    """The first states of a run. `init_from`: one source for all groups that learn, or one for each of some groups.

    `frozen`: the policies of groups that do not learn, which must fit in every parameter.
    """
    groups, frozen = list(built.graph.states), frozen or {}
    learning = [group for group in groups if group not in frozen]
    sources: dict[str, Any] = {} if init_from is None else dict.fromkeys(learning, init_from)
    sources = dict(init_from) if isinstance(init_from, Mapping) else sources
    states, notes = {}, []
    for group, source in [*sources.items(), *frozen.items()]:
        if group not in groups:
            raise UserError(f"init_from=: there is no group '{group}'{nearest(group, groups)}", keywords=("init_from",))
        stored = _of_group(find(source), group)
        fresh = Loop(built.graph).init_state(jax.numpy.uint32(seed), group)
        states[group], said = _frozen(built, fresh, stored) if group in frozen else _filled(fresh, stored)
        notes += [f"{group}: {text}" if len(groups) > 1 else text for text in said]
    return WarmStart(states, tuple(notes))


def _frozen(built: BuiltRun, fresh: PyTree, stored: StoredPolicy) -> tuple[PyTree, list[str]]:
    """The state of a group that acts with a stored policy."""
    own, found = serialization.to_json(built.algorithm), stored.config.algorithm
    if found.get("class") != own.get("class"):
        raise UserError(
            f"frozen=: {stored.where} is a policy of {found.get('class')}, expected one of {own.get('class')}, as this "
            "run trains",
            keywords=("frozen",),
        )
    wanted = {name: leaf for name, leaf in parameter_leaves(fresh).items() if name.startswith("params")}
    arrays = stored.arrays()
    check_fit(arrays, wanted, stored.where)
    return _replaced(fresh, {name: arrays[name] for name in wanted}), [f"acts with {stored.where} and does not learn"]


def _of_group(found: Mapping[str, StoredPolicy], group: str) -> StoredPolicy:
    """The policy for a group: that of the same name, or the only one."""
    if group in found:
        return found[group]
    if len(found) == 1:
        return next(iter(found.values()))
    raise UserError(
        f"init_from=: there is no policy of group '{group}' among {', '.join(found)}; name the groups: "
        "{'GROUP': 'RUN_DIR@TAG'}",
        keywords=("init_from",),
    )


def _filled(fresh: PyTree, stored: StoredPolicy) -> tuple[PyTree, list[str]]:
    """A fresh state with the parameters that a stored policy has for it; and which it has not."""
    arrays, wanted = stored.arrays(), parameter_leaves(fresh)
    taken, misfits, missing = {}, [], []
    for name, leaf in wanted.items():
        if _counts(name, leaf):
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
        raise UserError(f"init_from=: no parameter of {stored.where} fits this run: {reason}", keywords=("init_from",))
    counters = [name for name, leaf in wanted.items() if _counts(name, leaf)]
    whole = len(wanted) - len(counters)
    fresh_too = f", as do the counters {_some(counters)}" if counters else ""
    notes = [f"{len(taken)} of {whole} parameters are those of {stored.where}; the optimiser starts fresh{fresh_too}"]
    notes += [f"they do not fit and start fresh: {_some(misfits)}"] if misfits else []
    notes += [f"not stored, start fresh: {_some(missing)}"] if missing else []
    return _replaced(fresh, taken), notes


def _counts(name: str, leaf: Any) -> bool:
    """Whether a leaf is a counter of the learner's own, which begins with the run."""
    integer = jax.numpy.issubdtype(leaf.dtype, jax.numpy.integer)
    return not leaf.shape and bool(integer) and not name.startswith("params")


def _replaced(state: PyTree, taken: Mapping[str, np.ndarray]) -> PyTree:
    """A state with other values under these names."""

    def pick(path: Any, leaf: Any) -> Any:
        name = path_name(path)
        return as_leaf(taken[name], leaf) if name in taken else leaf

    return jax.tree_util.tree_map_with_path(pick, state)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
