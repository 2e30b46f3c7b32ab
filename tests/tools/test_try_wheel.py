"""What is published trains where there is no checkout."""

import configparser
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT))

from tools import try_wheel


@pytest.mark.slow
def test_the_wheel_trains_without_the_checkout(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "try_wheel.py", "--offline"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1].endswith("finished after 6,144 steps")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git says what is published")
def test_the_source_distribution_has_what_its_tests_need_and_the_wheel_the_package(tmp_path: Path) -> None:
    source, wheel = try_wheel.build(tmp_path)
    assert try_wheel.missing(source, wheel) == []
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (each for each in packed.namelist() if each.endswith(".dist-info/entry_points.txt"))
        registered = configparser.ConfigParser()
        registered.read_string(packed.read(name).decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dict(registered["console_scripts"]) == project["scripts"]
    assert dict(registered["runnel.sinks"]) == project["entry-points"]["runnel.sinks"]
