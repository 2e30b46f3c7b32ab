"""What the values of arguments could be, for the completion of the shell. No JAX is imported, nor code of the user's.

Each function is given the words before, of which the first is the command, and the word that is being written.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runnel.errors import UserError

Words = Sequence[str]


def _algorithms(_: Words, current: str) -> Iterable[str]:
    from runnel import algorithms

    return [*algorithms.names(), *algorithms.ALIASES, *_own_modules(current)]


def _distributions(_: Words, current: str) -> Iterable[str]:
    from runnel import distributions
    from runnel.user_code import source_scan

    bases = ["Distribution", *(path.rpartition(":")[2] for path in distributions.REGISTRY.values())]
    own = [name for name in _own_modules(current) if source_scan.subclasses(f"{name.removesuffix(':')}.py", bases)]
    return [*distributions.names(), *own]


def _environments(_: Words, current: str) -> Iterable[str]:
    """All of the family whose prefix is there; else Gymnasium's, the prefixes, and modules."""
    from runnel.cli import environment_names
    from runnel.envs import FAMILIES

    family = next((each for each in FAMILIES if current.startswith(each.prefix)), environment_names.GYMNASIUM)
    prefixes = [each.prefix for each in FAMILIES if each.installed]
    return [*environment_names.names(family), *prefixes, *_own_modules(current)]


def _own_modules(current: str) -> list[str]:
    """Modules of the working directory, once a letter is there: `mine:`, before a class of mine.py."""
    if not current or "/" in current:
        return []
    return [f"{path.removesuffix('.py')}:" for path in paths(current) if path.endswith(".py")]


def _matchmakers(_: Words, __: str) -> Iterable[str]:
    return ["fixed", "latest", "league", "pfsp", "psro", "uniform"]


def _sinks(_: Words, __: str) -> Iterable[str]:
    from runnel.recording import named_sinks

    return named_sinks.names()


def _launchers(_: Words, __: str) -> Iterable[str]:
    return ["local", "ray"]


def _runs(_: Words, current: str) -> Iterable[str]:
    """Directories: those of runs as they are, others to look into. After `RUN@` the tags of its policies."""
    run, at, _tag = current.partition("@")
    if at:
        return [f"{run}@{tag}" for tag in tags(Path(run).expanduser())]
    return [_named(path) for path in paths(current) if path.endswith("/")]


def _named(directory: str) -> str:
    place = Path(directory).expanduser()
    holds = any((place / file).is_file() for file in ("config.json", "members.json"))
    return directory.rstrip("/") if holds else directory


def _run_of_group(before: Words, current: str) -> Iterable[str]:
    """`GROUP=RUN_DIR@TAG`."""
    group, equals, run = current.partition("=")
    return [f"{group}={each}" for each in _runs(before, run)] if equals else _runs(before, current)


def _tags_of_run(before: Words, _: str) -> Iterable[str]:
    return tags(Path(before[1].partition("@")[0]).expanduser()) if len(before) > 1 else []


def tags(run_dir: Path) -> list[str]:
    """The tags of a run's policies. Its file may come from a stranger, and is only read."""
    from runnel.recording.files import read_json

    found: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = read_json(run_dir, "policies/tags.json")
    own = [tag for tag in found if isinstance(tag, str)] if isinstance(found, dict) else []
    return sorted({"latest", "best", *own})


def _settings(before: Words, current: str) -> Iterable[str]:
    """`learning_rate=` of the algorithm that is named, `distribution.actors=`, and what other settings begin with."""
    from runnel.cli import catalog

    words = list(before)
    distribution = words[words.index("--distribution") + 1] if "--distribution" in words[:-1] else ""
    types: dict[str, str] = {}
    for name, prefix in ((words[1] if len(words) > 1 else "", ""), (distribution, "distribution.")):
        with contextlib.suppress(UserError):
            entry = catalog.find(name) if name and ":" not in name else None
            types |= {f"{prefix}{row.name}": row.type for row in (entry.settings if entry else ())}
    key, equals, _ = current.partition("=")
    if equals:
        of = types.get(key, "")
        choices = ["true", "false"] if of == "bool" else of.split(" | ") if " | " in of else []
        return [f"{key}={choice}" for choice in choices]
    others = ["env."] if words[0] in ("eval", "versus") else ["env.", "eval.env.", "distribution.", "opponents."]
    return [*(f"{name}=" for name in types), *others]


def _listed(before: Words, current: str) -> Iterable[str]:
    return [*_algorithms(before, ""), *_distributions(before, ""), *_environments(before, current)]


def _benchmarks(_: Words, __: str) -> Iterable[str]:
    from runnel.cli.showing_commands import BENCHMARKS

    return [path.stem for path in BENCHMARKS.glob("*.py") if not path.stem.startswith("_")]


def _pages(_: Words, current: str) -> Iterable[str]:
    from runnel.cli import pages

    name, mark, _section = current.partition("#")
    return [f"{name}#{section}" for section in pages.sections(name)] if mark else pages.names()


def paths(current: str) -> list[str]:
    """Files and directories; a directory ends with a slash."""
    above, slash, begun = current.rpartition("/")
    place = Path(f"{above}/" if slash else ".").expanduser()
    found = []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(begun) and (begun.startswith(".") or not entry.name.startswith(".")):
                found.append(f"{above}{slash}{entry.name}{'/' if entry.is_dir() else ''}")
    return found


VALUES: Final[Mapping[str, Callable[[Words, str], Iterable[str]]]] = {
    "algorithm": _algorithms,
    "environment": _environments,
    "env": _environments,
    "distribution": _distributions,
    "opponents": _matchmakers,
    "sinks": _sinks,
    "launcher": _launchers,
    "run_dir": _runs,
    "run_dirs": _runs,
    "a": _runs,
    "b": _runs,
    "init_from": _run_of_group,
    "frozen": _run_of_group,
    "with_tag": _tags_of_run,
    "untag": _tags_of_run,
    "set": _settings,
    "over": _settings,
    "name": _listed,
    "names": _benchmarks,
    "page": _pages,
}
"""By an argument's name: what it could be."""
