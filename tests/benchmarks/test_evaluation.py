"""Pairs of runs that several commands measure make one result."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _machine, evaluation

ABOUT = {"date": "2026-01-01", "cores": 2, "device": "cpu", "python": "3.11", "versions": {"jax": "0.1"}}


@pytest.fixture(autouse=True)
def _measured_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: Any, seed: int, evaluated: bool) -> dict[str, Any]:
        return {"steps_per_second": 100.0 - seed - 2 * evaluated, "evaluations": 3 * evaluated, "skipped": 0}

    monkeypatch.setattr(evaluation, "run", run)
    monkeypatch.setattr(_machine, "describe_elsewhere", lambda *packages: ABOUT)


def measure(monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["evaluation.py", "--out", str(out), *more])
    evaluation.main()
    return json.loads((out / "evaluation-cpu-2026-01-01.json").read_text())


def test_pairs_that_are_measured_one_by_one_make_the_result_of_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measure(monkeypatch, tmp_path / "whole", "--runs", "3")
    assert [run["seed"] for run in whole["runs"]["with"]] == [0, 1, 2]
    assert whole["ratio"] == 97.0 / 99.0
    one = tmp_path / "one"
    file = str(one / "evaluation-cpu-2026-01-01.json")
    measure(monkeypatch, one, "--runs", "1")
    for seed in ("1", "2"):
        found = measure(monkeypatch, one, "--runs", "1", "--first-seed", seed, "--add", file)
    assert found == whole


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--actors", "4", "--first-seed", "1"], "found arguments"),
        (["--first-seed", "0"], "found runs of seed 0; choose another --first-seed"),
    ],
)
def test_runs_that_cannot_be_compared_are_not_added(
    more: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(monkeypatch, tmp_path, "--runs", "1")
    file = tmp_path / "evaluation-cpu-2026-01-01.json"
    before = file.read_text()
    with pytest.raises(SystemExit, match=words):
        measure(monkeypatch, tmp_path, "--runs", "1", "--add", str(file), *more)
    assert file.read_text() == before


def test_runs_of_another_machine_are_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(monkeypatch, tmp_path, "--runs", "1")
    monkeypatch.setattr(_machine, "describe_elsewhere", lambda *packages: {**ABOUT, "cores": 16})
    with pytest.raises(SystemExit, match="found cores 2, expected 16"):
        measure(monkeypatch, tmp_path, "--first-seed", "5", "--add", str(tmp_path / "evaluation-cpu-2026-01-01.json"))
