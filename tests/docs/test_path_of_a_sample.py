"""Every step of the page on the path of a sample names a file, and functions that this file defines."""

import re

import pytest
from definitions import definitions
from paths import ROOT

PAGE = (ROOT / "docs" / "path-of-a-sample.md").read_text()
STEPS = re.findall(r"^\| (\d+) \| `(runnel/[\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+) \|", PAGE, re.M)


def test_every_row_is_a_step_with_a_file_and_a_name():
    assert len(STEPS) == len(re.findall(r"^\| \d", PAGE, re.M))


@pytest.mark.parametrize(("number", "file", "names"), STEPS, ids=[f"{file}-{number}" for number, file, _ in STEPS])
def test_a_step_happens_where_the_page_says(number, file, names):
    missing = set(re.findall(r"`([\w.]+)`", names)) - definitions(ROOT / file)
    assert not missing, f"step {number}: {file} does not define {', '.join(sorted(missing))}"
