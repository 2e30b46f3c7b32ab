"""CartPole is solved under every distribution."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.distributions import CASES, GOAL, train


@pytest.mark.slow
@pytest.mark.learns
@pytest.mark.parametrize("name", CASES)
def test_cartpole_is_solved(name, tmp_path):
    result = train(name, seed=1, run_dir=tmp_path / "run")
    assert result["status"] == "finished"
    assert result["mean_return"] >= GOAL
