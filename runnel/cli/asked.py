"""What the flags of a command line ask for, as `train` and `build` take it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runnel.cli.arguments import CONFIGURED
from runnel.cli.catalog import FLAGS
from runnel.cli.flag_values import NOTHING
from runnel.config import serialization, settings
from runnel.errors import UserError

if TYPE_CHECKING:
    from runnel.algorithm import Algorithm
    from runnel.planning.plan import Distribution


def flags_given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The flags that were given: what was not has its default where it is used."""
    given = {name: getattr(args, name) for name in names}
    return {name: None if value is NOTHING else value for name, value in given.items() if value is not None}


def check_address(args: argparse.Namespace) -> None:
    if args.address is not None and args.launcher != "ray":
        raise UserError(
            f"found --address {args.address}, which is that of a Ray cluster; add --launcher ray", page="cluster#run"
        )


def settings_asked(
    args: argparse.Namespace,
    algorithm: Algorithm | str,
    distribution: Distribution | str | None = None,
    env_settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What `--distribution` and `--set` ask for, as `train` and `build` take it, over what a file asks for."""

    _point_out_own(args)
    own: list[str] = []
    others: dict[str, list[str]] = {"env": [], "distribution": [], "opponents": []}
    for pair in args.set:
        prefix, dot, rest = pair.partition(".")
        if prefix == "eval" and dot:
            continue  # `_eval_settings` reads it
        others[prefix].append(rest) if dot and prefix in others else own.append(pair)
    before = None if distribution is None or isinstance(distribution, str) else lambda: distribution
    changed = distribution_asked(args, others["distribution"], before)
    return {
        "distribution": changed if changed is not None else distribution,
        "settings": _own_settings(algorithm, own),
        **_opponents(args, others["opponents"]),
        "env_settings": {
            **(env_settings or {}),
            **{key: settings.literal(text) for key, text in map(settings.split, others["env"])},
        },
    }


def for_each_group(algorithm: Any, environment: Any, own: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An algorithm and its settings, where those for each group are one algorithm."""
    if not isinstance(algorithm, str) or "=" not in algorithm:
        return algorithm, own
    from runnel.execution.policies.group_algorithms import resolved

    algorithm, rest = resolved(algorithm, environment, own)
    return algorithm, rest or {}


def _own_settings(algorithm: Algorithm | str, pairs: list[str]) -> dict[str, Any]:
    """Settings of the algorithm, or of those of each group."""
    from runnel import algorithms

    if not isinstance(algorithm, str):
        return settings.parse(type(algorithm), pairs, "")
    if "=" not in algorithm:
        return settings.parse(algorithms.load(algorithm), pairs, algorithm)
    from runnel.execution.policies.group_algorithms import parse_settings

    return parse_settings(algorithm, pairs)


def _opponents(args: argparse.Namespace, pairs: list[str]) -> dict[str, Any]:
    """The matchmaker that `--opponents` and `--set opponents.key=value` ask for."""
    name = getattr(args, "opponents", None)
    if name is None:
        if pairs:
            raise UserError(
                f"--set opponents.{pairs[0]}: found no --opponents, expected a matchmaker that has it",
                page="self-play#past-opponents",
            )
        return {}
    from runnel.execution.building import MATCHMAKERS, matchmaker
    from runnel.matchmaking import Matchmaker

    cls = serialization.load_class(name, MATCHMAKERS, Matchmaker, "matchmaker", page="self-play#past-opponents")
    return {"opponents": matchmaker(name, settings.parse(cls, pairs, name))}


def policies_asked(args: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """The policies that a run begins with, and the settings of its evaluation, beside those of `--config`."""
    asked = {
        "init_from": _init_from(args),
        "frozen": _by_group("--frozen", args.frozen or []) or None,
        "eval_env_settings": {**(found.get("eval_env_settings") or {}), **_eval_settings(args)} or None,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _init_from(args: argparse.Namespace) -> Any:
    """`--init-from RUN` for all groups, or `--init-from GROUP=RUN` for each of some."""
    given = args.init_from or []
    if len(given) == 1 and ("=" not in given[0] or Path(given[0].rpartition("@")[0] or given[0]).exists()):
        return given[0]
    return _by_group("--init-from", given) or None


def _by_group(flag: str, given: Sequence[str]) -> dict[str, str]:
    for text in given:
        if "=" not in text:
            raise UserError(f"{flag} {text}: expected GROUP=RUN_DIR[@TAG]")
    return dict(text.split("=", 1) for text in given)


def _eval_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What `--set eval.env.key=value` asks for."""
    found = {}
    for pair in args.set:
        if pair.startswith("eval."):
            if not pair.startswith("eval.env."):
                raise UserError(
                    f"--set {pair}: expected eval.env.key=value, a setting of the environment in evaluation"
                )
            key, text = settings.split(pair.removeprefix("eval.env."))
            found[key] = settings.literal(text)
    return found


def env_settings_alone(args: argparse.Namespace) -> dict[str, Any]:
    """What `runnel eval --set env.key=value` asks for."""
    for pair in args.set:
        if not pair.startswith("env."):
            raise UserError(
                f"--set {pair}: expected env.key=value, a setting of the environment", page="command-line#settings"
            )
    pairs = [settings.split(pair.removeprefix("env.")) for pair in args.set]
    return {key: settings.literal(text) for key, text in pairs}


def _point_out_own(args: argparse.Namespace) -> None:
    """Who stands beside a `reinforce.py` of their own and says `reinforce` may mean that."""
    from runnel import algorithms
    from runnel.user_code import source_scan

    name = algorithms.known_as(args.algorithm or "")
    if name in algorithms.REGISTRY and not getattr(args, "quiet", False):
        own = source_scan.subclasses(f"{name}.py", ["Algorithm", algorithms.REGISTRY[name].rpartition(":")[2]])
        if own:
            meant = " or ".join(own).replace(".py:", ":")
            print(f"{name} is Runnel's own; for that of {name}.py here, write {meant}", file=sys.stderr)


def distribution_asked(
    args: argparse.Namespace, pairs: Sequence[str], recorded: Callable[[], Distribution] | None = None
) -> Distribution | None:
    """The distribution that the flags ask for; None where they ask for nothing.

    `recorded` returns that of a run or a file: flags change it, unless they name another one.
    """
    numbers = flags_given(args, *FLAGS)
    before: Any = None
    if args.distribution is not None:
        from runnel import distributions

        cls: Any = distributions.load(args.distribution)
        name = args.distribution
        before = _if_of(cls, args, recorded)
    elif not numbers and not pairs:
        return None
    elif recorded is None:
        from runnel.distributions import those_with

        flag = f"--{next(iter(numbers))}" if numbers else f"--set distribution.{pairs[0]}"
        raise UserError(
            f"{flag} needs a --distribution that has it{those_with(next(iter(numbers), None))}",
            page="command-line#list",
        )
    else:
        before = recorded()
        cls, name = type(before), type(before).__name__.lower()
    _check_flags(name, cls, numbers)
    parsed = settings.parse(cls, pairs, name)
    for flag in numbers.keys() & parsed.keys():
        if numbers[flag] != parsed[flag]:
            raise UserError(
                f"--{flag} {numbers[flag]} and --set distribution.{flag}={parsed[flag]} set one number "
                "to different values; use one of them"
            )
    changed = {**numbers, **parsed}
    return cls(**changed) if before is None else dataclasses.replace(before, **changed)


def _if_of(cls: type, args: argparse.Namespace, recorded: Callable[[], Distribution] | None) -> Distribution | None:
    """The distribution of a `--config` file, if it is of the class that is named beside it."""
    if recorded is None or args.command not in CONFIGURED:
        return None
    before = recorded()
    return before if type(before) is cls else None


def recorded_distribution(args: argparse.Namespace, config: dict[str, Any]) -> Distribution:
    """That of a run which is resumed."""
    from runnel.config import serialization
    from runnel.execution import trust
    from runnel.planning.plan import Distribution

    trust.admit(args.run_dir, config, args.trust, ("distribution",))
    return serialization.from_json(config.get("distribution") or {}, Distribution)


def _check_flags(name: str, cls: type, numbers: dict[str, Any]) -> None:
    from runnel.distributions import those_with

    fields = [field.name for field in dataclasses.fields(cls)]
    for flag in numbers:
        if flag not in fields:
            raise UserError(f"distribution {name} has no --{flag}{those_with(flag)}", page="command-line#list")
