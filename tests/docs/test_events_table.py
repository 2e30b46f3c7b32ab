"""The table of events in docs/run-directory.md names what the code records, and the page marks only such names."""

import ast
import re
from pathlib import Path

import runnel
from runnel.reporting.report import PAGE

CODE = Path(runnel.__file__).parent
TABLE = Path("docs/run-directory.md")
RECORDERS = ("record", "report_event", "report")
"""Functions whose first argument is the name of an event."""


def recorded() -> set[str]:
    """The names that calls in the code give to events, as texts or as constants of their module."""
    found = set()
    for path in CODE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(f"{name}(" in text for name in RECORDERS):
            continue
        tree = ast.parse(text)
        constants = dict(each for node in ast.walk(tree) for each in _constants(node))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _name(node.func).lstrip("_") in RECORDERS and node.args:
                found |= _texts(node.args[0], constants)
            elif isinstance(node, ast.Call) and _name(node.func) == "_note":  # of copies, which are of two kinds
                found |= _texts(node.args[-1], constants)
    return found


def _constants(node: ast.AST) -> list[tuple[str, str]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    pairs = [(target, getattr(node, "value", None)) for target in targets]
    for target, value in pairs[:1]:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(target.elts, value.elts, strict=True))
    return [
        (target.id, value.value)
        for target, value in pairs
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _texts(argument: ast.expr, constants: dict[str, str]) -> set[str]:
    parts = [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument]
    texts = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    return texts | {constants[part.id] for part in parts if isinstance(part, ast.Name) and part.id in constants}


def documented() -> set[str]:
    """The names in the table, and those that a row explains beside its own."""
    section = TABLE.read_text(encoding="utf-8").partition("## events.jsonl")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.M)
    return {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}


def test_the_table_of_events_names_all_that_the_code_records_and_no_other():
    found = recorded()
    assert {"restart", "nan", "cut", "copied", "retried", "member"} <= found
    assert documented() == found


def test_the_page_marks_as_faults_only_events_that_there_are():
    script = (PAGE / "timeline.js").read_text(encoding="utf-8")
    bad = set(re.findall(r'"([a-z_]+)"', script.partition("new Set([")[2].partition("]")[0]))
    assert len(bad) > 10
    assert bad <= documented()
