"""What a Python file defines, read from its source: for tests of pages that name files, classes and functions."""

import ast
import functools
from pathlib import Path


@functools.cache
def definitions(path: Path) -> frozenset[str]:
    """The classes, functions and variables of a file, and `Class.member` for methods, fields and attributes."""
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8")).body))


def _names(body, prefix=""):
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from (prefix + name.id for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.FunctionDef) and prefix:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                    yield prefix + inner.attr
        elif isinstance(node, ast.If | ast.Try):
            yield from _names([*node.body, *node.orelse], prefix)


@functools.cache
def all_classes(package: Path) -> frozenset[str]:
    """The names of all classes of a package."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in sorted(package.rglob("*.py")))
    return frozenset(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
