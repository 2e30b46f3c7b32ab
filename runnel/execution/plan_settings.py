"""Settings that an algorithm leaves to the plan, such as PPO's `advantages=auto`.

`Algorithm.for_staleness` fills them in for the plan's bound on the staleness of samples. The result is what runs, and
config.json has it among the settings. The settings that the user gave are stored beside it (`asked`), for a resumption
under another distribution. A setting of a group's own algorithm is named `GROUP.setting`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from runnel.algorithm import Algorithm, PerGroup, algorithm_name
from runnel.config import serialization
from runnel.config import settings as fields
from runnel.errors import UserError
from runnel.graph.nodes import Graph
from runnel.planning.plan import Plan

ASKED: Final = "asked"
"""The key in config.json, beside an algorithm's `settings`."""

AlgorithmT = TypeVar("AlgorithmT", bound=Algorithm)


class Decided(NamedTuple):
    """An algorithm whose settings the plan has decided."""

    algorithm: Algorithm
    graph: Graph
    plan: Plan
    asked: dict[str, Any]  # by setting that the plan decided: what the user asked for
    notes: tuple[str, ...]


def decide(
    algorithm: Algorithm, asked: Mapping[str, Any], planned: Callable[[Algorithm], tuple[Graph, Plan]], waits: bool
) -> Decided:
    """Fills in an algorithm's settings for the plan that is built for it.

    `asked`: for a resumed run, the settings that the user gave; the earlier decision is kept unless samples may now be
    older than it tolerates. `waits`: the plan is expected to have no stale samples, so that the graph is traced only
    once.
    """
    open_, kept = undecided(algorithm, asked), algorithm if asked else None
    if waits:
        chosen = kept or _settled(open_, dict.fromkeys(_groups(open_), 0))
        graph, plan = planned(chosen)
        if not any(plan.staleness_updates.values()):
            return _described(open_, algorithm, chosen, graph, plan)
    graph, plan = planned(open_)
    bounds = plan.staleness_updates
    tolerated = kept is not None and all(kept.for_group(g).max_staleness >= n for g, n in bounds.items())
    chosen = kept if kept is not None and tolerated else _settled(open_, bounds)
    if chosen is not open_:
        graph, plan = planned(chosen)
    return _described(open_, algorithm, chosen, graph, plan)


def undecided(algorithm: AlgorithmT, asked: Mapping[str, Any]) -> AlgorithmT:
    """The algorithm with the settings that the user gave, before a plan decided."""
    if not asked:
        return algorithm
    if isinstance(algorithm, PerGroup):
        own: dict[str, dict[str, Any]] = {}
        for name, value in asked.items():
            group, _, setting = name.partition(".")
            own.setdefault(group, {})[setting] = value
        for group in own:
            algorithm.for_group(group)  # refused where there is none
        made = {group: undecided(each, own.get(group, {})) for group, each in algorithm.algorithms.items()}
        return dataclasses.replace(algorithm, algorithms=made)
    known = fields.hints_of(type(algorithm))
    for name, value in asked.items():
        if name not in known:
            raise UserError(f"{type(algorithm).__name__} has no setting '{name}', which its run asked for")
        _, expected = fields.check_field(type(algorithm), name, value)
        if expected:
            raise UserError(f"{type(algorithm).__name__}: its run asked for {name}={value!r}, expected {expected}")
    try:
        return dataclasses.replace(algorithm, **asked)  # pyright: ignore[reportArgumentType]: every one is a dataclass
    except (TypeError, ValueError) as error:
        raise UserError(f"{type(algorithm).__name__}: {error}") from None


def asked_in(part: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the user gave, from an algorithm's part of config.json. Their values name no code."""
    asked = part.get(ASKED, {})
    if not isinstance(asked, Mapping):
        raise UserError(f"found {ASKED}={str(asked)[:60]!r} of an algorithm, expected settings by name")
    return {str(name): serialization.plain_value(value) for name, value in asked.items()}


def to_json(algorithm: Algorithm, asked: Mapping[str, Any]) -> dict[str, Any]:
    """An algorithm's part of config.json, with the given values of settings that the plan decided."""
    return {**serialization.to_json(algorithm), **({ASKED: dict(asked)} if asked else {})}


def _described(open_: Algorithm, given: Algorithm, chosen: Algorithm, graph: Graph, plan: Plan) -> Decided:
    changed, before = dict(_changes(open_, chosen)), dict(_changes(open_, given))
    oldest = max(plan.staleness_updates.values(), default=0)
    notes = tuple(
        _note(name, *pair, before.get(name), plan.staleness_updates.get(name.rpartition(".")[0], oldest))
        for name, pair in changed.items()
    )
    plan = dataclasses.replace(plan, notes=(*plan.notes, *notes))
    return Decided(chosen, graph, plan, {name: was for name, (was, _) in changed.items()}, notes)


def _settled(algorithm: Algorithm, staleness: Mapping[str, int]) -> Algorithm:
    if isinstance(algorithm, PerGroup):
        made = {group: _settled(each, {group: staleness[group]}) for group, each in algorithm.algorithms.items()}
        same = all(made[group] is each for group, each in algorithm.algorithms.items())
        return algorithm if same else dataclasses.replace(algorithm, algorithms=made)
    found = algorithm.for_staleness(max(staleness.values(), default=0))  # groups that share it: that of the stalest
    if type(found) is not type(algorithm):
        raise UserError(
            f"{algorithm_name(algorithm)}.for_staleness returns a {type(found).__name__}, expected itself, or "
            "the same class with other settings"
        )
    return found


def _groups(algorithm: Algorithm) -> list[str]:
    return list(algorithm.algorithms) if isinstance(algorithm, PerGroup) else [""]


def _changes(asked: Algorithm, chosen: Algorithm) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The settings that the plan changed, which are plain values: as given, and as decided."""
    if asked is chosen:
        return
    if isinstance(asked, PerGroup):
        for group, each in asked.algorithms.items():
            for name, pair in _changes(each, chosen.for_group(group)):
                yield f"{group}.{name}", pair
        return
    for field in dataclasses.fields(asked):  # pyright: ignore[reportArgumentType]: every algorithm is a dataclass
        was, now = getattr(asked, field.name), getattr(chosen, field.name)
        if was is not now and isinstance(was, bool | int | float | str | None) and was != now:
            yield field.name, (was, now)


def _note(name: str, was: Any, now: Any, before: tuple[Any, Any] | None, staleness: int) -> str:
    """A note on the decision. `before`: the given and decided values when the run began; None if it begins now."""
    updates = "an update" if staleness == 1 else f"{staleness} updates"
    old = f"samples may be {updates} old" if staleness else "no sample is old"
    shown, asked = fields.default_text(now), f"{name}={fields.default_text(was)}"
    if before is None:
        return f"{asked} is {shown} here: {old}"
    if before[1] == now:
        return f"{asked} is {shown}, as the run began"
    return f"{asked} is now {shown} instead of {fields.default_text(before[1])}: {old}"
