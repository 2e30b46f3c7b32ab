"""Lists the definitions of a user's module from its source, without executing it.

Used for hints where a module is named (`staged`, `staged.py`) instead of `staged:Staged`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import os
import sys
from collections.abc import Collection
from pathlib import Path

MOST_BYTES = 2**22
"""The largest file that is read; larger ones are generated."""


def hint(name: str, found: list[str]) -> str:
    """`; 'staged' is a module: choose staged:Staged or staged:Other`, or empty if nothing was found."""
    dotted = with_colon(name)
    if dotted is not None:
        return f"; did you mean '{dotted}'?"
    return f"; '{name}' is a module: choose {' or '.join(found)}" if found else ""


def subclasses(name: str, bases: Collection[str]) -> list[str]:
    """`module:Class` for each class of the module that extends one of `bases`, directly or through another."""
    found: list[str] = []
    for node in _top_level(name):
        if isinstance(node, ast.ClassDef) and {*map(_last_name, node.bases)} & {*bases, *found}:
            found.append(node.name)
    return [f"{name}:{each}" for each in found]


def environments(name: str) -> list[str]:
    """`module:name` for each class that looks like an environment, and each function without arguments."""
    found: list[str] = []
    for node in _top_level(name):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and _makes_environment(node, found):
            found.append(node.name)
    return [f"{name}:{each}" for each in found]


def with_colon(name: str) -> str | None:
    """`staged:Staged` for `staged.Staged`, if there is such a module and it defines that; otherwise None."""
    module, _, attribute = name.rpartition(".")
    defined = [getattr(node, "name", None) for node in _top_level(module)] if module and attribute != "py" else []
    return f"{module}:{attribute}" if attribute in defined else None


def source_of(name: str) -> Path | None:
    """The source file of `package.module` or `file.py`. Python's import system would import the package."""
    if name.endswith(".py"):
        return Path(name) if Path(name).is_file() else None
    places: list[str] | None = list(sys.path)
    with contextlib.suppress(OSError):  # the working directory may have been removed
        places.append(os.getcwd())
    origin = None
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, places) if part.isidentifier() and places else None
        if spec is None:
            return None
        origin = spec.origin
        places = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else None
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _top_level(name: str) -> list[ast.stmt]:
    """The statements of a module; none if it cannot be found or read."""
    try:
        path = source_of(name)
        small = path is not None and path.stat().st_size <= MOST_BYTES
        return ast.parse(path.read_bytes()).body if path is not None and small else []
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return []


def _last_name(node: ast.expr) -> str:
    """`Algorithm` of `runnel.Algorithm` and of `Algorithm`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _makes_environment(node: ast.ClassDef | ast.FunctionDef, known: Collection[str]) -> bool:
    """Whether a class or function creates an environment. `known`: the environments defined before it in its file."""
    if isinstance(node, ast.ClassDef):
        methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        bases = [*map(_last_name, node.bases)]
        is_one = any(base in known or base.endswith(("Env", "Wrapper")) for base in bases)
        return {"reset", "step"} <= methods or is_one
    given = node.args
    return (
        not node.name.startswith("_")
        and len(given.posonlyargs) + len(given.args) == len(given.defaults)
        and None not in given.kw_defaults
    )
