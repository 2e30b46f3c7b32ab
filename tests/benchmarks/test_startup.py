"""The benchmark of starting measures the command that is installed, and keeps what it found with machine and date."""

import json
import re
import sys

import pytest

from benchmarks import startup


def test_help_and_first_line_are_measured_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["startup.py", "--only-lines", "--runs", "1", "--out", str(tmp_path)])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    startup.main()
    out = capsys.readouterr().out
    assert re.search(r"^runnel --help, to its end .* of the processor; under 0.3: ", out, re.M)
    assert re.search(r"^runnel train, first line .* of the processor; under 1.0: ", out, re.M)
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert found["machine"]["date"]
    for runs in found["first_words"]["commands"].values():
        assert [0 < run["cpu_s"] <= run["wall_s"] + 0.05 for run in runs] == [True]


def test_a_command_that_says_nothing_is_no_measurement():
    with pytest.raises(SystemExit, match="runnel nothing printed nothing"):
        startup.answer(["nothing"], whole=True)
