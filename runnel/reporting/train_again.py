"""The commands that train the same as a run once more, in a directory of its own."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError, printable
from runnel.recording import population_file, sweep_file
from runnel.recording.members_file import Member
from runnel.reporting.bands import by_settings

CUT: Final = "..."
"""The end of a text that a view has cut."""

MOST_COMMANDS: Final = 12
"""Commands for members of different settings: one for each of the first."""

FACTORS: Final = [0.8, 1.25]
"""Of PBT: the ones that `--pbt-perturb` uses."""

OF_SEVERAL: Final = ("--seeds", "--population")
"""The flags of `runnel train` for several runs."""


def again(run_dir: Path) -> str:
    """The command that trains with every setting as recorded."""
    return f"runnel train --config {shlex.quote(printable(str(run_dir / 'config.json')))}"


def again_together(directory: Path, listed: Sequence[Member], kind: str) -> str:
    """The commands that train several runs with every setting as recorded, one in a line; nothing where none can."""
    with contextlib.suppress(OSError, UserError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        if kind == "sweep":
            return _sweep_again(directory)
        if kind == "population":
            return _population_again(directory, listed)
        found = by_settings(listed)[:MOST_COMMANDS]
        return "\n".join(_members_again(directory, members) for members in found)
    return ""


def _members_again(directory: Path, members: Sequence[Member]) -> str:
    command = again(directory / members[0].directory)
    if len(members) == 1:
        return command
    return f"{command} --seeds {','.join(str(member.seed) for member in members)}"


def _population_again(directory: Path, listed: Sequence[Member]) -> str:
    """With the rule in flags; nothing for a rule with settings that no flag has."""
    found = population_file.read(directory, len(listed))
    path, settings = found.rule["class"], dict(found.rule["settings"])
    words = ["--population", str(len(listed)), "--steps", str(found.steps)]
    if path != "runnel.population:PBT":
        if settings:
            return ""
        words += ["--population-rule", path]
    else:
        if [*settings.pop("factors")] != FACTORS:
            return ""
        for name in ("every", "quantile", "objective"):
            words += [f"--pbt-{name}", str(settings.pop(name))]
        for name in ("perturb", "resample"):
            ranges = settings.pop(name)["dict"]
            if ranges:
                words += [f"--pbt-{name}", *(f"{key}={_range(each)}" for key, each in ranges.items())]
        if settings:
            return ""
    return f"{again(directory / listed[0].directory)} {shlex.join(map(printable, words))}"


def _range(stored: Mapping[str, Any]) -> str:
    """`log:1e-5:1e-2`, of a range as `population.json` has it."""
    kinds = {"runnel.config.search_space:LogUniform": "log:", "runnel.config.search_space:Uniform": ""}
    return f"{kinds[stored['class']]}{stored['settings']['low']!r}:{stored['settings']['high']!r}"


def _sweep_again(directory: Path) -> str:
    found = sweep_file.read_raw(directory)
    words = ["--trials", str(found["trials"]), "--sampler", found["sampler"], "--batch", str(found["batch"])]
    words += ["--seed", str(found["seed"]), "--seeds", ",".join(map(str, found["seeds"]))]
    words += ["--winner-seeds", str(len(found["winner_seeds"]))]
    if len(found["rungs"]) > 1:
        words += ["--halving", str(found["eta"]), "--rungs", str(len(found["rungs"]))]
    words += ["--over", *(f"{name}={_tried(each)}" for name, each in found["space"].items())]
    base = shlex.quote(printable(str(directory / sweep_file.BASE)))
    return f"runnel sweep --config {base} {shlex.join(map(printable, words))}"


def _tried(stored: Mapping[str, Any]) -> str:
    """The values of a setting, of `sweep.json`, as `--over` takes them."""
    if stored["kind"] == "choice":
        if not all(isinstance(value, bool | int | float | str) for value in stored["values"]):
            raise ValueError("values that no flag has")
        return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in stored["values"])
    kind = {"log": "log:", "uniform": "", "int": "int:"}[stored["kind"]]
    return f"{kind}{stored['low']!r}:{stored['high']!r}"


def first_command(starts: Sequence[Mapping[str, Any]], steps: Any, several: bool = False) -> str:
    """The command that a run, or `several` together, were begun with; nothing where a program began it, where it is
    not there as a whole, or where it trains others too.

    Without `--run-dir`, which would name a directory that exists, and for as many `steps` as the run has now: it may
    have been resumed for more.
    """
    command = starts[0].get("command") if starts else None
    if not isinstance(command, str):
        return ""
    words: list[str] = []
    with contextlib.suppress(ValueError):  # no words that a shell reads
        words = _without(shlex.split(command), "--run-dir")
    if words[:1] != ["runnel"] or words[1:2] not in (["train"], ["sweep"]) or words[-1] == CUT:
        return ""
    if several != (words[1] == "sweep" or any(word.split("=")[0] in OF_SEVERAL for word in words)):
        return ""
    if len(starts) > 1 and type(steps) is int:
        words = [*_without(words, "--steps"), "--steps", str(steps)]
    return shlex.join(words)


def _without(words: Sequence[str], flag: str) -> list[str]:
    """Words without a flag and its value."""
    kept, is_value = [], False
    for word in words:
        if not is_value and word != flag and not word.startswith(f"{flag}="):
            kept.append(word)
        is_value = not is_value and word == flag
    return kept
