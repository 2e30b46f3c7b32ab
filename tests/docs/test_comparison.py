"""The comparison with other libraries: what a cell says of one of them has a source, and every source is used."""

import re

from paths import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text()
TABLE = [
    [cell.strip() for cell in row.split("|")[1:-1]]
    for row in PAGE.partition("| | Runnel |")[2].partition("\n\n")[0].splitlines()[2:]
]
SOURCES = dict(re.findall(r"^- \[(\w)\] (\w[\w-]*).*https://", PAGE, re.M))


def test_a_cell_about_another_library_names_a_source_or_a_measurement():
    assert len(TABLE) > 15
    for name, _, *others in TABLE:
        assert len(others) == 5, name
        for cell in filter(None, others):
            assert re.search(r"\[[a-h]\]$|\]\(performance\.md#", cell), f"{name}: '{cell}' has no source"


def test_the_sources_of_a_column_are_those_of_its_library():
    names = ("Stable-Baselines3", "CleanRL", "RLlib", "PureJaxRL", "Sample")
    for name, _, *others in TABLE:
        for library, cell in zip(names, others, strict=True):
            for letter in re.findall(r"\[([a-h])\]", cell):
                assert SOURCES[letter] == library, f"{name}: [{letter}] is of {SOURCES[letter]}"


def test_every_source_is_used():
    used = {letter for row in TABLE for cell in row for letter in re.findall(r"\[([a-h])\](?!\()", cell)}
    assert used == SOURCES.keys()


def test_what_runnel_lacks_is_said_below_the_table():
    lacks = {row[0] for row in TABLE if row[1] == "**no**"}
    assert lacks == {
        "offline data", "hybrid action spaces", "world models, search", "trained policies to download", "Windows"
    }  # fmt: skip
    weak = PAGE.partition("## Where Runnel is weaker")[2]
    assert all(word in weak for word in ("offline data", "hybrid actions", "world models", "policies to download"))


def test_the_versions_are_those_of_the_page_for_users_of_the_libraries():
    page = (ROOT / "docs" / "coming-from.md").read_text()
    coming = dict(re.findall(r"^\| ([\w -]+) \| (\d[\w.]*|a checkout)", page, re.M))
    (versions,) = [row[2:] for row in TABLE if row[0] == "version"]
    for library, cell in zip(coming, versions, strict=True):
        assert cell.startswith(coming[library]), f"{library}: {cell}"


def test_measured_speeds_are_those_of_the_page_about_performance():
    measured = (ROOT / "docs" / "performance.md").read_text().partition("## Measured")[2].replace("Gymnasium ", "")
    speeds = [row for row in TABLE if row[1].endswith("steps/s")]
    assert len(speeds) == 3
    for name, ours, *others in speeds:
        task, environments, machine = name.removeprefix("PPO on ").split(", ")
        (row,) = [line for line in measured.splitlines() if f"{task}, {environments} | {machine} |" in line]
        theirs = re.findall(r"([\d,]+) steps/s", " ".join(others))
        assert len(theirs) == 1
        assert f"| {theirs[0]} | {ours.removesuffix(' steps/s')} |" in row
