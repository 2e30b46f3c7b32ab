"""The glossary names files that exist, and what it says that they define they define."""

import re

import pytest
from definitions import all_classes, definitions
from paths import ROOT

PAGE = (ROOT / "docs" / "glossary.md").read_text()
ROWS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| word |")
]
WORDS = [row[0] for row in ROWS]


def places(where):
    """`file`: `Name`, `Name`; `file` -> pairs of a file and the names that it defines."""
    for place in where.split("; "):
        files, _, names = place.partition(": ")
        for file in re.findall(r"`([^`]+)`", files):
            yield file, re.findall(r"`([^`]+)`", names)


@pytest.mark.parametrize("row", ROWS, ids=WORDS)
def test_a_word_is_defined_where_the_glossary_says(row):
    word, meaning, where = row
    assert meaning.endswith("."), "one sentence"
    assert ". " not in meaning, "one sentence"
    found = list(places(where))
    assert found, f"{word}: names no file"
    for file, names in found:
        assert (ROOT / file).is_file(), f"{word}: there is no {file}"
        missing = set(names) - definitions(ROOT / file)
        assert not missing, f"{word}: {file} does not define {', '.join(sorted(missing))}"


def test_a_word_has_one_meaning():
    assert len(WORDS) == len(set(WORDS))


def test_classes_that_the_glossary_names_exist():
    named = {name.split(".")[0] for name in re.findall(r"`([A-Z][a-z]\w*(?:\.\w+)*)`", PAGE)}
    aliases = {"Synchronisation"}  # of classes that have rows of their own
    assert named - aliases - all_classes(ROOT / "runnel") == set()


def test_a_file_that_defines_something_else_is_found():
    assert "Plan" in definitions(ROOT / "runnel/planning/plan.py")
    assert "Plan.text" in definitions(ROOT / "runnel/planning/plan.py")
    assert "Trajectory" not in definitions(ROOT / "runnel/planning/plan.py")
    assert list(places("`a.py`: `B`, `C.d`; `e.py`")) == [("a.py", ["B", "C.d"]), ("e.py", [])]


STRESSED = {"cut", "is", "modify", "terminated", "truncated", "type"}
"""Words in italics that are no nouns of Runnel's."""


def test_nouns_that_pages_introduce_are_in_the_glossary():
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name != "learning.md"]  # which stresses its columns
    introduced = {
        word.removesuffix("s")
        for page in pages
        for word in re.findall(r"(?<![*\w])\*([a-z][a-z ]+)\*(?![*\w])", page.read_text())
    }
    assert introduced >= {"fragment", "journal", "matchmaker", "trial"}
    missing = introduced - set(WORDS) - {word.removesuffix("s") for word in STRESSED}
    assert not missing, f"the glossary has no {', '.join(sorted(missing))}"
