"""Pages, help texts, messages and docstrings use the field's words: odd ones that were replaced do not come back."""

import ast
import re

import pytest
from paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ODD = re.compile(
    r"\b(anew|whoever|whomever|but for|is told|bears|sign of life|made anew|gives? no pictures|(step|reset) g(a|i)ves?|"
    r"gave back|no good)\b"
)
"""Use instead: again, who or everyone, except for, receives, tolerates, heartbeat, returned, invalid."""

ODD_IN_DOCSTRINGS = re.compile(rf"{ODD.pattern}|\b((are|was|were) told|wanted|wants to know)\b")
"""Also: receive, expected."""

NOT_YET = {
    "runnel/cli/doctor_checks.py",
    "runnel/cli/shells.py",
    "runnel/reporting/metrics_server.py",
    "runnel/runtime/programs/loop.py",
    "runnel/runtime/workers/inference.py",
    "runnel/runtime/workers/snapshot_sender.py",
}
"""Files whose docstrings are still to be rewritten. Remove a file once it is; add none."""


def constants(source, in_docstrings):
    """The texts of a module, either its docstrings or all others, without the values that are filled in."""
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
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (id(node) in docstrings) == in_docstrings:
            yield node.value


def modules():
    """By path below the repository's root: the source of each module."""
    return {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "runnel").rglob("*.py")}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_uses_no_odd_words(page):
    assert not sorted({found[0] for found in ODD.finditer(page.read_text())})


def test_messages_use_no_odd_words():
    found = {
        f"{path}: {text}" for path, source in modules().items() for text in constants(source, False) if ODD.search(text)
    }
    assert not found


def test_docstrings_use_no_odd_words():
    found = {
        f"{path}: {text.splitlines()[0]}"
        for path, source in modules().items()
        for text in constants(source, True)
        if path not in NOT_YET and ODD_IN_DOCSTRINGS.search(text)
    }
    assert not found


def test_odd_words_are_found():
    assert ODD.search("the episode was cut, and it was made anew")
    assert ODD.search("step gave NaN")
    assert not ODD.search("the step returned NaN; a new environment was created")
    assert ODD_IN_DOCSTRINGS.search("An actor is made anew")
    assert ODD_IN_DOCSTRINGS.search("Workers that were told to stop")
    assert not ODD_IN_DOCSTRINGS.search("Creates a new actor")
    module = '"""A docstring."""\nx = f"{a} gave {b}"\n\n\nclass A:\n    """Another."""\n'
    assert list(constants(module, in_docstrings=False)) == [" gave "]
    assert list(constants(module, in_docstrings=True)) == ["A docstring.", "Another."]
