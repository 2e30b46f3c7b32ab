"""No sample is older than the bound, whatever is between actors and learner; measured in `learn`."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aging import Ages, Between, TeamAges

import runnel

HOST, COMPILED, TEAMS = "CartPole-v1", "toys:Corridor", "toys:Tag"


def ages(algorithm: Ages, environment: str, layout: Between, place: Path, iterations: int = 40, **settings: Any) -> int:
    """Trains, and compares what is reported with what `learn` has seen; gives the highest staleness."""
    algorithm, layout = replace(algorithm, maps=max(algorithm.maps, len(layout.mappers))), replace(layout)
    steps = iterations * algorithm.unroll * 4
    run = runnel.train(
        algorithm, environment, layout, envs=4, steps=steps, seed=1, run_dir=place / "run", quiet=True,
        hang_after_s=60.0, **settings,
    )  # fmt: skip
    found, result = run.states.values(), run.result
    assert result["status"] == "finished"
    assert result["restarts"] == 0
    measured = max(int(state.oldest) for state in found)
    within = max(algorithm.replayed, 1) - 1  # of an iteration's updates from a replay, the last comes so much later
    assert measured - within <= result["staleness_max"] <= measured
    assert measured - within <= layout.bound
    assert 0 < sum(int(state.updates) for state in found) == result["updates"]
    if not algorithm.replayed:
        mean = sum(float(state.total) for state in found) / result["updates"]
        assert result["staleness_mean"] == pytest.approx(mean, abs=1e-3)
    return measured


OFTEN = {"checkpoint_every_s": 0.1}
FAST = {
    "a map": (Ages(), COMPILED, Between(mappers=(1,)), {}),
    "a chain of replicas": (Ages(bound=1), HOST, Between(acts="inference", mappers=(2, 2), bound=1), OFTEN),
    "a replay of its own": (Ages(replayed=2), HOST, Between(acts="server", stores=True, env_splits=2), OFTEN),
}


@pytest.mark.parametrize("case", FAST)
def test_what_is_learnt_from_is_not_older_than_the_bound(case, tmp_path):
    algorithm, environment, layout, settings = FAST[case]
    assert ages(algorithm, environment, layout, tmp_path, **settings) > 0


def random_layout(draw: random.Random) -> tuple[Ages, str, Between, dict[str, Any]]:
    """Any actors, with or without inference workers, a chain of maps, a replay somewhere or none, one group or two."""
    teams, replayed = draw.random() < 0.25, draw.choice([0, 0, 1, 2, 3])
    # With two groups, as many as keep two updates an iteration from being a barrier.
    bound, mappers = draw.randint(3 if teams else 1, 6), tuple(draw.randint(1, 3) for _ in range(draw.randint(0, 3)))
    layout = Between(
        actors=draw.choice([1, 2, 4]), acts=draw.choice(["actor", "inference", "server"]), mappers=mappers,
        stores=bool(replayed) and not teams and draw.random() < 0.7, bound=bound, env_splits=draw.choice([1, 2]),
    )  # fmt: skip
    kind = TeamAges if teams else Ages
    algorithm = kind(
        bound=bound, work=draw.choice([0, 20_000, 200_000]), replayed=0 if teams else replayed,
        learns=1 if replayed else draw.choice([1, 1, 2]),
    )  # fmt: skip
    settings = OFTEN if draw.random() < 0.5 else {}
    return algorithm, TEAMS if teams else draw.choice([HOST, COMPILED]), layout, settings


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_older_than_the_bound_whatever_stands_between(seed, tmp_path):
    algorithm, environment, layout, settings = random_layout(random.Random(seed))
    ages(algorithm, environment, layout, tmp_path, iterations=60, **settings)
