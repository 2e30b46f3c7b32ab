"""What could follow on a command line: commands, flags, names, runs, tags and settings.

The scripts of `runnel completion SHELL` run `runnel _complete` at every press of the key, so nothing here imports JAX,
or code of the user's. What is printed is plain text, one candidate a line, which shells do not execute.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from runnel.cli.shells import SHELLS
from runnel.errors import UserError

COMPLETE: Final = "_complete"
BREAKS: Final = ":=@"
"""At these bash begins a new word, and replaces only what follows."""

MOST: Final = 2000
"""The most candidates that are useful to a reader."""

SEVERAL: Final = ("set", "over", "pbt_perturb", "pbt_resample")
"""Flags that take one value after another."""


def completion_command(args: argparse.Namespace) -> int:
    print(SHELLS[args.shell], end="")
    return 0


def complete_command(argv: Sequence[str]) -> int:
    """`_complete SHELL WORD...`, of which the last is being written; of bash, the line so far."""
    shell, *words = argv or ("",)
    if shell == "bash":
        words = _split(words[0] if words else "")[1:]
    words = words or [""]
    with contextlib.suppress(UserError, OSError, ValueError):
        found = sorted({each for each in candidates(words) if each.startswith(words[-1]) and each.isprintable()})
        kept = max((words[-1].rfind(each) + 1 for each in BREAKS), default=0) if shell == "bash" else 0
        print("\n".join(each[kept:] for each in found[:MOST]))
    return 0


def _split(line: str) -> list[str]:
    """A line as a shell splits it; a quote need not be closed yet, and after a space a new word begins."""
    for closing in ("", "'", '"'):
        with contextlib.suppress(ValueError):
            words = shlex.split(line + closing)
            return [*words, ""] if not closing and (not line or line[-1].isspace()) else words
    return line.split(" ")


def candidates(words: Sequence[str]) -> Iterable[str]:
    """What the last word could become."""
    from runnel.cli.grammar import grammar

    subparsers = next(a for a in grammar()._actions if isinstance(a, argparse._SubParsersAction))
    *before, current = words
    if not before:
        return [*subparsers.choices, "--help", "--version"]
    if before[0] not in subparsers.choices:
        return []
    command = subparsers.choices[before[0]]
    flags = command._option_string_actions
    name, equals, value = current.partition("=")
    if equals and name in flags and flags[name].nargs != 0:
        return [f"{name}={each}" for each in _values(flags[name], before, value)]
    flag = _flag_of(flags, before[1:])
    if flag is not None:
        own = list(_values(flag, before, current))
        another = flag.dest in SEVERAL and before[-1] not in flag.option_strings
        return [*own, *flags] if another else own  # `--set a=1 b=2`: another one, or a flag
    if current.startswith("-"):
        return list(flags)
    positional = _positional(command, flags, before[1:])
    return list(flags) if positional is None else _values(positional, before, current)


def _flag_of(flags: Mapping[str, argparse.Action], before: Sequence[str]) -> argparse.Action | None:
    """The flag whose value comes next, if one does."""
    for number, word in enumerate(reversed(before)):
        action = flags.get(word)
        if action is not None:
            return action if action.nargs != 0 and (number == 0 or action.dest in SEVERAL) else None
        if "=" not in word or word.startswith("-"):
            return None  # no value of `--set`
    return None


def _positional(
    command: argparse.ArgumentParser, flags: Mapping[str, argparse.Action], before: Sequence[str]
) -> argparse.Action | None:
    """The argument without a flag that comes next."""
    given = [
        word for number, word in enumerate(before)
        if not word.startswith("-") and _flag_of(flags, before[:number]) is None
    ]  # fmt: skip
    for number, action in enumerate(command._get_positional_actions()):
        if number == len(given) or action.nargs in ("*", "+"):
            return action
    return None


def _values(action: argparse.Action, before: Sequence[str], current: str) -> Iterable[str]:
    from runnel.cli import completion_values

    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    known = completion_values.VALUES.get(action.dest)
    if known is not None:
        return known(before, current)
    return completion_values.paths(current) if action.type is Path else []
