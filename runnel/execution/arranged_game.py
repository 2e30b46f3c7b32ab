"""The seats or line-ups of a run with opponents, and an algorithm for each group.

| game | groups that learn | pools |
|---|---|---|
| players that are alike | `player`, which keeps the group's name | `opponent` |
| the same, in a league | the learners of the league: `main`, `main-exploiter`, ... | `main-opponent`, ... |
| two roles | `row`, `column` | `row-past`, `column-past` |

In a game of two roles, the newest policies of both play each other in a share of the environments, and both learn. In
the others, one of them learns and past policies of the other play.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from runnel.algorithm import Algorithm, PerGroup
from runnel.algorithms.opponent_pool import OpponentPool
from runnel.envs import lineups, seats
from runnel.envs.lineups import Lineups
from runnel.errors import UserError
from runnel.matchmaking import Matchmaker
from runnel.types import EnvSpec

PATTERNS: Final = {0.0: (0, 1), 0.25: (2, 3), 0.5: (2, 1), 0.75: (6, 1)}
"""For each share of environments in which the newest policies meet: the numbers of line-ups with them, and with each
past."""

MOST_LEARNERS: Final = 64
"""The largest number of learners in a league."""


class ArrangedGame(NamedTuple):
    """The algorithms and environment settings of a run with opponents."""

    algorithm: PerGroup
    seats: int | None  # that learn, where they are still to be divided
    lineups: Lineups | None
    env_settings: dict[str, Any]  # the same, for other processes that create the environment


def arranged_game(
    spec: EnvSpec, algorithm: Algorithm, matchmaker: Matchmaker, env_settings: Mapping[str, Any]
) -> ArrangedGame:
    """`spec`: of the environment as `env_settings` make it."""
    keys = getattr(matchmaker, "keys", None)
    if isinstance(keys, tuple):
        matchmaker = dataclasses.replace(cast(Any, matchmaker), keys=tuple(map(_absolute, keys)))
    if lineups.SETTING in env_settings:
        raise UserError(f"opponents=: found env.{lineups.SETTING}, which opponents decide; leave it out")
    divided = seats.SETTING in env_settings
    if len(spec.groups) == 1 or divided:
        if isinstance(algorithm, PerGroup):
            raise UserError("opponents=: found an algorithm for each group, expected one, which plays against itself")
        count = None if divided else 1
        seated = spec if count is None else seats.seated_spec(spec, count)
        settings = {} if count is None else {seats.SETTING: count}
        if matchmaker.groups:
            return _league(seated, algorithm, matchmaker, count, settings)
        (learner,) = (group for group in seated.groups if group != seats.OPPONENT)
        made = PerGroup({learner: algorithm, seats.OPPONENT: OpponentPool(algorithm, matchmaker, learner)})
        return ArrangedGame(made, count, None, settings)
    if matchmaker.groups:
        raise UserError(
            f"opponents=: a league needs a symmetric game: {spec.name} has the groups {', '.join(spec.groups)}, "
            "expected one; choose another matchmaker, such as pfsp"
        )
    return _two_roles(spec, algorithm, matchmaker)


def _league(
    spec: EnvSpec, algorithm: Algorithm, matchmaker: Matchmaker, count: int | None, settings: dict[str, Any]
) -> ArrangedGame:
    """The line-ups of a league: every learner has equally many environments, and its own pool to play against."""
    members = matchmaker.groups
    if len(members) > MOST_LEARNERS or len(set(members)) < len(members):
        raise UserError(f"opponents=: found the learners {', '.join(members)[:80]}, expected at most {MOST_LEARNERS} "
                        "different names")  # fmt: skip
    found = tuple((member, f"{member}-{seats.OPPONENT}") for member in members)
    lineups.checked(found, spec)
    pools = {pool: OpponentPool(algorithm, matchmaker, member, members) for member, pool in found}
    made = PerGroup({**dict.fromkeys(members, algorithm), **pools})
    return ArrangedGame(made, count, found, {**settings, lineups.SETTING: [list(each) for each in found]})


def _two_roles(spec: EnvSpec, algorithm: Algorithm, matchmaker: Matchmaker) -> ArrangedGame:
    given = {group: algorithm.for_group(group) for group in spec.groups}
    learning = [group for group, each in given.items() if each.learns]
    if len(learning) != 2:
        raise UserError(
            f"opponents=: {spec.name} has {len(learning)} groups that learn ({', '.join(learning)}), expected two, "
            "which play each other's past; give each of the others a function or RUN_DIR@TAG",
            page="self-play#games-of-two-roles",
        )
    one, other = learning
    names = {group: f"{group}-past" for group in learning}

    def with_past(group: str) -> tuple[str, ...]:
        return tuple(names[role] if role == group else role for role in spec.groups)

    newest, past = _pattern(matchmaker)
    found = (*[tuple(spec.groups)] * newest, *[with_past(other), with_past(one)] * past)
    # Those that are newest meet in environments of their own, and not also in those of the past.
    own = dataclasses.replace(cast(Any, matchmaker), latest_share=0.0) if newest else matchmaker
    pairs = ((one, other), (other, one))
    pools = {names[player]: OpponentPool(given[player], own, learner, (player,), player) for learner, player in pairs}
    learners = {group: given[group] for group in learning}
    made = PerGroup({**learners, **given, **pools})
    return ArrangedGame(made, None, found, {lineups.SETTING: [list(each) for each in found]})


def _pattern(matchmaker: Matchmaker) -> tuple[int, int]:
    """The number of line-ups of the newest policies, and the number with the past of each."""
    share = float(getattr(matchmaker, "latest_share", 0.0))
    if share not in PATTERNS:
        raise UserError(
            f"opponents.latest_share={share:g}: found {share:g}, expected 0, 0.25, 0.5 or 0.75 in a game of two roles, "
            "whose environments are divided by it; leave opponents out to train against the newest alone"
        )
    return PATTERNS[share]


def _absolute(key: str) -> str:
    """The name of a stored policy, which is the same in every directory; any other key as it is."""
    path, at, tag = key.rpartition("@")
    if at and path:
        return f"{Path(path).absolute()}@{tag}"
    return f"{Path(key).absolute()}@latest" if Path(key).is_dir() else key
