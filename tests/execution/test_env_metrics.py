"""Metrics of the environment on their way to the driver, under every distribution; and the returns they replace."""

import functools
import json

import numpy as np
import pytest
from kill_runs import final_state
from reporters import SCALE, Darts, Match, Older, TracedDarts

import runnel
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.ppo import PPO
from runnel.algorithms.reinforce import Reinforce
from runnel.recording.metrics import read_metrics

SMALL = PPO(unroll=8, minibatches=2, epochs=1, hidden=(8,))
PER_ITERATION = 8 * 4

WAYS = {
    "inline": (Darts, "inline", {}),
    "coarse": (Darts, "coarse", {"actors": 2}),
    "fine": (Darts, "fine", {"actors": 2}),
    "async": (Darts, "async", {"actors": 2}),
    "decoupled": (Darts, "decoupled", {"actors": 2}),
    "replicated": (Darts, "replicated", {"learners": 2}),
    "central": (Darts, "central", {"actors": 2}),
    "JAX, fused": (TracedDarts, "fused", {}),
    "JAX, inline": (TracedDarts, "inline", {}),
    "JAX, coarse": (TracedDarts, "coarse", {"actors": 2}),
    "JAX, fine": (TracedDarts, "fine", {"actors": 2}),
    "JAX, async": (TracedDarts, "async", {"actors": 2}),
    "JAX, replicated": (TracedDarts, "replicated", {"learners": 2}),
}
ASYNCHRONOUS = ("async", "decoupled", "central")
NAMES = {"env/is_success", "env/throws", "env/total"}  # and others that only one of the two has
QUICK = ("inline", "coarse", "fine", "async", "JAX, fused", "JAX, coarse")
EACH_WAY = [pytest.param(way, marks=[] if way in QUICK else [pytest.mark.slow]) for way in WAYS]


def train(environment, distribution, run_dir, *, iterations=6, fields=None, algorithm=None, **arguments):
    algorithm = algorithm or (IMPALA(unroll=8, hidden=(8,)) if distribution in ASYNCHRONOUS else SMALL)
    return runnel.train(
        algorithm, environment, distribution, envs=4, steps=iterations * PER_ITERATION, seed=3, run_dir=run_dir,
        quiet=True, **(fields or {}), **arguments,
    )  # fmt: skip


