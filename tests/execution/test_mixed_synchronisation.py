"""Cut edges that synchronise differently: samples are as old as their group's edges allow; runs pause and survive."""

import signal
from pathlib import Path
from typing import Any

import pytest
from aging import Ages, OneGroupWaits, PrioritisedAges, SlowRunners, TeamAges
from chaos import Chaos
from kill_runs import train
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
    # Unrolls are taken in order where another group waits: none is lost at a pause.
    assert {int(state.updates) for state in run.states.values()} == {60}
    more = runnel.resume(tmp_path / "run", steps=80 * 2 * 4, quiet=True)
    assert more.result["status"] == "finished"
    assert int(more.states["hunter"].oldest) == 0
    assert {int(state.updates) for state in more.states.values()} == {80}
    assert int(more.states["runners"].oldest) <= 3


class StopAfter:
    """A sink that interrupts the run, as Ctrl-C does, with one of its records."""

    def __init__(self, records: int):
        self.left = records

    def write(self, record: dict[str, Any]) -> None:
        self.left -= 1
        if not self.left:
            signal.raise_signal(signal.SIGINT)

    def close(self) -> None: ...


LAYOUTS: dict[str, tuple[Ages, str, Distribution]] = {
    "one asynchronous learner": (SlowRunners(), "toys:Tag", OneGroupWaits()),
    "several": (SlowRunners(), "aging:Trio", OneGroupWaits()),
    "of one program": (SlowRunners(), "toys:Tag", OneGroupWaits(learners=2)),
    "behind a map": (SlowRunners(maps=1), "toys:Tag", OneGroupWaits(stages=True)),
    "behind a replay": (SlowRunners(replayed=2), "toys:Tag", OneGroupWaits(stages=True)),
    "with priorities": (PrioritisedAges(bound=8, work=400_000), "toys:Tag", OneGroupWaits(staleness=8, stages=True)),
}
FAST = ("one asynchronous learner", "several")


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in LAYOUTS])
def test_a_mixed_run_stopped_in_its_middle_loses_no_unroll(case, tmp_path):
    """Before a pause, asynchronous workers catch up with the synchronous learner: every group learns from every
    iteration, however often the run is paused, stopped and resumed."""
    algorithm, environment, distribution = LAYOUTS[case]
    updates, run_dir = max(algorithm.replayed, 1), tmp_path / "run"
    run = runnel.train(
        algorithm, environment, distribution, envs=4, steps=10**8, seed=1, run_dir=run_dir, quiet=True,
        sinks=[StopAfter(2)], checkpoint_every_s=0.3,
    )  # fmt: skip
    assert (run.result["status"], run.result["restarts"]) == ("interrupted", 0)
    iterations = run.result["env_steps"] // 8
    assert {int(state.updates) for state in run.states.values()} == {updates * iterations}
    assert max(int(state.oldest) for state in run.states.values()) > 0, "an asynchronous learner was behind"
    more = runnel.resume(run_dir, steps=run.result["env_steps"] + 20 * 8, quiet=True)
    assert {int(state.updates) for state in more.states.values()} == {updates * (iterations + 20)}
    assert int(more.states["hunter"].oldest) == max(algorithm.replayed - 1, 0)


def test_a_mixed_run_ends_where_a_group_reaches_the_target_return(tmp_path):
    """The asynchronous learner that has reached it rests; actors and the synchronous learner then wait for it."""
    run = runnel.train(
        SlowRunners(), "toys:Tag", OneGroupWaits(), envs=4, steps=10**8, seed=1, run_dir=tmp_path / "run", quiet=True,
        stop_at_return=-1e9, hang_after_s=60.0,
    )  # fmt: skip
    assert run.result["status"] == "finished"
    iterations = run.result["env_steps"] // 8
    assert {int(state.updates) for state in run.states.values()} == {iterations}


def test_killed_workers_of_a_mixed_run_are_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    command = ["a2c", "tag:Tag", "--distribution", "mixed_synchronisation:OneGroupFree"]
    workers = ["actor-0", "actor-1", "hunter-learner", "runners-learner"]
    chaos = Chaos(
        train(command, tmp_path / "run", 40_000), tmp_path / "run", workers, seed=1, pause_s=(0.2, 1.5),
        signals=[signal.SIGKILL], most=4,
    )  # fmt: skip
    assert chaos.run(280) == 0, chaos.output()
    assert chaos.done
    assert chaos.result()["status"] == "finished"
