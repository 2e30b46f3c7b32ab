"""An algorithm for each group of agents, as users write it: `prey=ppo,predator=dqn`.

A group has an algorithm by its name, a function that it follows (`package.module:function`), or a stored policy
(`RUN_DIR@TAG`). Groups of the last two kinds act and do not learn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runnel import algorithms
from runnel.algorithm import Algorithm, PerGroup
from runnel.algorithms.opponent_pool import OpponentPool
from runnel.algorithms.scripted import Scripted
from runnel.config import run_config, serialization
from runnel.config import settings as fields
from runnel.envs import seats
from runnel.errors import UserError, nearest
from runnel.execution import trust
from runnel.execution.building import chosen_algorithm
from runnel.execution.policies.stored_policies import StoredPolicy, find, learnt, split_name
from runnel.matchmaking import Fixed

GROUP: Final = re.compile(r"[^=,/\\:@]+=.+")
"""The beginning of a text that names an algorithm for each group."""


def is_per_group(algorithm: Any) -> bool:
    return isinstance(algorithm, Mapping) or (isinstance(algorithm, str) and GROUP.match(algorithm) is not None)


def by_group(algorithm: Mapping[str, Any] | str) -> dict[str, Any]:
    """The text or object that a user has given for each group."""
    if isinstance(algorithm, Mapping):
        return dict(algorithm)
    found: dict[str, Any] = {}
    for part in algorithm.split(","):
        group, equals, name = part.partition("=")
        if not equals or not group or not name:
            raise UserError(
                f"algorithm '{algorithm}': found '{part}', expected GROUP=NAME, as in prey=ppo,predator=dqn"
            )
        if group in found:
            raise UserError(f"algorithm '{algorithm}': found group '{group}' twice, expected each once")
        found[group] = name
    return found


def parse_settings(algorithm: str, pairs: Sequence[str]) -> dict[str, Any]:
    """`--set GROUP.key=value` as values of each algorithm's types, by `GROUP.key`."""
    groups, found = by_group(algorithm), {}
    for pair in pairs:
        group, dot, rest = pair.partition(".")
        if not dot or group not in groups:
            raise UserError(f"--set {pair}: expected GROUP.key=value{nearest(group, groups)}")
        if not _is_learning(groups[group]):
            raise UserError(f"--set {pair}: group '{group}' does not learn, and has no settings")
        parsed = fields.parse(algorithms.load(groups[group]), [rest], groups[group])
        found |= {f"{group}.{key}": value for key, value in parsed.items()}
    return found


def resolved(algorithm: Any, environment: Any, settings: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any] | None]:
    """The arguments of `build` for an algorithm and its settings; algorithms by group become one algorithm.

    Settings of a group's algorithm are given by `GROUP.key`. Any other algorithm is returned as it is.
    """
    if not is_per_group(algorithm):
        return algorithm, None if settings is None else dict(settings)
    return _per_group(by_group(algorithm), environment, settings or {}), None


def _per_group(groups: dict[str, Any], environment: Any, given: Mapping[str, Any]) -> PerGroup:
    for name in given:
        if name.partition(".")[0] not in groups or "." not in name:
            raise UserError(f"settings: found '{name}', expected GROUP.key{nearest(name.partition('.')[0], groups)}")

    def one(group: str, value: Any) -> Algorithm:
        own = {name.removeprefix(f"{group}."): each for name, each in given.items() if name.startswith(f"{group}.")}
        if _is_learning(value):
            return chosen_algorithm(value, environment, own)
        if own:
            raise UserError(f"settings: group '{group}' does not learn, and has no setting '{next(iter(own))}'")
        return _scripted(value) if callable(value) or _is_path(value) else _stored(group, value)

    made = {group: one(group, value) for group, value in groups.items()}
    if not any(each.learns for each in made.values()):
        raise UserError(f"algorithm: found no group that learns among {', '.join(made)}, expected one or more")
    learning = {group: each for group, each in made.items() if each.learns}
    return PerGroup({**learning, **made})  # those that learn first: they say how long an unroll is


def _is_learning(value: Any) -> bool:
    """Whether it is an algorithm, by name, class or instance."""
    if isinstance(value, Algorithm) or (isinstance(value, type) and issubclass(value, Algorithm)):
        return True
    if not isinstance(value, str) or algorithms.known_as(value) in algorithms.REGISTRY:
        return isinstance(value, str)
    if _is_path(value):
        found = serialization.import_object(value)
        return isinstance(found, type) and issubclass(found, Algorithm)
    return not {"@", "/"} & set(value) and not Path(value).is_dir()  # `algorithms.load` says what is wrong with it


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and "@" not in value and serialization.split(value) is not None


def _scripted(value: Any) -> Scripted:
    function = serialization.import_object(value) if isinstance(value, str) else value
    if not callable(function):
        raise UserError(f"found {value}, expected an algorithm or a function(observation, key) that returns an action")
    return Scripted(function)


def _stored(group: str, source: Any) -> OpponentPool:
    """The algorithm of a group for which a stored policy acts."""
    directory, tag = split_name(source, "latest")
    key = f"{Path(directory).absolute()}@{tag}"
    stored = policy_of(key, group)
    file = f"{stored.where}/config.json"
    trust.admit(stored.directory, stored.config.to_json(), (), ("algorithm",), file)
    policy = stored.algorithm or serialization.from_json(stored.config.algorithm, Algorithm)
    return OpponentPool(policy, Fixed(keys=(key,), places=1, every=run_config.MOST_STEPS))


def policy_of(source: Any, group: str) -> StoredPolicy:
    """The stored policy for a group: that of the group of the same name, or the only one.

    The opponent in a symmetric game plays as the learners do, so it may be any policy that has learnt.
    """
    stored = find(source)
    found = learnt(stored)
    if group in stored and group not in found and group != seats.OPPONENT:
        raise UserError(f"{source}: group '{group}' has not learnt there, expected a policy that has")
    if group in found:
        return found[group]
    if len(found) == 1:
        return next(iter(found.values()))
    raise UserError(
        f"{source}: found policies of the groups {', '.join(found)}, expected one of '{group}', or only one"
    )
