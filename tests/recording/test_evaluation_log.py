"""Lines of `evaluations.jsonl` that no run writes are left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runnel.recording.evaluation_log import FILE, read_evaluations

WRITTEN: dict[str, Any] = {
    "env_steps": 64, "episodes": 2, "mean_return": 1.5, "std_return": 0.5, "mean_length": 9, "return_interval": [1, 2],
    "returns": [1.0, 2.0],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"mean_return": 10**400},
        {"mean_return": float("inf")},
        {"returns": [10**400]},
        {"env_steps": 10**400},
        {"env": 3},
    ],
)
def test_lines_that_no_run_writes_are_left_out(change: dict[str, Any], tmp_path: Path) -> None:
    lines = [WRITTEN, {**WRITTEN, **change}, {**WRITTEN, "env_steps": 128}]
    (tmp_path / FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert [found["env_steps"] for found in read_evaluations(tmp_path)] == [64, 128]
