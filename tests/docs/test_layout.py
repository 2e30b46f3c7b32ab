"""The folders of the tests are those of what they test."""

from pathlib import Path

from paths import ROOT, SUPPORT, TESTS

OTHERS = {
    "docs": ROOT / "docs", "tools": ROOT / "tools", "benchmarks": ROOT / "benchmarks", "support": SUPPORT,
    "hide_and_seek": ROOT / "hide_and_seek",
}  # fmt: skip
OF_THE_WHOLE = {"class_names", "extension", "public"}
"""Tests of no single module."""


def misplaced(file):
    """Whether there is nothing that a file of tests, by its path below `tests`, could test where it lies."""
    if str(file.parent) == ".":
        name = file.name.removeprefix("test_")
        return name.removesuffix(".py") not in OF_THE_WHOLE and not (ROOT / "runnel" / name).exists()
    return str(file.parent) not in OTHERS and not (ROOT / "runnel" / file.parent / "__init__.py").exists()


def test_every_folder_of_tests_mirrors_a_package():
    files = [file.relative_to(TESTS) for file in TESTS.rglob("test_*.py")]
    assert len(files) > 200
    assert all(place.is_dir() for place in OTHERS.values())
    assert not [str(file) for file in files if misplaced(file)]


def test_a_misplaced_test_is_found():
    places = ("test_gaps.py", "plan/test_plan.py", "planning/test_plan.py", "test_replay.py", "docs/test_layout.py")
    assert [name for name in places if misplaced(Path(name))] == ["test_gaps.py", "plan/test_plan.py"]
