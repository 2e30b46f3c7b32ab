"""The architecture page draws the layers that import-linter checks, and names every module."""

import re
import tomllib
from pathlib import Path

import pytest
from paths import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = sorted(path.parent.name for path in (ROOT / "runnel").glob("*/__init__.py"))
SECTIONS = dict(re.findall(r"^### `(\w+)/`\n(.*?)(?=^##)", PAGE, re.M | re.S))
REST = {package.rstrip("/"): modules for package, modules in re.findall(r"^\| `([\w/]+)` \| (.*) \|$", PAGE, re.M)}
"""By package: the modules that its paragraph leaves out, from the table."""
MOST_WORDS = 120
MODULES = sorted(
    path.relative_to(ROOT / "runnel")
    for path in (ROOT / "runnel").rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
)


def test_the_layers_drawn_are_the_layers_checked():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract.get("containers") == ["runnel"]]
    drawn = re.search(r"^```text\nlayers .*?\n\n(.*?)^```", PAGE, re.M | re.S)
    assert drawn is not None
    lines = [line for line in drawn[1].splitlines() if line.strip() != "|"]
    assert [re.split(r" {2,}", line)[0] for line in lines] == [layer for layer in layers if layer != "__main__"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_has_a_paragraph_that_names_its_files(package):
    section = SECTIONS[package]
    subpackage = ""
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", section):
        if name.startswith(f"{package}/"):
            assert (ROOT / "runnel" / name).exists(), f"there is no runnel/{name}"
            subpackage = name if name.endswith("/") else subpackage
        else:
            place = ROOT / "runnel" / (subpackage or package) / name
            assert place.exists(), f"there is no {place.relative_to(ROOT)}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_paragraph_on_a_package_is_short(package):
    for paragraph in re.split(r"\n\n|\n- ", SECTIONS[package]):
        assert len(paragraph.split()) <= MOST_WORDS, paragraph[:60]


@pytest.mark.parametrize("package", REST)
def test_the_table_names_files_of_the_package(package):
    missing = [
        name for name in re.findall(r"`(\w+\.py)`", REST[package]) if not (ROOT / "runnel" / package / name).exists()
    ]
    assert not missing, f"runnel/{package} has no {', '.join(missing)}"


@pytest.mark.parametrize("package", ["execution", "runtime"])
def test_every_subpackage_is_described(package):
    inner = [path.parent.name for path in (ROOT / "runnel" / package).glob("*/__init__.py")]
    assert inner
    assert [name for name in inner if f"`{package}/{name}/`" not in SECTIONS[package]] == []


def test_the_section_on_what_users_write_against_names_no_other_module():
    assert set(re.findall(r"`(\w+\.py)`", SECTIONS["runnel"])) <= {str(module) for module in MODULES} | {"__init__.py"}


def named(module, sections, rest, page):
    """Whether a page names a module: in the section of its package, in the table, or anywhere by its path."""
    section = sections[module.parts[0] if len(module.parts) > 1 else "runnel"]
    row = rest.get(module.parent.as_posix(), "")
    return f"`{module.name}`" in section + row or f"`{module.as_posix()}`" in page


def test_every_module_is_named():
    missing = [str(module) for module in MODULES if not named(module, SECTIONS, REST, PAGE)]
    assert not missing, f"docs/architecture.md does not name: {', '.join(missing)}"


def test_a_module_that_is_not_named_is_found():
    assert not named(Path("launch/nothing.py"), SECTIONS, REST, PAGE)
    assert not named(Path("nothing.py"), SECTIONS, REST, PAGE)
    page = "### `launch/`\n`agent.py`\n### `ops/`\n`td.py`, `launch/host.py`\n"
    sections = {"launch": "`agent.py`", "ops": "`td.py`, `launch/host.py`"}
    rest = {"launch/ray": "`link.py`: the connection"}
    assert named(Path("launch/agent.py"), sections, rest, page)
    assert named(Path("launch/host.py"), sections, rest, page)
    assert named(Path("launch/ray/link.py"), sections, rest, page)
    assert not named(Path("launch/link.py"), sections, rest, page)
    assert not named(Path("launch/td.py"), sections, rest, page)
