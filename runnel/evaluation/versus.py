"""Two policies against each other: from every seat, and from random openings.

    found = runnel.versus("runs/mine", "runs/other@best", episodes=1000, openings=100)
    print(found["score"], found["interval"])

In a symmetric game, A has one seat and B all others. In a game of several groups, A has one group, its role, and B the
others. Each deal and each opening is played with A in every seat, or role, equally often.

A wins a game where the return of its agents is higher, on average, than that of B's. That is who won in a zero-sum
game, and in any symmetric game a policy scores one half against itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runnel import envs as environments
from runnel.algorithm import algorithm_name
from runnel.config import serialization
from runnel.config.jax_config import configure_jax
from runnel.environment import Environment
from runnel.envs import lineups
from runnel.envs.lineups import LinedUpEnvironment
from runnel.envs.seats import SETTING, SeatedEnvironment
from runnel.errors import UserError
from runnel.evaluation import loading
from runnel.evaluation.match import COMPARED, Match, Seat, by_seat, summary
from runnel.evaluation.openings import Openings, draw_openings
from runnel.evaluation.seating import A, B, Hand, Seating, check_fit, policy_player
from runnel.execution import trust as trusting
from runnel.execution.policies import stored_policies
from runnel.execution.policies.stored_policies import Source
from runnel.execution.run import Run, of_run
from runnel.league import MAIN, kind_of
from runnel.policy import Policies, Policy
from runnel.recording import policy_directory
from runnel.recording.policy_store import PolicyStore, Snapshot
from runnel.system import startup
from runnel.system.exits import contained
from runnel.types import EnvSpec

MOST_EPISODES: Final = 10_000_000
MOST_MOVES: Final = 10_000
"""The longest opening."""


@dataclass(frozen=True)
class Side:
    """One of the two sides."""

    name: str  # as the user gave it
    policies: Mapping[str, Policy]  # by group


def versus(
    a: Source | Policies,
    b: Source | Policies,
    env: Any = None,
    *,
    episodes: int = 1000,
    openings: int = 0,
    opening_moves: int = 2,
    seed: int = 0,
    explore: bool = False,
    env_settings: Mapping[str, Any] | None = None,
    note: Callable[[str], None] = lambda text: None,
    trust: Collection[str] = (),
) -> dict[str, Any]:
    """Plays A against B, and returns wins, draws, losses and score of A, for each seat and in total.

    A policy is named as in `runnel.load`, or is one that was loaded. `env`: a game by its name, or an environment as
    for `train`; by default the one that A was trained on, with the settings of that run and all seats. `env_settings`
    are added to these.

    `episodes` are rounded up, so that A has every seat equally often. `openings`: the number of
    different sequences of `opening_moves` random legal moves that games begin with, each from every seat. `explore`:
    both act as in training.

    If all games of a seat are the same, as those of greedy players in a game without chance, each is played once, and
    `deterministic` is true. `note` is called with warnings for the user. `trust` is that of `runnel.load`.

    Its parameters are one list because each is a separate choice, which `runnel versus` has as a flag.
    """
    _check(episodes, openings, opening_moves)
    configure_jax()
    with contained():
        environment, label = _environment(a, env, dict(env_settings or {}), trust)
        spec = environment.spec
        if sum(agents.agents for agents in spec.groups.values()) < 2:
            raise UserError(f"{label} has 1 player, expected a game of two or more; `runnel eval` plays it")
        sides = [_side("A", a, spec, trust, note), _side("B", b, spec, trust, note)]
        seats = _seats(sides[A], sides[B], spec, explore, note)
        match = Match(environment, seats, seed, note)
        drawn = _openings(environment, openings, opening_moves, seed, note) if openings else None
        kinds = len(seats) * (1 if drawn is None else len(drawn.deal))
        rounds = math.ceil(episodes / kinds)
        # More rounds than are asked for are played only to see whether players are deterministic.
        more = rounds if explore else max(rounds, 1 + math.ceil(COMPARED / kinds))
        games = match.from_deals(more) if drawn is None else match.from_openings(drawn.deal, drawn.moves, more)
        startup.phase(f"playing {kinds * rounds} games")
        scored, deterministic = match.play(games, kinds * rounds, searching=not explore)
    exact = deterministic and drawn is None
    return {
        "a": _described(sides[A]),
        "b": _described(sides[B]),
        "environment": label,
        "seed": seed,
        "explore": explore,
        "openings": 0 if drawn is None else len(drawn.deal),
        "opening_moves": 0 if drawn is None else opening_moves,
        "deterministic": deterministic,
        **summary(scored, exact),
        "seats": [{"seat": name, **summary(own, exact)} for name, own in by_seat(scored, seats, spec)],
    }


def _openings(environment: Environment, count: int, moves: int, seed: int, note: Callable[[str], None]) -> Openings:
    startup.phase(f"drawing {count} openings")
    drawn = draw_openings(environment, count, moves, seed, symmetric=len(environment.spec.groups) == 1)
    if len(drawn.deal) < count:
        long = "1 move" if moves == 1 else f"{moves} moves"
        note(f"found {len(drawn.deal)} different openings of {long}, not {count}; these are played")
    return drawn


def _check(episodes: int, openings: int, opening_moves: int) -> None:
    for name, value, least in (
        ("episodes", episodes, 1),
        ("openings", openings, 0),
        ("opening_moves", opening_moves, 1),
    ):
        most = MOST_EPISODES if name != "opening_moves" else 10_000
        if type(value) is not int or not least <= value <= most:
            raise UserError(
                f"{name}={value}: found {value}, expected a whole number from {least} to {most}", keywords=(name,)
            )


# The environment


def _environment(a: Any, given: Any, settings: dict[str, Any], trust: Collection[str]) -> tuple[Environment, str]:
    """The game, with all its seats, and its name in messages."""
    if given is None:
        given, recorded = _trained_on(a, settings, trust)
        settings = {**recorded, **settings}
    name = environments.label(given)
    if isinstance(given, str) and environments.is_registered(given):
        for setting in (SETTING, lineups.SETTING):
            settings.pop(setting, None)  # it may not go with another setting of the user's
    startup.phase(f"making the environment {name}")
    made = environments.make(given, **settings) if isinstance(given, str) else environments.of_object(given, settings)
    return _with_all_seats(made), name


def _with_all_seats(made: Environment) -> Environment:
    """Removes a run's line-ups and learning seats: here, A and B have all seats."""
    from runnel.envs.lineups_jax import LinedUpJaxEnvironment
    from runnel.envs.seats_jax import SeatedJaxEnvironment

    for arranged in (LinedUpEnvironment, LinedUpJaxEnvironment, SeatedEnvironment, SeatedJaxEnvironment):
        made = made.environment if isinstance(made, arranged) else made
    return made


