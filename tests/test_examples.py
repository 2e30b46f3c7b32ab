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


@pytest.mark.parametrize(("distribution", "workers"), [("staged:Staged", 4), ("staged:FusedOnOne", 1)])
def test_the_distributions_of_the_documentation_can_be_planned(distribution, workers, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    environment = "corridor:Corridor" if workers == 1 else "CartPole-v1"
    assert runnel.build("q_learning:QLearning", environment, distribution, envs=8).plan.workers == workers
    for module in ("staged", "q_learning", "corridor"):
        sys.modules.pop(module, None)


def test_a_distribution_of_the_documentation_trains(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    run = runnel.train(
        "q_learning:QLearning", "CartPole-v1", "staged:Staged", steps=2_000, run_dir=tmp_path / "run", quiet=True
    )
    assert run.result["status"] == "finished"
    for module in ("staged", "q_learning"):
        sys.modules.pop(module, None)
