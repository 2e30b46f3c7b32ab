"""The script that makes the pictures of the documentation makes each of them, in the size that the pages show."""

import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT))

from tools import pictures, plan_pictures

pytest.importorskip("websockets")
import browser

LEAST_COLOURS = 60
"""A page without curves, plans and words has fewer."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(browser.path() is None, reason="there is no Chromium on this machine")
def test_short_runs_give_every_picture(tmp_path: Path):
    images = ROOT / "docs" / "images"
    committed = {path.name: path.read_bytes() for path in images.iterdir()}
    command = [ROOT / "tools" / "pictures.py", "--steps", "4096", "--curve-seconds", "2", "--out", tmp_path / "made"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    made = {path.name: path for path in (tmp_path / "made").iterdir()}
    assert made.keys() == {*pictures.PICTURES, *plan_pictures.PICTURES}
    for name in plan_pictures.PICTURES:
        assert made[name].read_bytes() == committed[name]
    for name in pictures.PICTURES:
        picture, shown = (matplotlib.image.imread(path) for path in (made[name], images / name))
        assert picture.shape[:2] == shown.shape[:2], f"{name} has another size than the one that pages show"
        colours = len(np.unique(np.round(picture[..., :3] * 255).reshape(-1, 3), axis=0))
        assert colours >= LEAST_COLOURS, f"{name} is blank, or nearly"
    assert {path.name: path.read_bytes() for path in images.iterdir()} == committed


def test_a_command_that_fails_ends_the_script():
    with pytest.raises(SystemExit, match=r"runnel plan nothing CartPole-v1 ended with 2"):
        pictures._ended("plan", "nothing", "CartPole-v1")
