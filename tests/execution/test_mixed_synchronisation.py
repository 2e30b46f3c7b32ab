"""Cut edges that synchronise differently: samples are as old as their group's edges allow; runs pause and survive."""

import signal
from pathlib import Path
from typing import Any

import apart
import jax
import numpy as np
import pytest
from aging import Ages, OneGroupWaits, SlowPrioritised, SlowRunners, TeamAges
from chaos import Chaos
from interrupts import StopAt
from kill_runs import final_state, train, undisturbed
from paths import EXAMPLES

import runnel
from runnel.execution.building import build
from runnel.planning.plan import Distribution

OFTEN = {"checkpoint_every_s": 0.1}


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import mixed_synchronisation

    return mixed_synchronisation


def trained(
    algorithm: Any, environment: str, distribution: Distribution, place: Path, steps: int, **settings: Any
) -> Any:
    run = runnel.train(
        algorithm, environment, distribution, envs=4, steps=steps, seed=1, run_dir=place, quiet=True, hang_after_s=60.0,
        **settings,
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert run.result["env_steps"] >= steps
    plan = build(algorithm, environment, distribution, 4).plan
    streams = {(stream["source"], stream["target"], stream["kind"]) for stream in run.result["streams"]}
    assert streams == {(c.source, c.target, c.channel) for c in plan.cuts if c.channel != "store"}
    return run


@pytest.mark.parametrize("environment", ["CartPole-v1", "toys:Corridor"])
def test_what_acts_waits_every_step_and_the_learner_does_not(environment, examples, tmp_path):
    """Often paused: what acts in step with environments pauses before them."""
    algorithm = Ages(bound=4, work=50_000)
    run = trained(algorithm, environment, examples.InStepInference(), tmp_path / "run", 60 * 2 * 4, **OFTEN)
    assert run.result["restarts"] == 0
    (state,) = run.states.values()
    assert int(state.updates) == run.result["updates"]
    assert 0 < int(state.oldest) == run.result["staleness_max"] <= 4
    more = runnel.resume(tmp_path / "run", steps=80 * 2 * 4, quiet=True)
    assert more.result["status"] == "finished"
    assert int(more.states["agent"].oldest) <= 4


@pytest.mark.parametrize("settings", [{}, OFTEN])
def test_one_group_waits_for_its_learner_and_the_other_does_not(settings, examples, tmp_path):
    algorithm = TeamAges(bound=4, work=50_000)
    run = trained(algorithm, "toys:Tag", examples.OneGroupFree(staleness=3), tmp_path / "run", 60 * 2 * 4, **settings)
    assert run.result["restarts"] == 0
    assert int(run.states["hunter"].oldest) == 0
    assert 0 < int(run.states["runners"].oldest) <= 3
    # Unrolls are taken in order where another group waits, and none is lost at a pause.
    assert updates(run) == {60}
    more = runnel.resume(tmp_path / "run", steps=80 * 2 * 4, quiet=True)
    assert more.result["status"] == "finished"
    assert int(more.states["hunter"].oldest) == 0
    assert updates(more) == {80}
    assert int(more.states["runners"].oldest) <= 3


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_synchronous_group_is_trained_as_under_inline_beside_an_asynchronous_one(examples, tmp_path):
    """Where the groups do not influence each other, bitwise; the other group learns from older samples."""
    algorithm, environment = apart.SlowRunners(), apart.Apart()
    alone = runnel.train(
        algorithm, environment, "inline", envs=4, steps=60 * 2 * 4, seed=1, run_dir=tmp_path / "inline", quiet=True
    )
    assert alone.result["staleness_max"] == 0
    mixed = trained(algorithm, "apart:Apart", examples.OneGroupFree(staleness=3), tmp_path / "mixed", 60 * 2 * 4)
    assert 0 < mixed.result["staleness_max"] <= 3
    assert_same(mixed.states["hunter"], alone.states["hunter"])
    assert not np.array_equal(mixed.states["runners"].params["w"], alone.states["runners"].params["w"])


LAYOUTS: dict[str, tuple[Ages, str, Distribution]] = {
    "one asynchronous learner": (SlowRunners(), "toys:Tag", OneGroupWaits()),
    "several": (SlowRunners(), "aging:Trio", OneGroupWaits()),
    "of one program": (SlowRunners(), "toys:Tag", OneGroupWaits(learners=2)),
    "behind a map": (SlowRunners(maps=1), "toys:Tag", OneGroupWaits(stages=True)),
    "behind a replay": (SlowRunners(replayed=2), "toys:Tag", OneGroupWaits(stages=True)),
    "with priorities": (SlowPrioritised(), "toys:Tag", OneGroupWaits(staleness=8, stages=True)),
}
FAST = ("one asynchronous learner", "several")


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in LAYOUTS])
def test_a_mixed_run_stopped_in_its_middle_loses_no_unroll(case, tmp_path):
    """Before a pause, asynchronous workers catch up with the synchronous learner: every group learns from every
    iteration."""
    algorithm, environment, distribution = LAYOUTS[case]
    run = runnel.train(
        algorithm, environment, distribution, envs=4, steps=10**8, seed=1, run_dir=tmp_path / "run", quiet=True,
        sinks=[StopAt(10 * 8)],
    )  # fmt: skip
    assert (run.result["status"], run.result["restarts"]) == ("interrupted", 0)
    assert max(int(state.oldest) for state in run.states.values()) > 0, "an asynchronous learner was behind"
    (before,) = updates(run)
    each = max(algorithm.replayed, 1)
    unfilled = 1 if algorithm.replayed else 0  # the first iteration only fills the replay
    assert before == each * (run.result["env_steps"] // 8 - unfilled)
    more = runnel.resume(tmp_path / "run", steps=run.result["env_steps"] + 6 * 8, quiet=True)
    assert updates(more) == {before + 6 * each}


def updates(run: runnel.Run) -> set[int]:
    """The numbers of updates that the groups have made; one number where all have made as many."""
    return {int(state.updates) for state in run.states.values()}


@pytest.mark.parametrize("staleness", [3, 0])
def test_a_run_ends_where_one_of_several_learners_reaches_the_target_return(staleness, tmp_path):
    """That learner rests; actors and the other learner then wait for it."""
    run = runnel.train(
        SlowRunners(), "toys:Tag", OneGroupWaits(staleness), envs=40, steps=10**8, seed=1, run_dir=tmp_path / "run",
        quiet=True, stop_at_return=0.0,  # which is what runners reach, and the hunter never does
    )  # fmt: skip
    assert run.result["status"] == "finished"
    assert updates(run) == {run.result["env_steps"] // 80}


WORKERS = ["actor-0", "actor-1", "hunter-learner", "runners-learner"]


@pytest.mark.parametrize(
    ("workers", "kills", "steps"),
    [(["runners-learner"], 1, 15_000), pytest.param(WORKERS, 4, 40_000, marks=pytest.mark.slow)],
    ids=["one learner", "any"],
)
def test_killed_workers_of_a_mixed_run_are_replaced(workers, kills, steps, tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    command = ["a2c", "tag:Tag", "--distribution", "mixed_synchronisation:OneGroupFree"]
    chaos = Chaos(
        train(command, tmp_path / "run", steps), tmp_path / "run", workers, seed=1, pause_s=(0.2, 1.5),
        signals=[signal.SIGKILL], most=kills,
    )  # fmt: skip
    assert chaos.run() == 0, chaos.output()
    assert chaos.done
    assert chaos.result()["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [["actor-0", "actor-1"], [*WORKERS]], ids=["actors", "any"])
def test_kills_do_not_change_the_training_of_a_synchronous_group(workers, tmp_path, monkeypatch):
    """Where the groups do not influence each other, bitwise."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("PYTHONPATH", str(Path(apart.__file__).parent))
    command = ["apart:SlowRunners", "apart:Apart", "--distribution", "mixed_synchronisation:OneGroupFree"]
    steps = 40_000
    alone = undisturbed([*command[:2], "--distribution", "inline"], tmp_path / "inline", steps)
    chaos = Chaos(
        train(command, tmp_path / "run", steps), tmp_path / "run", workers, seed=1, pause_s=(0.2, 1.5),
        signals=[signal.SIGKILL], most=4,
    )  # fmt: skip
    assert chaos.run() == 0, chaos.output()
    assert any(broken.recovery_s is not None for broken in chaos.done)
    killed = final_state(tmp_path / "run")
    of_hunter = [name for name in killed if "hunter" in name]
    assert of_hunter
    for name in of_hunter:
        np.testing.assert_array_equal(killed[name], alone[name], err_msg=name)
