"""The glossary and the tables of words on other pages name files that exist, and define what they list."""

import re

import pytest
from definitions import all_classes, definitions
from paths import ROOT

HEAD = "| word | meaning | defined in |\n|---|---|---|\n"


def rows_of(text):
    """The rows of the tables of words on a page."""
    tables = [part.split("\n\n")[0] for part in text.split(HEAD)[1:]]
    return [
        tuple(cell.strip() for cell in line.strip("|").split(" | ")) for each in tables for line in each.splitlines()
    ]


PAGES = {page.name: page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))}
TABLES = {name: rows for name, text in PAGES.items() if (rows := rows_of(text))}
ROWS = [row for rows in TABLES.values() for row in rows]
WORDS = [row[0] for row in ROWS]
MOST_ROWS, MOST_WORDS = 65, 1800


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


def test_the_glossary_is_short():
    assert len(TABLES["glossary.md"]) <= MOST_ROWS, "words of one topic are defined on its page"
    assert len(PAGES["glossary.md"].split()) <= MOST_WORDS


def test_the_glossary_links_all_tables_of_words():
    others = TABLES.keys() - {"glossary.md"}
    assert others == set(re.findall(r"\]\(([\w-]+\.md)#words\)", PAGES["glossary.md"]))


def test_classes_that_the_glossary_names_exist():
    named = {name.split(".")[0] for name in re.findall(r"`([A-Z][a-z]\w*(?:\.\w+)*)`", PAGES["glossary.md"])}
    assert named - all_classes(ROOT / "runnel") == set()


def test_a_file_that_defines_something_else_is_found():
    assert "Plan" in definitions(ROOT / "runnel/planning/plan.py")
    assert "Plan.text" in definitions(ROOT / "runnel/planning/plan.py")
    assert "Trajectory" not in definitions(ROOT / "runnel/planning/plan.py")
    assert list(places("`a.py`: `B`, `C.d`; `e.py`")) == [("a.py", ["B", "C.d"]), ("e.py", [])]


STRESSED = {"cut", "is", "modify", "terminated", "truncated", "type"}
"""Words in italics that are no nouns of Runnel's."""


def introduced(text):
    """The nouns in italics, in the singular."""
    return {word.removesuffix("s") for word in re.findall(r"(?<![*\w])\*([a-z][a-z ]+)\*(?![*\w])", text)}


def test_nouns_that_a_page_introduces_are_in_the_glossary_or_in_its_own_table():
    pages = {name: text for name, text in PAGES.items() if name != "learning.md"}  # which stresses its columns
    assert set().union(*map(introduced, pages.values())) >= {"fragment", "journal", "matchmaker", "trial"}
    known = {row[0] for row in TABLES["glossary.md"]} | {word.removesuffix("s") for word in STRESSED}
    missing = {
        f"{name}: {word}"
        for name, text in pages.items()
        for word in introduced(text) - known - {row[0] for row in TABLES.get(name, [])}
    }
    assert not missing