def _trained_on(a: Any, settings: Mapping[str, Any], trust: Collection[str]) -> tuple[Any, dict[str, Any]]:
    """The environment of a policy's run, and its settings there."""
    run_dir = _run_of(a)
    if run_dir is None:
        (policy, *_) = a.groups.values() if isinstance(a, Policies) else [a]
        name = policy.config.trained_on if isinstance(policy, Policy) else _directory_config(a)
        if not name or not environments.is_registered(name):
            raise UserError("A is a policy without its run, expected env=, the game to play", keywords=("env",))
        return name, {}
    directory, config, given = of_run(run_dir, None, None)
    kept = config["environment"]
    changed = {**config, "environment": {**kept, "settings": {**kept["settings"], **settings}}}
    own = [f"env.{key}={value}" for key, value in settings.items() if isinstance(value, str)]
    trusting.admit(directory, changed, [*trust, *own], ("environment",))
    made_from = given["environment"]
    if made_from is None:
        made_from = serialization.held(kept) if "unavailable" in kept else kept["name"]
    if made_from is None:
        raise UserError(
            f"{directory} was trained on {kept['unavailable']}, which no other process can import; in Python, give it: "
            "env=...",
            keywords=("env",),
        )
    return made_from, dict(kept["settings"])


def _run_of(a: Any) -> Path | Run | None:
    """The run of a policy; None of a policy alone."""
    if isinstance(a, Policy | Policies):
        return None
    if isinstance(a, Run):
        return a
    if isinstance(a, Snapshot | PolicyStore):
        return a.run_dir
    directory, _ = stored_policies.split_name(a)
    return None if policy_directory.names_in(directory) else directory


