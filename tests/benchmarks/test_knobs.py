"""The commands of the benchmark of knobs are understood, the two of a knob differ, and the page names its script."""

import json
import re
import sys

import pytest
from paths import ROOT

from benchmarks import knobs
from benchmarks.knobs import KNOBS
from runnel.cli import arguments

PAGE = (ROOT / "docs" / "performance-knobs.md").read_text()


@pytest.mark.parametrize("knob", KNOBS)
def test_both_commands_of_a_knob_are_understood(knob):
    without, having = (arguments.parse(command.split()) for command in KNOBS[knob])
    assert without.command == having.command == "train"
    assert vars(without) != vars(having)


def test_the_page_ties_every_knob_to_a_script_that_there_is():
    measured = {knob for line in re.findall(r"knobs\.py --only ([\w ]+)", PAGE) for knob in line.split()}
    assert measured == set(KNOBS)
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| knob", "| what"))]
    assert len(rows) > 20
    for row in rows:
        scripts = re.findall(r"`(benchmarks/\w+\.py)[^`]*`", row.split("|")[-2])
        assert scripts, row
        assert all((ROOT / script).exists() for script in scripts), row


@pytest.mark.slow
def test_too_few_steps_to_time_are_refused():
    with pytest.raises(SystemExit, match="expected more --steps than 512"):
        knobs.rate("train reinforce CartPole-v1 --envs 8 --set unroll=64", 512)


@pytest.mark.slow
def test_a_knob_is_measured_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["knobs.py", "--only", "hidden", "--rounds", "1", "--steps", "8192", "--out", str(tmp_path)]
    )
    knobs.main()
    assert re.search(r"^hidden .* steps/s .*x$", capsys.readouterr().out, re.M)
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert found["knobs"]["hidden"]["commands"] == list(KNOBS["hidden"])
    assert all(rate > 0 for pair in found["knobs"]["hidden"]["rates"] for rate in pair)
    assert found["machine"]["date"]
