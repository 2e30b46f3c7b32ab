"""The architecture page draws the layers that import-linter checks, and names files that exist in every package."""

import re
import tomllib

import pytest
from paths import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = sorted(path.parent.name for path in (ROOT / "runnel").glob("*/__init__.py"))
SECTIONS = dict(re.findall(r"^### `(\w+)/`\n(.*?)(?=^##)", PAGE, re.M | re.S))


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


def test_every_subpackage_of_the_runtime_is_described():
    for path in (ROOT / "runnel" / "runtime").glob("*/__init__.py"):
        assert f"`runtime/{path.parent.name}/`" in SECTIONS["runtime"]


def test_every_module_at_the_top_is_described():
    modules = {path.name for path in (ROOT / "runnel").glob("*.py")} - {"__main__.py"}
    assert set(re.findall(r"`(\w+\.py)`", SECTIONS["runnel"])) == modules
