"""What docs/performance.md says of first lines and of the live page is what results have, within the limits."""

import json
import statistics
import sys

import pytest
from paths import ROOT

sys.path.insert(0, str(ROOT))

from benchmarks import dash, startup
from tools import measured_sentences


def test_the_page_says_what_the_newest_results_have():
    text = measured_sentences.PAGE.read_text()
    named = [found[2] for found in measured_sentences.PARAGRAPH.finditer(text)]
    assert sorted(named) == sorted(measured_sentences.SENTENCES)
    assert measured_sentences.written(text) == text, "run `python tools/measured_sentences.py`"


def test_help_and_first_line_are_within_their_limits():
    commands = measured_sentences.newest("first_words")["first_words"]["commands"]
    limits = {"runnel --help, to its end": startup.HELP_S, "runnel train, first line": startup.LINE_S}
    assert commands.keys() == limits.keys()
    for name, runs in commands.items():
        assert len(runs) >= 5
        assert statistics.median(run["wall_s"] for run in runs) < limits[name]


def test_200_runs_open_within_the_limit():
    found = measured_sentences.newest("dash")
    assert found["runs"] == 200
    assert len(found["opened"]) >= 5
    assert statistics.median(run["first_s"] for run in found["opened"]) < dash.LIMIT_S


def test_sentences_are_made_from_the_newest_result(tmp_path):
    machine = {"cores": 2, "python": "3.11.7", "date": "2026-01-02"}
    run = {"start_s": 1.0, "first_s": 1.25, "first_cpu_s": 2.0, "again_s": 0.5}
    for date, runs in (("2026-01-02", 200), ("2025-12-31", 7)):
        result = {"machine": {**machine, "date": date}, "runs": runs, "lines": 3600, "opened": [run, run, run]}
        (tmp_path / f"dash-cpu-{date}.json").write_text(json.dumps(result))
    made = measured_sentences.written("before\n\n<!-- measured: dash -->\nold\nold\n\nafter\n", tmp_path)
    assert "200 runs, each with 3,600 lines of metrics,\n1.25 s after" in made
    assert "medians of 3 on 2 cores, 2026-01-02, Python 3.11" in made
    assert made.startswith("before\n\n<!-- measured: dash -->\n`runnel dash` shows")
    assert made.endswith(").\n\nafter\n")
    assert measured_sentences.written(made, tmp_path) == made
    with pytest.raises(SystemExit, match="found no first_words"):
        measured_sentences.written("<!-- measured: first_words -->\nold\n", tmp_path)
