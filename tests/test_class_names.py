"""One name, one thing: no two modules define a public class or type alias of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict

from paths import ROOT

CONVENTIONAL = {
    "algorithms": {"Batch", "Extras", "Gradient", "Metrics", "Networks", "Out", "Params", "State"},
    "envs": {"State"},
}
"""By package: what each of its files may call by the same name, as algorithms do in every library of the field."""

SYNONYMS = {"Array"}
"""Aliases that mean the same wherever they are defined."""


def public_types() -> dict[str, list[str]]:
    """By name, the files that define a class or a type alias so called."""
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "runnel").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            name = node.name if isinstance(node, ast.ClassDef) else _alias(node)
            package = file.relative_to(ROOT / "runnel").parts[0]
            if name and not name.startswith("_") and name not in CONVENTIONAL.get(package, ()):
                found[name].append(str(file.relative_to(ROOT)))
    return found


def _alias(node: ast.stmt) -> str | None:
    """The name of `Name = ...`; constants and type variables of one letter are in capitals."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return target.id if isinstance(target, ast.Name) and target.id[:1].isupper() and not target.id.isupper() else None


def test_no_two_types_share_a_name() -> None:
    found = public_types()
    assert len(found) > 200
    assert {name: files for name, files in found.items() if len(files) > 1 and name not in SYNONYMS} == {}
