"""What the documentation shows works."""

import sys
from pathlib import Path

import pytest

import runnel

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"


@pytest.mark.parametrize("distribution", ["inline", "fused"])
@pytest.mark.parametrize("algorithm", ["reinforce:Reinforce"])
def test_the_algorithm_of_the_documentation_trains(algorithm, distribution, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    run = runnel.train(
        algorithm, "gymnax:CartPole-v1", distribution, steps=20_000, run_dir=tmp_path / "run", quiet=True
    )
    assert run.result["status"] == "finished"
    assert run.result["mean_return"] > 20
    sys.modules.pop("reinforce", None)


def test_the_algorithm_of_the_documentation_is_short():
    assert len((EXAMPLES / "reinforce.py").read_text().splitlines()) <= 90
