"""The flags of `runnel train` for populations, and the rule that they describe."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from runnel.errors import UserError

OF_PBT: Final = ("pbt_every", "pbt_quantile", "pbt_perturb", "pbt_resample", "pbt_objective")


def add(train: argparse._ActionsContainer, members: Callable[[str], int], steps: Callable[[str], int]) -> None:
    """Adds the flags. `members` and `steps` read such numbers."""
    ranges = "NAME=[log:]LOW:HIGH"
    train.add_argument(
        "--population", type=members, metavar="N", help="train N members, of which the worst become copies of the best"
    )
    train.add_argument(
        "--pbt-every", type=steps, metavar="N", help="steps of each member between two decisions (100000)"
    )
    train.add_argument(
        "--pbt-quantile", type=float, metavar="Q", help="the fraction of members that is replaced by the best (0.25)"
    )
    train.add_argument("--pbt-perturb", nargs="+", metavar=ranges, help="settings that copies multiply by 0.8 or 1.25")
    train.add_argument("--pbt-resample", nargs="+", metavar=ranges, help="settings for which copies draw a new value")
    train.add_argument("--pbt-objective", metavar="METRIC", help="the metric that compares members (return)")
    train.add_argument("--population-rule", metavar="MODULE:NAME", help="your own rule instead of --pbt-*")


def rule_of(args: argparse.Namespace) -> Any:
    """The rule that the flags describe; None where no population is asked for."""
    given = [name for name in (*OF_PBT, "population_rule") if getattr(args, name) is not None]
    if args.population is None:
        if given:
            raise UserError(f"found {_flag(given[0])} without --population, expected how many members there are")
        return None
    if args.seeds is not None or args.dry_run:
        other = "--seeds" if args.seeds is not None else "--dry-run"
        raise UserError(f"found --population and {other}, expected one of them")
    if args.population_rule is not None:
        if len(given) > 1:
            raise UserError(f"found --population-rule and {_flag(given[0])}, expected one of them")
        return args.population_rule
    from runnel.population import PBT

    fields = {name.removeprefix("pbt_"): getattr(args, name) for name in given}
    for name in ("perturb", "resample"):
        if name in fields:
            fields[name] = dict(_range(text, f"--pbt-{name}") for text in fields[name])
    return PBT(**fields)


def _range(text: str, flag: str) -> tuple[str, Any]:
    """`learning_rate=log:1e-5:1e-2`."""
    from runnel.config.search_space import LogUniform, Uniform

    name, equals, limits = text.partition("=")
    kind = LogUniform if limits.startswith("log:") else Uniform
    try:
        low, high = map(float, limits.removeprefix("log:").split(":"))
    except ValueError:
        low, equals, high = 0.0, "", 0.0
    if not name or not equals:
        raise UserError(f"{flag}: found '{text[:60]}', expected NAME=LOW:HIGH or NAME=log:LOW:HIGH")
    return name, kind(low, high)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
