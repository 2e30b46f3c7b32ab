"""The page about extensions names, for each, the contract and the files to change: they are there, and define that."""

import re

import pytest
from definitions import definitions
from paths import EXAMPLES, ROOT

PACKAGE = ROOT / "runnel"
PAGE = (ROOT / "docs" / "extend.md").read_text()
TABLE = PAGE.partition("| to add |")[2].partition("\n\n")[0].splitlines()[2:]
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
LISTS = [
    (title, item) for title, text in SECTIONS.items() for item in re.findall(r"^\d\. (.*(?:\n   .*)*)", text, re.M)
]
FILE = r"`([\w/]+\.py)`"
NAMES = r"`(\w+(?:\.\w+)?)`(?:(?:, | and | or )`(\w+(?:\.\w+)?)`)*"


def named(text):
    """Pairs of a file and a name: `NAME` in `FILE`, and `FILE`: `NAME`, `NAME`."""
    text = " ".join(text.split())
    for match in re.finditer(rf"({NAMES}) in {FILE}", text):
        yield from ((match[match.re.groups], name) for name in re.findall(r"`([\w.]+)`", match[1]))
    for match in re.finditer(rf"{FILE}: ({NAMES})", text):
        yield from ((match[1], name) for name in re.findall(r"`([\w.]+)`", match[2]))


def missing(text):
    for file in re.findall(FILE, text):
        if not (PACKAGE / file).is_file():
            yield file
    for file, name in named(text):
        if (PACKAGE / file).is_file() and name not in definitions(PACKAGE / file):
            yield f"{name} in {file}"


@pytest.mark.parametrize("row", TABLE, ids=[row.split(" | ")[0].strip("| ") for row in TABLE])
def test_the_contract_and_the_files_of_a_row_exist(row):
    assert row.count(" | ") == 3
    assert not [*missing(row)]


def test_rows_with_a_contract_of_runnels_name_it():
    without = [row for row in TABLE if not [*named(row)]]
    assert [row.split(" | ")[0] for row in without] == ["| a [network](use-a-network.md)"]  # Flax has that contract


@pytest.mark.parametrize(("title", "item"), LISTS, ids=[f"{title}-{item[:24]}" for title, item in LISTS])
def test_a_step_names_a_file_and_what_changes_there(title, item):
    assert re.findall(FILE, item), f"{title}: names no file"
    assert not [*missing(item)]


def test_what_changes_runnel_has_a_section_with_steps():
    changing = {f"a{'n' if row.startswith('| an ') else ''} {name}" for row in TABLE if "see below" in row
                for name in re.findall(r"\[(.+?)\]", row.split(" | ")[0])}  # fmt: skip
    assert {title.lower() for title, _ in LISTS} == changing


def test_what_is_not_there_is_found():
    assert [*missing("`planning/nothing.py`")] == ["planning/nothing.py"]
    assert [*missing("`Nothing` in `planning/plan.py`")] == ["Nothing in planning/plan.py"]
    assert [*missing("`planning/plan.py`: `Plan`, `Nothing`, what it is")] == ["Nothing in planning/plan.py"]
    assert not [*missing("`planning/plan.py`: `Plan`, `build_plan`, and `Cut` elsewhere")]


def test_checkpoints_are_created_where_the_page_says():
    created = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\bCheckpoints\(", path.read_text())
    } - {"recording/checkpoint.py"}
    (said,) = re.findall(r"^Modules of `(\w+/)` and `([\w/]+\.py)` create `Checkpoints`", PAGE, re.M)
    assert {name for name in created if not name.startswith(said[0])} == {said[1]}


def test_a_transport_has_as_many_functions_as_the_page_says():
    fields = definitions(PACKAGE / "transport" / "interface.py")
    assert sum(name.startswith("Transport.") for name in fields) == 6
    assert "It is a record of six functions." in PAGE


def test_every_function_of_a_launcher_has_a_row():
    protocol = {
        name.partition(".")[2]
        for name in definitions(PACKAGE / "launch" / "host_launcher.py")
        if name.startswith("HostLauncher.")
    }
    rows = re.findall(r"^\| `(\w+)(?:\(.*?\))?` \| ", SECTIONS["A launcher"], re.M)
    assert set(rows) == protocol
    assert protocol <= {
        name.partition(".")[2] for name in definitions(EXAMPLES / "one_agent.py") if name.startswith("OneAgent.")
    }
