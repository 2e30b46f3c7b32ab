"""What `runnel list` prints of environments: the names of a family, or the spaces and settings of one."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from runnel import envs
from runnel.cli import catalog, environment_names
from runnel.config import serialization
from runnel.config.setting_docs import Setting
from runnel.envs import FAMILIES, Family
from runnel.errors import NotInstalled, UserError, nearest
from runnel.recording.files import one_line
from runnel.types import Box, Discrete, EnvSpec, Space

LONGEST: Final = 28
"""Characters of a default that are printed."""


def printed(name: str, as_json: bool) -> str | None:
    """What there is to print of a name; None where it is no environment and no family of them."""
    family = environment_names.family_of(name)
    if family is not None and name.rstrip(":/") in (family.prefix.rstrip(":/"), "gymnasium"):
        return _of_family(family, as_json)
    if family is None and ":" not in name and name not in environment_names.names(environment_names.GYMNASIUM):
        return None
    if family is None and name.endswith(":"):
        prefixes = [each.prefix for each in FAMILIES]
        raise UserError(f"no environments are named '{name}...'{nearest(name, prefixes)}", page="command-line#list")
    if family is None and ":" in name and _is_entry(serialization.import_object(name)):
        return None
    spec, why = _spec(name)
    rows, tuned = environment_names.settings(name, spec), _tuned(name)
    if as_json:
        return json.dumps(_plain(name, spec, rows, tuned), indent=2)
    lines = [name, *(_facts(spec) if spec else [f"  spaces       not known: {why}"])]
    lines += [f"  tuned for    {', '.join(tuned)}: `runnel list {next(iter(tuned))}` has the settings"] if tuned else []
    lines += ["\nsettings (--set env.NAME=VALUE)", *catalog.table([_row(row) for row in rows])]
    if not all(row.doc for row in rows):
        lines += ["\nsettings without a description are the library's own: its documentation describes them"]
    return "\n".join(lines)


def candidates() -> list[str]:
    """Names that may be meant by one that is nothing: environments of all families that are read quickly."""
    found = []
    for family in (environment_names.GYMNASIUM, *FAMILIES):
        if family.package != "envpool":  # its library takes a second to import
            with contextlib.suppress(Exception):
                found += environment_names.names(family)
    return found


def _spec(name: str) -> tuple[EnvSpec | None, str]:
    """What an environment is, which has to be made for that; or why it is not known."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # some libraries print as they are imported
            return envs.make(name).spec, ""
    except Exception as problem:  # a setting that it requires, a library that it needs, an error of its own
        return None, one_line(problem)


def _tuned(name: str) -> dict[str, Mapping[str, Any]]:
    """By algorithm: settings that are known to serve for this environment."""
    from runnel.config.presets import TUNED

    return {algorithm: known for (algorithm, environment), known in sorted(TUNED.items()) if environment == name}


def _facts(spec: EnvSpec) -> list[str]:
    lines = []
    for group, agents in spec.groups.items():
        if len(spec.groups) > 1 or agents.agents > 1:
            lines.append(f"  group        {group}, {agents.agents} agent{'s' if agents.agents > 1 else ''}")
        lines.append(f"  observation  {space_words(agents.observation)}")
        lines.append(f"  action       {space_words(agents.action)}")
    limit = spec.max_episode_steps
    return [*lines, f"  episode      at most {limit:,} steps"] if limit else lines


def space_words(space: Space) -> str:
    """`Box[4] float32, from -1 to 1`; `Discrete(2)`; the parts of a dict or a tuple, one after another."""
    if isinstance(space, dict):
        return "; ".join(f"{name}: {space_words(part)}" for name, part in space.items())
    if isinstance(space, tuple):
        return f"({'; '.join(map(space_words, space))})"
    if isinstance(space, Discrete):
        return f"Discrete({space.n})"
    if not isinstance(space, Box):
        return f"MultiDiscrete({', '.join(map(str, space.sizes))})"
    low, high = np.min(space.low), np.max(space.high)
    limits = np.all(space.low == low) and np.all(space.high == high) and space.bounded and space.dtype != bool
    return f"Box{list(space.shape)} {space.dtype}" + (f", from {low:g} to {high:g}" if limits else "")


def _plain(
    name: str, spec: EnvSpec | None, rows: list[Setting], tuned: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """An environment, for programs."""
    groups = {
        group: {
            "agents": agents.agents,
            "observation": space_words(agents.observation),
            "action": space_words(agents.action),
        }
        for group, agents in (spec.groups if spec else {}).items()
    }
    return {
        "environment": name, "groups": groups, "max_episode_steps": spec and spec.max_episode_steps,
        "tuned": {algorithm: dict(known) for algorithm, known in tuned.items()},
        "settings": [row._asdict() for row in rows],
    }  # fmt: skip


def _is_entry(found: Any) -> bool:
    from runnel.algorithm import Algorithm
    from runnel.planning.distribution import Distribution

    return isinstance(found, type) and issubclass(found, Algorithm | Distribution)


def _of_family(family: Family, as_json: bool) -> str:
    if not family.installed:
        raise NotInstalled(family.prefix, f"'{family.package}'", family.extra)
    names = environment_names.listed(family)
    if as_json:
        return json.dumps({"prefix": family.prefix, "summary": family.summary, "environments": names}, indent=2)
    return "\n".join([f"{family.summary} ({len(names)} in all)", *(f"  {name}" for name in names)])


def _row(row: Setting) -> tuple[str, str, str]:
    shown = row.default if len(row.default) <= LONGEST else f"{row.default[: LONGEST - 3]}..."
    return (f"{row.name}={shown}", row.type, row.doc)