def last(run):
    return read_metrics(run.run_dir)[-1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs, each made once for all tests that look at it."""

    @functools.cache
    def run(way, **settings):
        environment, distribution, fields = WAYS[way]
        return train(
            environment, distribution, tmp_path_factory.mktemp("run") / "run", fields=fields, env_settings=settings
        )

    return run


@pytest.mark.parametrize("way", EACH_WAY)
def test_metrics_and_scores_are_of_the_very_episodes_that_are_learnt_from(way, trained):
    """Fewer than 100 episodes end, so all windows have all of them: each once, and none is missing."""
    run = trained(way, scores=1)
    record = last(run)
    assert 10 < record["episodes"] < 100
    assert 3 <= record["env/throws"] <= 6
    assert record["mean_return"] == pytest.approx(SCALE * record["env/total"])
    assert record["mean_length"] == pytest.approx(10 * record["env/throws"])
    if WAYS[way][1] not in ASYNCHRONOUS:  # there, more episodes have ended than were learnt from
        assert record["env/total"] == pytest.approx(record["learner_return"])
    assert 0 < record["env/is_success"] < 1
    assert any(name.startswith("learn/") for name in record)  # though the last workers' reports have no update
    assert {name for name in record if name.startswith("env/")} - {"env/sometimes", "env/mark"} == NAMES
    assert run.result["mean_return"] == record["mean_return"]
    assert run.result["learner_return"] == record["learner_return"]
    assert run.result["env"] == {name.removeprefix("env/"): record[name] for name in record if name.startswith("env/")}
    assert json.loads((run.run_dir / "result.json").read_text())["env"] == run.result["env"]


@pytest.mark.parametrize("way", ["inline", "JAX, fused"])
def test_without_a_score_of_its_own_an_environments_return_is_what_learning_sees(way, trained):
    record = last(trained(way))
    assert record["mean_return"] == pytest.approx(record["env/total"])
    assert record["mean_length"] == pytest.approx(record["env/throws"])
    assert "learner_return" not in record


@pytest.mark.parametrize("way", ["inline", "JAX, fused", pytest.param("fine", marks=pytest.mark.slow)])
def test_training_is_bitwise_the_same_with_and_without_metrics(way, trained):
    silent, reporting, scoring = trained(way, reports=False), trained(way), trained(way, scores=1)
    assert "env" not in silent.result
    assert checkpoint(silent) == checkpoint(reporting) == checkpoint(scoring)


def checkpoint(run):
    """All arrays of the last checkpoint, as bytes."""
    return {name: np.asarray(array).tobytes() for name, array in final_state(run.run_dir).items()}


@pytest.mark.parametrize("distribution", ["fused", pytest.param("fine", marks=pytest.mark.slow)])
def test_groups_have_metrics_and_scores_of_their_own(distribution, tmp_path):
    algorithm = Reinforce(unroll=8, hidden=(8,))
    record = last(train(Match, distribution, tmp_path / "run", iterations=2, algorithm=algorithm))
    names = {name: value for name, value in record.items() if name.startswith(("env/", "return/"))}
    assert names == {
        "env/solo/clock": 3, "env/pair/clock": 3, "env/pair/even": 0, "return/solo": 30, "return/pair": 60,
    }  # fmt: skip
    assert record["mean_return"] == 45
    assert record["learner_return"] == 6


@pytest.mark.parametrize(
    "way", ["inline", *(pytest.param(w, marks=pytest.mark.slow) for w in ("JAX, fused", "coarse"))]
)
def test_a_run_stops_at_the_environments_own_score(way, tmp_path):
    """Which learning never sees."""
    environment, distribution, fields = WAYS[way]
    run = train(
        environment, distribution, tmp_path / "run", iterations=200, fields=fields, stop_at_return=SCALE * 1.0,
        env_settings={"scores": 1},
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert run.result["env_steps"] < 200 * PER_ITERATION
    assert run.result["mean_return"] >= SCALE
    assert run.result["episodes"] >= 100


@pytest.mark.parametrize(
    "way", ["inline", *(pytest.param(w, marks=pytest.mark.slow) for w in ("JAX, fused", "coarse"))]
)
def test_a_run_does_not_stop_at_what_learning_sees(way, tmp_path):
    environment, distribution, fields = WAYS[way]
    run = train(
        environment, distribution, tmp_path / "run", iterations=40, fields=fields, stop_at_return=0.5,
        env_settings={"scores": -1},
    )  # fmt: skip
    assert run.result["learner_return"] > 0.5 > run.result["mean_return"]
    assert run.result["env_steps"] == 40 * PER_ITERATION


@pytest.mark.parametrize("environment", [Darts, pytest.param(TracedDarts, marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_with_the_newest_episodes(environment, tmp_path):
    settings = {"scores": 1}
    whole = train(environment, "inline", tmp_path / "whole", env_settings=settings)
    train(environment, "inline", tmp_path / "parts", iterations=5, env_settings=settings)
    parts = runnel.resume(tmp_path / "parts", steps=6 * PER_ITERATION, quiet=True)
    for name in ("mean_return", "learner_return", "episodes"):
        assert parts.result[name] == pytest.approx(whole.result[name]), name
    assert parts.result["env"] == pytest.approx(whole.result["env"])


def test_a_host_environment_written_before_there_were_metrics_still_works(tmp_path):
    run = train(Older(), "inline", tmp_path / "run")
    assert run.result["episodes"] > 10
    assert "env" not in run.result
