"""Learning from unrolls again, with real workers: updates and steps add up, nothing is too old, whatever happens."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from aging import Ages, TeamAges
from chaos import Chaos
from kill_runs import train

import runnel
from runnel.distributions.asynchronous import Async
from runnel.distributions.coarse import Coarse
from runnel.distributions.decoupled import Decoupled

SLOW_ACTORS = dict(unroll=16, work=0, bound=4, reuses=3)
ENVS, ITERATIONS = 4, 60
CASES: dict[str, tuple[Ages, str, Any]] = {
    "async": (Ages(**SLOW_ACTORS), "CartPole-v1", Async(actors=2)),
    "decoupled, two groups": (TeamAges(**SLOW_ACTORS), "toys:Tag", Decoupled(actors=2)),
}


@pytest.mark.parametrize("case", ["async", pytest.param("decoupled, two groups", marks=pytest.mark.slow)])
def test_unrolls_are_learnt_from_again_and_none_is_too_old(case: str, tmp_path: Path) -> None:
    """Pauses often: batches kept for reuse are then released, and counted."""
    algorithm, environment, distribution = CASES[case]
    per_iteration = algorithm.unroll * ENVS
    run = runnel.train(
        algorithm, environment, distribution, envs=ENVS, steps=ITERATIONS * per_iteration, seed=1,
        run_dir=tmp_path / "run", quiet=True, checkpoint_every_s=0.2, hang_after_s=60.0,
    )  # fmt: skip
    result, states = run.result, run.states.values()
    assert (result["status"], result["restarts"]) == ("finished", 0)
    fresh, remainder = divmod(result["env_steps"], per_iteration)
    assert remainder == 0  # what is learnt from again is not stepped again
    assert result["reused_updates"] > 0
    assert result["updates"] == fresh * len(states) + result["reused_updates"]
    assert result["updates"] <= fresh * len(states) * algorithm.reuses
    assert sum(int(state.updates) for state in states) == result["updates"]
    assert 0 < max(int(state.oldest) for state in states) == result["staleness_max"] <= algorithm.bound
    if environment == "toys:Tag":  # whose episodes have ten steps
        assert 0 < result["episodes"] <= result["env_steps"] // 10
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["reused_updates"] == result["reused_updates"]
    assert records[-1]["updates"] == result["updates"]

    steps = result["env_steps"] + 8 * per_iteration
    synchronous = runnel.resume(tmp_path / "run", steps=steps, distribution=Coarse(actors=2), quiet=True)
    assert synchronous.result["env_steps"] == steps  # an iteration is made of new unrolls alone
    assert synchronous.result["updates"] == result["updates"] + 8 * len(states)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async", "decoupled"])
def test_killed_workers_do_not_stop_a_run_that_reuses_samples(name: str, tmp_path: Path) -> None:
    command = [
        "ppo",
        "CartPole-v1",
        "--distribution",
        name,
        "--actors",
        "2",
        "--set",
        "reuses=3",
        "epochs=1",
        "staleness=4",
    ]
    players = "actor" if name == "async" else "environment"
    workers = [f"{players}-0", f"{players}-1", "learner", "learner"]
    chaos = Chaos(
        train(command, tmp_path / "run", 150_000), tmp_path / "run", workers, seed=4, pause_s=(1.0, 3.0),
        signals=[signal.SIGKILL, signal.SIGSTOP], most=8,
    )  # fmt: skip
    assert chaos.run(400) == 0, chaos.output()
    result = chaos.result()
    assert result["status"] == "finished"
    assert chaos.done
    assert result["staleness_max"] <= 4
    assert 0 < result["reused_updates"] < result["updates"]
