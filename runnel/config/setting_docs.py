"""The fields of a dataclass as a help text shows them: type, default, and description from the source."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import textwrap
import tokenize
import types
import typing
from typing import Any, Literal, NamedTuple

from runnel.config import setting_descriptions
from runnel.config.settings import default_text, hints_of


class Setting(NamedTuple):
    """A field of a dataclass, as text."""

    name: str
    type: str
    default: str
    doc: str


def describe(cls: type) -> list[Setting]:
    """A dataclass's fields, each with the comment or docstring beside it in the source."""
    hints, docs = hints_of(cls), {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docs.update(_docs_in_source(base))
    rows = []
    for field in dataclasses.fields(cls):
        default: Any = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        shown = "required" if default is dataclasses.MISSING else default_text(default)
        rows.append(Setting(field.name, _type_text(hints[field.name]), shown, docs.get(field.name, "")))
    return rows


def _type_text(annotation: Any) -> str:
    if annotation is type(None):
        return "none"
    if typing.get_origin(annotation) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return " | ".join(_type_text(choice) for choice in typing.get_args(annotation))
    if typing.get_origin(annotation) is None and isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "")


def _docs_in_source(cls: type) -> dict[str, str]:
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # made in a notebook or by make_dataclass
        return {}
    node = ast.parse(source).body[0]
    return field_docs(node, source, cls.__module__) if isinstance(node, ast.ClassDef) else {}


def field_docs(node: ast.ClassDef, source: str, module: str = "") -> dict[str, str]:
    """Descriptions of a class's fields: the string under each, the comment that ends its line, or a shared text."""
    docs = {}
    comments, shared = _comments(source), setting_descriptions.defaults_of(module)
    for statement, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            doc = comments.get(statement.end_lineno or statement.lineno, "")
            match after:
                case ast.Expr(value=ast.Constant(value=str(below))):
                    doc = " ".join(below.split())
            docs[statement.target.id] = doc or shared.get(statement.target.id, "")
    return docs


@functools.lru_cache(maxsize=16)
def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT and "fmt:" not in token.string]
    return {comment.start[0]: comment.string.lstrip("# ") for comment in comments}
