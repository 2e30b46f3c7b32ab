"""Where a file, a class, a function or a list of parameters is large, its docstring says why it is one.

Lengths are lines from the first to the last, docstring and comments included. Of parameters, `self` and `cls` do not
count, `*args` and `**kwargs` count as one each. A record (a dataclass or a NamedTuple) has its fields for parameters;
those that have a default are settings, which may be as many as there are, and do not count.
"""

import ast
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from paths import ROOT

README_LINES, README_COLUMNS = 150, 125

LIMITS = {"file": 400, "class": 220, "function": 60, "list": 10}
"""Lines; of a list, parameters."""


class Large(NamedTuple):
    kind: str
    name: str
    size: int
    docs: str

    @property
    def explained(self) -> bool:
        """Whether it says "one file because", "one class because", "one function because" or "one list because"."""
        return f"one {self.kind} because " in " ".join(self.docs.split())


def large(source: str) -> Iterator[Large]:
    """What is above a limit in a module."""
    module = ast.parse(source)
    yield from _above("file", "", len(source.splitlines()), _docs(module))
    yield from _large_definitions(module, "")


def _large_definitions(parent: ast.AST, prefix: str, around: str = "") -> Iterator[Large]:
    """`around`: the docstring of the class that the definitions are in; it also speaks for its `__init__`."""
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef):
            name, docs = prefix + node.name, _docs(node)
            yield from _above("class", name, _lines(node), docs)
            yield from _above("list", name, _required_fields(node), docs)
            yield from _large_definitions(node, f"{name}.", docs)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name, docs = prefix + node.name, _docs(node)
            docs += around if node.name == "__init__" else ""
            yield from _above("function", name, _lines(node), docs)
            yield from _above("list", name, _parameters(node), docs)
            yield from _large_definitions(node, f"{name}.")
        else:
            yield from _large_definitions(node, prefix, around)


def _above(kind: str, name: str, size: int, docs: str) -> Iterator[Large]:
    if size > LIMITS[kind]:
        yield Large(kind, name, size, docs)


def _docs(node) -> str:
    return ast.get_docstring(node) or ""


def _lines(node) -> int:
    return node.end_lineno - node.lineno + 1


def _parameters(node) -> int:
    given = node.args
    named = [each.arg for each in (*given.posonlyargs, *given.args)]
    unbound = named[1:] if named[:1] in (["self"], ["cls"]) else named
    return len(unbound) + len(given.kwonlyargs) + (given.vararg is not None) + (given.kwarg is not None)


def _required_fields(node: ast.ClassDef) -> int:
    """How many fields a record must be given; 0 of other classes."""
    made_by = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
    if not any("dataclass" in each or "NamedTuple" in each for each in made_by):
        return 0
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.value is None]
    return sum("ClassVar" not in ast.unparse(each.annotation) for each in fields)


FILES = sorted(path for package in ("runnel", "hide_and_seek") for path in (ROOT / package).rglob("*.py"))
FOUND = [(str(path.relative_to(ROOT)), each) for path in FILES for each in large(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("path", "each"), FOUND, ids=[f"{each.kind} {path}{each.name and '::'}{each.name}" for path, each in FOUND]
)
def test_what_is_large_says_why_it_is_one(path, each):
    assert each.explained, (
        f"{path} {each.name}: found a {each.kind} of {each.size}, expected {LIMITS[each.kind]} at most, or a docstring "
        f"that says 'one {each.kind} because ...'"
    )


REASON = "It is one {} because a test wants to see it."
BODY = "    x = 1\n"
ELEVEN = "a, b, c, d, e, f, g, h, i, j, k"


@pytest.mark.parametrize("explained", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "source"),
    [
        ("file", "", '"""{docs}"""\n' + "x = 1\n" * 399),
        ("class", "A", 'class A:\n    """{docs}"""\n' + BODY * 218),
        ("function", "f", 'def f():\n    """{docs}"""\n' + BODY * 58),
        ("function", "A.f", 'class A:\n    def f(self):\n        """{docs}"""\n' + textwrap.indent(BODY, "    ") * 58),
        ("function", "f", 'if True:\n    async def f():\n        """{docs}"""\n' + textwrap.indent(BODY, "    ") * 58),
        ("list", "f", 'def f(a, b, c, d, e, /, f, g, h, *i, j, **k):\n    """{docs}"""\n'),
        ("list", "A.f", 'class A:\n    def f(self, ' + ELEVEN + '):\n        """{docs}"""\n'),
        ("list", "A.__init__", 'class A:\n    """{docs}"""\n    def __init__(self, ' + ELEVEN + '): ...\n'),
        ("list", "A", '@dataclass(frozen=True)\nclass A:\n    """{docs}"""\n' + "    x: int\n" * 11 + "    y: int = 0"),
        ("list", "A", 'class A(NamedTuple):\n    """{docs}"""\n' + "    x: int\n" * 11),
    ],
)  # fmt: skip
def test_what_is_above_a_limit_is_found(kind, name, source, explained):
    docs = f"What it is, in\n    two lines. {REASON.format(kind) if explained else 'It has a reason.'}"
    (found,) = large(source.format(docs=docs))
    assert (found.kind, found.name) == (kind, name)
    assert found.size == LIMITS[kind] + 1
    assert found.explained == explained


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\n" * 400,
        "class A:\n" + BODY * 219,
        "def f():\n" + BODY * 59,
        "def f(a, b, c, d, e, f, g, h, i, j): ...",
        "class A:\n    def __init__(self, a, b, c, d, e, f, g, h, i, j): ...",
        "@dataclass\nclass A:\n" + "    x: int\n" * 10 + "    y: int = 0\n" * 10 + "    z: ClassVar[int]\n",
        "class A(Protocol):\n" + "    x: int\n" * 11,
    ],
)
def test_what_is_at_a_limit_is_not(source):
    assert list(large(source)) == []


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES
    assert not [line for line in lines if len(line) > README_COLUMNS]
