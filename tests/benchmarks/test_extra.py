"""`make bench` installs what its scripts import, and the libraries of the environments that they name."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT, SUPPORT

from runnel.envs import FAMILIES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SCRIPTS = sorted((ROOT / "benchmarks").glob("[a-z]*.py"))
PACKAGES = {"pyspiel": "open-spiel", "zmq": "pyzmq"}
"""Of modules whose packages have another name."""
LEFT_OUT = {"sample_factory"}
"""`faults.py` leaves a library out, and says so, where it is not installed."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_by(requirements: list[str]) -> Iterator[str]:
    """The names of packages, of extras of Runnel's too."""
    for requirement in requirements:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", requirement).groups()  # type: ignore[union-attr]
        yield normal(name)
        if name == "runnel":
            yield from (package for extra in extras.split(",") for package in installed_by(EXTRAS[extra]))


INSTALLED = {*installed_by(PROJECT["dependencies"]), *installed_by(EXTRAS["bench"])}


def sources(script: Path) -> list[Path]:
    """The script and what it imports of this checkout, which is not Runnel; for faults.py what its peers run, too."""
    rest, found = [script, *(ROOT.glob("benchmarks/_fault_peers/*.py") if script.stem == "faults" else [])], []
    while rest:
        path = rest.pop()
        found.append(path)
        for module in (module for module in imported(path) if not module.startswith("runnel")):
            places = [ROOT / f"{module.replace('.', '/')}.py", SUPPORT / f"{module}.py"]
            rest += [place for place in places if place.is_file() and place not in [*found, *rest]]
    return found


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def needed(script: Path) -> set[str]:
    """Packages."""
    paths = sources(script)
    modules = {module.partition(".")[0] for path in paths for module in imported(path)}
    ours = {"runnel", "hide_and_seek", "benchmarks", *(path.stem for path in SUPPORT.glob("*.py"))}
    text = "\n".join(path.read_text() for path in paths)
    modules |= {family.package for family in FAMILIES if family.package and re.search(rf'"{family.prefix}\w', text)}
    modules |= {"optuna"} if "runnel.sweep(" in text else set()
    return {normal(PACKAGES.get(each, each)) for each in modules - ours - LEFT_OUT - sys.stdlib_module_names}


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_the_extra_brings_what_a_benchmark_needs(script: Path) -> None:
    assert needed(script) <= INSTALLED


def test_what_is_needed_is_found() -> None:
    found = {script.stem: needed(script) for script in SCRIPTS}
    assert {"torch", "stable-baselines3", "ray"} <= found["faults"]
    assert "navix" in found["members_navix"]
    assert "optuna" in found["sweep_members"]
    assert "websockets" in found["dash"]
    assert {"pgx"} <= found["opponents"] & found["self_play"]
    assert {"ale-py", "jaxmarl"} <= found["learning"]
    assert "ale-py" in found["evaluation"]
