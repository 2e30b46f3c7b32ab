"""Files, tests, classes and functions that the documentation names exist."""

import re
import tomllib
from pathlib import Path

import pytest
from definitions import definitions
from paths import ROOT

import runnel

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGE = ROOT / "runnel"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {stem: [file for file in FILES if file.stem == stem] for stem in {file.stem for file in FILES}}
CLASSES = {name for file in FILES for name in definitions(file) if name[0].isupper()}
SUFFIXES = ("py", "md", "json", "jsonl", "toml", "txt", "svg", "png", "mp4", "pt", "log", "sh", "yml", "yaml", "html")
LIBRARIES = ("brax", "envpool", "gymnasium", "gymnax", "jaxmarl", "openspiel", "pettingzoo", "pgx")
"""Adapters that are named like the library that they adapt."""
PLACES = (
    "runnel",
    "hide_and_seek",
    "tests",
    "benchmarks",
    "docs",
    "tools",
    *(path.name for path in PACKAGE.iterdir() if path.is_dir()),
)
"""With what a path in a page begins: a folder of the repository, or a package."""


def words(page):
    """What a page says between backticks, outside code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S))


def missing_file(word):
    """The file that a word names and that does not exist."""
    path = word.partition("::")[0]
    if not re.fullmatch(r"\w+(/\w+)+\.py", path) or path.partition("/")[0] not in PLACES:
        return None
    return None if any((base / path).is_file() for base in (ROOT, PACKAGE, ROOT / "tests", ROOT / "docs")) else path


def exported(parts):
    """Whether `runnel.` and these parts name a package, a module, what a module defines or a public name."""
    place = PACKAGE
    for i, part in enumerate(parts):
        if (place / f"{part}.py").is_file():
            rest = ".".join(parts[i + 1 :])
            return not rest or rest in definitions(place / f"{part}.py")
        if not (place / part).is_dir():
            return i == 0 and part in runnel.__all__
        place = place / part
    return True


def missing_name(word):
    """The function, class or member, as `module.name` or `Class.member`, that a word names and nobody defines."""
    if re.fullmatch(r"runnel(\.\w+)+", word):
        return None if exported(word.split(".")[1:]) else word
    found = re.fullmatch(r"(\w+)\.(\w+(?:\.\w+)?)(?:\(.*\))?", word)
    if found is None or found[2].rpartition(".")[2] in SUFFIXES:
        return None
    owner, name = found.groups()
    if owner in CLASSES:
        return None if any(f"{owner}.{name}" in definitions(file) for file in FILES) else word
    if owner in MODULES and owner not in LIBRARIES:
        has = {known for file in MODULES[owner] for known in definitions(file)}
        return None if name in has or any(known.endswith(f".{name}") for known in has) else word
    return None


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_files_and_names_of_a_page_exist(page):
    missing = [word for word in words(page) if missing_file(word) or missing_name(word)]
    assert not missing, f"{page.name} names what does not exist: {', '.join(missing)}"


def test_what_does_not_exist_is_found():
    assert missing_file("planning/plan.py") is None
    assert missing_file("planning/plans.py")
    assert missing_file("tests/planning/test_nothing.py")
    assert missing_name("plan.build_plan") is None
    assert missing_name("plan.no_such_function")
    assert missing_name("Plan.text") is None
    assert missing_name("Plan.no_such_method")
    assert missing_name("runnel.train") is None
    assert missing_name("runnel.no_such_name")
    assert missing_name("runnel.planning.plan.Plan") is None
    assert missing_name("runnel.planning.plan.Plane")
    assert missing_name("config.json") is None


TABLE = (ROOT / "docs" / "faults.md").read_text().partition("| what | what the run does | test |")[2]
FAULTS = [row for row in TABLE.splitlines() if row.startswith("| ")]


@pytest.mark.parametrize("row", FAULTS, ids=[row.split(" | ")[0].strip("| ")[:60] for row in FAULTS])
def test_the_tests_of_a_fault_exist(row):
    """`file::test` or `file`; a test alone is of the file before it."""
    tests = re.findall(r"`([^`]+)`", row.split(" | ")[2])
    file = None
    for name in tests:
        path, _, test = name.partition("::")
        if path.endswith(".py"):
            file = ROOT / "tests" / path
            assert file.is_file(), f"there is no tests/{path}"
        elif path.startswith("test_"):
            test = path
        assert isinstance(file, Path), f"{name} follows no file"
        assert not test or test in definitions(file), f"{file.relative_to(ROOT)} has no {test}"
    assert file, "names no test"


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    pages = sorted(page.name for page in (ROOT / "docs").glob("*.md"))
    assert sorted(re.findall(r": ([\w-]+\.md)$", nav, re.M)) == pages


KNOBS = (ROOT / "docs" / "performance-knobs.md").read_text()


@pytest.mark.parametrize(
    ("script", "only"), sorted(set(re.findall(r"`(benchmarks/\w+\.py)(?: --only ([\w ]+))?`", KNOBS)))
)
def test_a_knob_is_measured_by_the_script_that_its_row_names(script, only):
    text = (ROOT / script).read_text()
    for name in only.split():
        assert re.search(rf'^    "{name}": \(', text, re.M), f"{script} does not know --only {name}"


def test_every_knob_has_a_script():
    rows = [row for row in KNOBS.splitlines() if row.startswith("| ") and not row.startswith(("| knob |", "| what |"))]
    assert len(rows) > 20
    assert not [row for row in rows if not re.search(r"`benchmarks/\w+\.py[^`]*` \|$", row)]


def test_every_extra_that_a_user_may_add_is_on_the_first_page():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", (ROOT / "docs" / "index.md").read_text(), re.M))
    assert table.keys() == extras.keys() - {"bench", "dev", "docs"}
    (everything,) = extras["all"]
    left_out = table.keys() - {"all", *re.findall(r"\w+", everything)}
    said = re.findall(r"`(\w+)`", table["all"])
    assert said == sorted(left_out)
