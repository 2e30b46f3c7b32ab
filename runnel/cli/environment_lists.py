"""What `runnel list` prints of environments: the names of a family, or the settings of one."""

from __future__ import annotations

import json
from typing import Any

from runnel.cli import catalog, environment_names
from runnel.config import serialization
from runnel.config.setting_docs import Setting
from runnel.envs import FAMILIES, Family
from runnel.errors import NotInstalled, UserError, nearest


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
    rows = environment_names.settings(name)
    if as_json:
        return json.dumps({"environment": name, "settings": [row._asdict() for row in rows]}, indent=2)
    return "\n".join([name, "\nsettings (--set env.NAME=VALUE)", *catalog.table([_row(row) for row in rows])])


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
    return (f"{row.name}={row.default}", row.type, row.doc)
