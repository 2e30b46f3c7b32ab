"""Pages, help texts, messages, docstrings and names of tests use the field's words: odd ones that were replaced do not
come back."""

import ast
import re

import pytest
from paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ODD = re.compile(
    r"\b(anew|nobody|for ever|whoever|whomever|but for|is told|bears|sign of life|made anew|gives? no pictures|"
    r"(step|reset) g(a|i)ves?|gave back|no good)\b"
)
"""Use instead: again, no worker, without end, who or everyone, except for, receives, tolerates, heartbeat, returned,
invalid."""

ODD_IN_MESSAGES = re.compile(rf"{ODD.pattern}|\b(wants|must return|takes other arguments)\b")
"""Also: expected."""

ODD_IN_DOCSTRINGS = re.compile(
    rf"{ODD.pattern}|\b((are|was|were) told|told apart|wanted|wants to know|gives|gives? (back|out))\b"
)
"""Also: receive, distinguish, expected, returns or yields."""

ODD_IN_NAMES = re.compile(r"_(anew|bears|for_ever|nobody|signs?_of_life|told|wanted|wants|whoever|whomever)(?=_|$)")


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
        f"{path}: {text}"
        for path, source in modules().items()
        for text in constants(source, False)
        if ODD_IN_MESSAGES.search(text)
    }
    assert not found


def test_docstrings_use_no_odd_words():
    found = {
        f"{path}: {text.splitlines()[0]}"
        for path, source in modules().items()
        for text in constants(source, True)
        if ODD_IN_DOCSTRINGS.search(text)
    }
    assert not found


def comments(script):
    """The comments of a script of the live page."""
    return [line for line in script.splitlines() if re.search(r"(^|\s)//", line)]


def test_comments_of_the_live_page_use_no_odd_words():
    scripts = sorted((ROOT / "runnel").rglob("*.js"))
    assert len(scripts) > 5
    found = {f"{path.name}: {line}" for path in scripts for line in comments(path.read_text()) if ODD.search(line)}
    assert not found


def test_names_of_tests_use_no_odd_words():
    names = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *def (test_\w+)", path.read_text(), re.M)
    ]
    assert len(names) > 1000
    assert not [name for name in names if ODD_IN_NAMES.search(name)]


def test_odd_words_are_found():
    assert ODD.search("the episode was cut, and it was made anew")
    assert ODD.search("step gave NaN")
    assert not ODD.search("the step returned NaN; a new environment was created")
    assert ODD_IN_DOCSTRINGS.search("An actor is made anew")
    assert ODD_IN_DOCSTRINGS.search("Workers that were told to stop")
    assert not ODD_IN_DOCSTRINGS.search("Creates a new actor")
    assert ODD_IN_DOCSTRINGS.search("Reads a file and gives its path")
    assert ODD_IN_MESSAGES.search("the adapter wants one player")
    assert ODD_IN_NAMES.search("test_a_run_is_told")
    assert not ODD_IN_NAMES.search("test_an_untold_story")
    assert comments("a = 1;\n  b(); // drawn anew\n// c\n") == ["  b(); // drawn anew", "// c"]
    module = '"""A docstring."""\nx = f"{a} gave {b}"\n\n\nclass A:\n    """Another."""\n'
    assert list(constants(module, in_docstrings=False)) == [" gave "]
    assert list(constants(module, in_docstrings=True)) == ["A docstring.", "Another."]
