"""How the values of flags are read: numbers with limits, machines, seeds, `none`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any, Final

from runnel.config import settings
from runnel.config.run_config import MOST_MEMBERS, MOST_SEED, MOST_STEPS
from runnel.errors import UserError
from runnel.planning.machine import Machine

NOTHING: Final = object()
"""The value of a flag that was given as `none`: it takes back what `--config` says. None is one that was not given."""


def machines(text: str) -> list[Machine]:
    """`a=8,b=16+2`: a has 8 CPUs, b 16 and two GPUs."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"([\w.-]+)=(\d{1,6})(?:\+(\d{1,4}))?", part.strip())
        if match is None or not int(match[2]):
            wanted = "a machine as in a=8 (8 CPUs) or b=16+2 (16 CPUs and 2 GPUs)"
            raise argparse.ArgumentTypeError(f"found '{part}', expected {wanted}")
        devices = tuple(f"cuda:{i}" for i in range(int(match[3] or 0))) or ("cpu:0",)
        found.append(Machine(int(match[2]), devices, match[1]))
    return found


def seeds(text: str) -> int | list[int]:
    """`16`, or `1,2,5`."""
    one = whole(0, MOST_SEED)
    return [one(each) for each in text.split(",")] if "," in text else whole(1, MOST_MEMBERS)(text)


def whole(least: int, most: int = MOST_STEPS) -> Callable[[str], int]:
    """A whole number of `least` or more; 1_000_000 and 1e6 are such."""

    def read(text: str) -> int:
        wanted = f"a whole number of {least} or more"
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        try:
            value = settings.convert("", text, int)
        except UserError:
            raise argparse.ArgumentTypeError(f"found '{shown}', expected {wanted}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"found {shown}, expected {wanted}")
        if value > most:
            raise argparse.ArgumentTypeError(f"found {shown}, expected at most {most}")
        return value

    return read


def number(text: str) -> float:
    try:
        return settings.convert("", text, float)
    except UserError:
        raise argparse.ArgumentTypeError(f"found '{text}', expected a finite number") from None


def seconds(text: str) -> float:
    value = number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"found {text}, expected more than 0 seconds")
    return value


def or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: NOTHING if text.lower() == "none" else read(text)


def launcher(text: str) -> str:
    if text not in ("local", "ray") and ":" not in text:
        raise argparse.ArgumentTypeError(f"'{text}' is not known; use local, ray or package.module:callable")
    return text