def _directory_config(a: Any) -> str:
    """The environment that the policy of a saved directory was trained on."""
    directory, _ = stored_policies.split_name(a)
    (name, *_) = policy_directory.names_in(directory)
    return policy_directory.read_config(directory, name).trained_on


# The players


def _side(who: str, source: Any, spec: EnvSpec, trust: Collection[str], note: Callable[[str], None]) -> Side:
    """The policies of one side, for the groups of the game that it covers."""
    if isinstance(source, Policy | Policies):
        found = dict(source.groups) if isinstance(source, Policies) else {source.config.group: source}
        found = {group: policy for group, policy in found.items() if policy.algorithm.learns} or found
        name, make = repr(source), lambda policy: policy
    else:
        found, name = stored_policies.find(source), _name(source)
        make = lambda stored: loading.make(stored, None, 0, trust)  # noqa: E731
        found = stored_policies.learnt(found) if len(spec.groups) == 1 else found
    if len(spec.groups) == 1:
        found = _of_one_player(name, found, set(spec.groups), note)
    policies, problem = {}, None
    for group, agents in spec.groups.items():
        chosen = found.get(group) or (next(iter(found.values())) if len(found) == 1 else None)
        if chosen is None:
            continue
        policy = make(chosen)
        try:
            check_fit(policy, agents, f"{who} ({name})", f"'{group}' of {spec.name} has")
            policies[group] = policy
        except UserError as error:
            if group in found:
                raise
            problem = error
    if not policies and problem is not None:
        raise problem
    if not policies:
        groups = ", ".join(spec.groups)
        raise UserError(
            f"{who} ({name}) has policies of {', '.join(found)}, expected one of {groups}, as {spec.name} has"
        )
    return Side(name, policies)


def _of_one_player(
    name: str, found: dict[str, Any], groups: set[str], note: Callable[[str], None]
) -> dict[str, Any]:  # fmt: skip
    """Selects among a run's policies: that of the players' group, or of a main agent in a league."""
    if len(found) == 1 or groups & set(found):
        return found
    main = next((group for group in sorted(found) if kind_of(group) == MAIN), None)
    if main is None:
        return found
    note(f"{name}: '{main}' plays, of the league's {', '.join(sorted(found))}")
    return {main: found[main]}


def _name(source: Any) -> str:
    if isinstance(source, Snapshot):
        return f"{source.run_dir}@{source.version}"
    return str(source.run_dir if isinstance(source, Run | PolicyStore) else source)


def _seats(a: Side, b: Side, spec: EnvSpec, explore: bool, note: Callable[[str], None]) -> list[Seat]:
    """All seats, or roles, that A can have while B has the others."""
    players = [{group: policy_player(policy, explore) for group, policy in side.policies.items()} for side in (a, b)]
    if len(spec.groups) == 1:
        ((group, agents),) = spec.groups.items()
        hands = [Hand(A, group, 0, 1, players[A][group]), Hand(B, group, 1, agents.agents, players[B][group])]
        seating = Seating(spec, hands, rotates=True)
        return [Seat(f"seat {number + 1}", seating, number) for number in range(agents.agents)]
    found, missing = [], []
    for number, role in enumerate(spec.groups):
        others = [group for group in spec.groups if group != role]
        lacking = [("A", role)] if role not in players[A] else []
        lacking += [("B", group) for group in others if group not in players[B]]
        if lacking:
            missing.append(f"A does not play {role}: {lacking[0][0]} has no policy of '{lacking[0][1]}'")
            continue
        hands = [
            Hand(A if group == role else B, group, 0, agents.agents, players[A if group == role else B][group])
            for group, agents in spec.groups.items()
        ]
        found.append(Seat(role, Seating(spec, hands, rotates=False), number))
    if not found:
        raise UserError(f"{spec.name} cannot be played: {'; '.join(missing)}; expected policies of all its groups")
    for text in missing:
        note(text)
    return found


def _described(side: Side) -> dict[str, Any]:
    policy = next(iter(side.policies.values()))
    config = policy.config
    name = algorithm_name(policy.algorithm.for_group(config.group)).lower()
    return {"policy": side.name, "algorithm": name, "version": config.version, "env_steps": config.env_steps}
