"""`population.json` and `lineage.jsonl` as training writes them, and edited."""

import json
from pathlib import Path
from typing import Any

import pytest

from runnel.errors import UserError
from runnel.recording import population_file
from runnel.recording.population_file import PopulationConfig, Round

CONFIG = PopulationConfig(1000, 3, {"class": "runnel.population:PBT", "settings": {}}, [{"a": 1.0}, {"a": 2.0}])
ROUNDS = [
    Round(1, 100, [1.0, None], [1], [0, 0], [{"a": 1.0}, {"a": 0.8}]),
    Round(2, 200, [1.0, 2.5], [], [0, 1], [{"a": 1.0}, {"a": 0.8}]),
]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    population_file.write(tmp_path, CONFIG)
    population_file.write_lineage(tmp_path, ROUNDS)
    return tmp_path


def test_both_are_read_as_they_were_written(directory: Path) -> None:
    assert population_file.read(directory, 2) == CONFIG
    assert population_file.read_lineage(directory, 2) == ROUNDS
    assert ROUNDS[0].copied == [(1, 0)]
    assert population_file.settings_now(CONFIG, []) == CONFIG.settings
    assert population_file.settings_now(CONFIG, ROUNDS) == ROUNDS[-1].settings


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 0}, {"steps": "9"}, {"steps": True}, {"seed": -1}, {"applied": -1}, {"applied": 1.5}, {"rule": "PBT"},
        {"settings": []}, {"settings": [{}, {"a": "x"}]}, {"settings": {"a": 1}}, {"code": 3}, {"steps": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_configuration_that_no_population_writes_is_refused(directory: Path, changed: dict[str, Any]) -> None:
    file = directory / "population.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(UserError, match=r"population.json is not as populations write it: found .*was the file edited"):
        population_file.read(directory, 2)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"format": 99}', "[" * 100_000, '{"steps": NaN}'])
def test_a_file_that_is_no_configuration_is_refused(directory: Path, text: str) -> None:
    (directory / "population.json").write_text(text)
    with pytest.raises(UserError, match=r"population\.json"):
        population_file.read(directory, 2)


@pytest.mark.parametrize(
    "changed",
    [
        {"round": 2}, {"env_steps": -1}, {"scores": [1.0]}, {"scores": [1.0, "x"]}, {"failed": [2]}, {"failed": None},
        {"parents": [0, 2]}, {"parents": [1, 0]}, {"parents": [0]}, {"parents": [0, True]}, {"settings": [{}]},
        {"settings": [{}, {"a": None}]}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_decision_that_no_population_writes_is_refused(directory: Path, changed: dict[str, Any]) -> None:
    (directory / "lineage.jsonl").write_text(json.dumps({**ROUNDS[0]._asdict(), **changed}) + "\n")
    with pytest.raises(UserError, match=r"lineage.jsonl, line 1, is not as populations write it"):
        population_file.read_lineage(directory, 2)


@pytest.mark.parametrize("text", ["x\n", "[]\n", "[" * 100_000 + "\n", "\n"])
def test_lines_that_are_no_decisions_are_refused(directory: Path, text: str) -> None:
    (directory / "lineage.jsonl").write_text(text)
    with pytest.raises(UserError, match=r"lineage\.jsonl, line 1"):
        population_file.read_lineage(directory, 2)
