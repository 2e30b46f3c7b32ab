"""Pages, help texts and messages use the field's words: odd ones that were replaced do not come back."""

import ast
import re

import pytest
from paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ODD = re.compile(
    r"\b(anew|whoever|whomever|but for|is told|bears|sign of life|made anew|gives? no pictures|(step|reset) g(a|i)ves?|"
    r"gave back|no good)\b"
)
"""What stands for them: again, who or everyone, except for, receives, tolerates, heartbeat, returned, invalid."""


def texts(source):
    """The texts of a module that are no docstrings, with what is filled in left out."""
    tree = ast.parse(source)
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, described)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_uses_no_odd_words(page):
    assert not sorted({found[0] for found in ODD.finditer(page.read_text())})


def test_messages_use_no_odd_words():
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in (ROOT / "runnel").rglob("*.py")
        for text in texts(path.read_text())
        if ODD.search(text)
    }
    assert not found


def test_odd_words_are_found():
    assert ODD.search("the episode was cut, and it was made anew")
    assert ODD.search("step gave NaN")
    assert not ODD.search("the step returned NaN; a new environment was created")
    assert list(texts('"""A docstring."""\nx = f"{a} gave {b}"\n\n\nclass A:\n    """Another."""\n')) == [" gave "]
