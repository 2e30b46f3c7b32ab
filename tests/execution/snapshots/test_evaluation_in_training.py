"""Evaluation during training: it changes nothing, plays the same episodes every time, and survives what breaks."""

from __future__ import annotations

import io
import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from chaos import Chaos
from evaluated import Walk
from paths import SUPPORT
from toys import Drift, Reinforce

import runnel
from runnel.algorithms.dqn import DQN
from runnel.algorithms.ppo import PPO
from runnel.errors import RunFailed, UserError
from runnel.evaluation.evaluate import evaluate
from runnel.execution.run import Run
from runnel.execution.run_stats import RunStats
from runnel.execution.snapshots.evaluation_task import task_of
from runnel.execution.snapshots.evaluation_workers import MOST_TRIES, EvaluationWorkers
from runnel.execution.snapshots.evaluators import InProcessEvaluators, wait_for
from runnel.execution.snapshots.policy_recorder import check_metric, score_of
from runnel.launch.standalone import LocalStandalone
from runnel.recording.checkpoint import Checkpoints
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.events import read_events
from runnel.recording.metrics import read_metrics
from runnel.recording.policy_store import BEST, LATEST, PolicyStore
from runnel.reporting.number_words import short
from runnel.runtime.programs import snapshots
from runnel.runtime.programs.loop import Loop
from runnel.runtime.single_process import evaluation
from runnel.runtime.single_process.evaluation import CompiledEvaluator, PlayedEpisodes

PER_ITERATION = 32
STEPS = 10 * PER_ITERATION
EVERY = 2 * PER_ITERATION
MARKS = list(range(0, STEPS + 1, EVERY))

Train = Callable[..., Run]


def train(run_dir: Path, distribution: str = "inline", environment: Any = "evaluated:Walk", **more: Any) -> Run:
    given = {"envs": 4, "steps": STEPS, "seed": 3, "quiet": True, "run_dir": run_dir, **more}
    return runnel.train(given.pop("algorithm", None) or Reinforce(), environment, distribution, **given)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Runs that several tests look at: one of each kind."""
    made: dict[str, Run] = {}

    def get(distribution: str = "inline", **more: Any) -> Run:
        key = json.dumps([distribution, more], sort_keys=True)
        if key not in made:
            made[key] = train(tmp_path_factory.mktemp("runs") / "run", distribution, **more)
        return made[key]

    return get


def bits(run: Run) -> list[bytes]:
    """Everything that was learnt, optimisers included."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.states)]


def evaluated(run: Run | Path) -> list[tuple[int, list[float], list[int]]]:
    found = read_evaluations(run.run_dir if isinstance(run, Run) else run)
    return [(each["env_steps"], each["returns"], each["lengths"]) for each in found]


def events(run: Run, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run.run_dir) if event["event"] == kind]


# Training is the same


@pytest.mark.parametrize(
    ("distribution", "more"),
    [
        ("inline", {}),
        ("inline", {"eval_wait": True}),
        pytest.param("inline", {"eval_workers": 1}, marks=pytest.mark.slow),
        ("inline", {"eval_explore": True, "keep_every": PER_ITERATION, "keep_best": 3}),
        ("fused", {}),
        pytest.param("fused", {"eval_wait": True}, marks=pytest.mark.slow),
        ("coarse", {"actors": 2}),
        pytest.param("coarse", {"actors": 2, "eval_wait": True}, marks=pytest.mark.slow),
        ("fine", {"actors": 2}),
        pytest.param("fine", {"actors": 2, "eval_wait": True}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_training_is_bitwise_the_same_with_and_without_evaluation(
    distribution: str, more: dict[str, Any], trained: Train
) -> None:
    plain = {"actors": more["actors"]} if "actors" in more else {}
    environment = "toys:Corridor" if distribution == "fused" else "evaluated:Walk"
    without = trained(distribution, environment=environment, **plain)
    run = trained(distribution, environment=environment, eval_every=EVERY, eval_episodes=5, **more)
    assert bits(run) == bits(without)
    assert {name: run.result[name] for name in ("env_steps", "updates", "episodes", "mean_return")} == {
        name: without.result[name] for name in ("env_steps", "updates", "episodes", "mean_return")
    }
    steps = [at for at, *_ in evaluated(run)]
    assert (steps[0], steps[-1]) == (0, STEPS)
    assert not evaluated(without)
    if more.get("eval_wait") or (run.result["distribution"] in ("inline", "fused") and "eval_workers" not in more):
        assert steps == MARKS


LEARNERS = {
    "ppo": PPO(
        unroll=8, epochs=2, minibatches=2, hidden=(8,), memory="gru", memory_size=8, normalise_observations=True,
        normalise_returns=True,
    ),
    "dqn": DQN(unroll=8, hidden=(8,), min_size=32, capacity=256, batch=8, epsilon_steps=200),
}  # fmt: skip


@pytest.mark.parametrize("distribution", ["fused", pytest.param("inline", marks=pytest.mark.slow)])
@pytest.mark.parametrize("learner", LEARNERS)
def test_learners_with_memory_statistics_and_replay_take_no_notice_of_it_either(
    learner: str, distribution: str, tmp_path: Path
) -> None:
    environment = "gymnax:CartPole-v1" if distribution == "fused" else "CartPole-v1"
    given = {"algorithm": LEARNERS[learner], "steps": 1024}
    without = train(tmp_path / "without", distribution, environment, **given)
    run = train(tmp_path / "with", distribution, environment, eval_every=256, eval_episodes=3, **given)
    assert [at for at, *_ in evaluated(run)] == [0, 256, 512, 768, 1024]
    assert bits(run) == bits(without)


def test_environments_that_draw_from_global_generators_do_not_notice_it(trained: Train) -> None:
    def of(**more: Any) -> Run:
        np.random.seed(5)
        return trained(env_settings={"draws_globally": True}, **more)

    assert bits(of()) == bits(of(eval_every=EVERY))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_settings_that_fit_only_as_many_environments_as_train_are_evaluated_too(workers: int, tmp_path: Path) -> None:
    """The replay has no room for what 64 environments, the default in JAX, bring at once."""
    run = train(
        tmp_path / "run", "fused", "toys:Corridor", algorithm=DQN(unroll=8, hidden=(8,), min_size=32, capacity=256),
        eval_every=EVERY, eval_episodes=2, eval_workers=workers, eval_wait=True,
    )  # fmt: skip
    assert [at for at, *_ in evaluated(run)] == MARKS


# What is played


def test_it_is_evaluated_at_the_beginning_at_every_multiple_and_at_the_end(trained: Train) -> None:
    run = trained(eval_every=EVERY, eval_episodes=5)
    assert [at for at, *_ in evaluated(run)] == MARKS
    uneven = trained(eval_every=3 * PER_ITERATION + 1, eval_episodes=5)  # marks fall between two iterations
    assert [at for at, *_ in evaluated(uneven)] == [0, 128, 224, 320]
    rare = trained(eval_every=10**6, eval_episodes=5)
    assert [at for at, *_ in evaluated(rare)] == [0, STEPS]
    # A snapshot that is due for another reason just after a mark does not hide the mark.
    both = trained(eval_every=EVERY - 1, eval_episodes=5, keep_every=EVERY)
    assert [at for at, *_ in evaluated(both)] == MARKS
    known = {at: returns for at, returns, _ in evaluated(run)}
    assert {at: returns for at, returns, _ in evaluated(uneven) if at in known} == {
        at: known[at] for at in (0, 128, 320)
    }


def test_the_same_episodes_are_played_at_every_evaluation(trained: Train) -> None:
    still = trained(algorithm=None, eval_every=EVERY, eval_episodes=7, settings=None, env_settings={"bonus": 0.5})
    by_policy: dict[tuple[float, ...], int] = {}
    for _, returns, lengths in evaluated(still):
        by_policy[(*returns, *lengths)] = by_policy.get((*returns, *lengths), 0) + 1
        assert len(returns) == len(lengths) == 7
    assert max(by_policy.values()) > 1  # a policy that acts alike is found to be alike


@pytest.mark.parametrize(
    "of",
    [
        {},
        # Every number in it depends on the statistics of observations, which are those of the snapshot.
        {"environment": "Pendulum-v1", "steps": 2 * EVERY, "env_settings": {"max_episode_steps": 20},
         "algorithm": PPO(unroll=8, epochs=1, minibatches=1, hidden=(8,), normalise_observations=True)},
    ],
    ids=["plain", "normalised"],
)  # fmt: skip
def test_every_evaluation_is_what_runnel_eval_finds_of_the_same_policy(of: dict[str, Any], tmp_path: Path) -> None:
    run = train(tmp_path / "run", eval_every=EVERY, eval_episodes=5, eval_seed=77, keep_every=EVERY, **of)
    for found in read_evaluations(run.run_dir):
        version = found["versions"]["agent"]
        again = evaluate(f"{run.run_dir}@{version}", episodes=5, seed=77)
        assert (again["returns"], again["lengths"]) == (found["returns"], found["lengths"])
        assert again["return_interval"] == found["return_interval"]
        assert again["env_steps"] == found["env_steps"]


@pytest.mark.parametrize(
    "environment", ["evaluated:Walk", pytest.param("toys:Corridor", marks=pytest.mark.slow)]
)  # fmt: skip
def test_results_are_the_same_in_this_process_and_in_any_number_of_workers(environment: str, tmp_path: Path) -> None:
    built = runnel.build(Reinforce(), environment, "inline", envs=4)
    episodes = 70  # more than play side by side
    fragile = {"raises": "now and then"} if environment == "evaluated:Walk" else {}
    task = task_of(built, fragile, episodes, 11, explore=True)
    state = Loop(built.graph).init_state(jax.numpy.uint32(1), "agent")
    state = state._replace(params={**state.params, "b": jax.numpy.float32([0.0, 1.0])})  # rather to the right
    snapshot = snapshots.take({"agent": state}, {"agent": 4}, 128, 128)
    ways: list[Any] = [InProcessEvaluators(task_of(built, {}, episodes, 11, explore=True)), InProcessEvaluators(task)]
    ways += [EvaluationWorkers(task, n, tmp_path, 60.0, lambda *a, **k: None, LocalStandalone) for n in (1, 3)]
    found = []
    for evaluators in ways:
        try:
            for _ in range(2):
                evaluators.submit(snapshot, must=True)
            found += [done.played for done in wait_for(evaluators, lambda: False, 120.0)]
        finally:
            evaluators.close()
    assert len(found) == 8
    whole, _, first, *_ = found
    assert len(first.lengths) == len(whole.lengths) == episodes
    cut = np.isnan(first.returns["agent"])
    assert cut.any() == bool(fragile)
    envs = episodes // 2  # each plays two: the first ones begin at the same step, whatever is cut
    np.testing.assert_array_equal(first.lengths[:envs][~cut[:envs]], whole.lengths[:envs][~cut[:envs]])
    assert len(set(first.returns["agent"].tolist())) > 2
    for other in found[3:]:
        np.testing.assert_array_equal(first.lengths, other.lengths)
        np.testing.assert_array_equal(first.returns["agent"], other.returns["agent"])


def test_what_is_evaluated_when_a_run_goes_back_is_forgotten(tmp_path: Path) -> None:
    """The worker still plays a cancelled evaluation when it receives the next."""
    built = runnel.build(Reinforce(), "evaluated:Walk", "inline", envs=4)
    task = task_of(built, {"slow_s": 0.01}, 3, 11, explore=False)
    state = Loop(built.graph).init_state(jax.numpy.uint32(1), "agent")
    right = state._replace(params={**state.params, "b": jax.numpy.float32([0.0, 9.0])})
    lost, kept = (
        snapshots.take({"agent": each}, {"agent": version}, 32 * version, 32 * version)
        for version, each in ((4, state), (3, right))
    )
    evaluators = EvaluationWorkers(task, 1, tmp_path, 60.0, lambda *a, **k: None, LocalStandalone)
    try:
        evaluators.submit(lost)
        evaluators.submit(lost)
        evaluators.rewind(64)
        assert not evaluators.busy()
        evaluators.submit(kept)
        (done,) = wait_for(evaluators, lambda: False, 120.0)
    finally:
        evaluators.close()
    assert done.snapshot is kept
    here = InProcessEvaluators(task)
    here.submit(kept)
    (wanted,) = here.poll()
    here.close()
    assert done.played is not None
    assert wanted.played is not None
    np.testing.assert_array_equal(done.played.returns["agent"], wanted.played.returns["agent"])
    assert evaluators.skipped == 0


def test_settings_of_the_environment_in_evaluation_are_its_own(trained: Train) -> None:
    plain = trained(eval_every=EVERY, eval_episodes=5)
    paid = trained(eval_every=EVERY, eval_episodes=5, eval_env_settings={"bonus": 2.0})
    assert bits(plain) == bits(paid)
    for (_, returns, lengths), (_, more, same) in zip(evaluated(plain), evaluated(paid), strict=True):
        assert lengths == same
        np.testing.assert_allclose(np.array(more) - returns, 2.0 * np.array(lengths), rtol=1e-5)


def test_an_environment_that_is_another_one_in_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"eval\.env\.\*\) the environment is another one: found agent: float32\[3\]"):
        train(tmp_path / "run", eval_every=8, eval_env_settings={"wide": True})
    with pytest.raises(
        UserError, match=r"found agent: .* int32\[\] below 3 x1, expected agent: .* int32\[\] below 2 x1"
    ):
        train(tmp_path / "run", environment="spaces_of_gymnasium:Anything", eval_every=8,
              eval_env_settings={"action": "five"})  # fmt: skip
    with pytest.raises(UserError, match=r"from \[-1.0, 0.0\] to .*, expected agent: .* from \[-2.0, -2.0\] to"):
        runnel.train("ppo", "spaces_of_gymnasium:Anything", eval_every=8, env_settings={"action": "box"},
                     eval_env_settings={"action": "wide"}, run_dir=tmp_path / "run", quiet=True)  # fmt: skip
    with pytest.raises(UserError):
        train(tmp_path / "run", eval_every=8, eval_env_settings={"no_such": 1})
    assert not (tmp_path / "run").exists()


# What is told of it


def test_results_reach_metrics_the_result_and_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path / "run", eval_every=EVERY, eval_episodes=5, quiet=False)
    out = capsys.readouterr().out
    last, best = read_evaluations(run.run_dir)[-1], max(read_evaluations(run.run_dir), key=lambda e: e["mean_return"])
    assert run.result["evaluation"]["mean_return"] == last["mean_return"]
    assert run.result["best"]["env_steps"] == best["env_steps"]
    assert run.result["evaluations_skipped"] == 0
    record = read_metrics(run.run_dir)[-1]
    assert (record["eval/return"], record["eval/env_steps"]) == (last["mean_return"], STEPS)
    assert record["eval/length"] == pytest.approx(np.mean(last["lengths"]))
    assert all(f"{at:,}" in out for at in MARKS[1:])
    assert json.loads((run.run_dir / "result.json").read_text())["evaluation"] == run.result["evaluation"]
    # The last line of progress is the state at the end, also where only the evaluation came after it.
    progress = [line for line in out.splitlines() if "  return " in line and " eval " in line]
    assert progress[-1].startswith(f"{STEPS:,}")
    assert f"eval {short(last['mean_return'])}" in progress[-1]


@pytest.mark.parametrize("distribution", ["inline", pytest.param("coarse", marks=pytest.mark.slow)])
def test_a_terminal_shows_that_training_waits_for_an_evaluation(
    distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "stdout", Terminal())
    waits = {} if distribution == "inline" else {"actors": 2, "eval_workers": 1, "eval_wait": True}
    train(
        tmp_path / "run", distribution, eval_every=5 * PER_ITERATION, eval_episodes=3, quiet=False, **waits
    )  # fmt: skip
    for at in (5 * PER_ITERATION, STEPS):
        assert f"evaluating at {at:,} steps" in sys.stdout.getvalue()


def test_tags_name_the_newest_and_the_best(trained: Train) -> None:
    run = trained(eval_every=EVERY, eval_episodes=5)
    store = PolicyStore(run.run_dir)
    found = read_evaluations(run.run_dir)
    best = max(found, key=lambda each: (each["score"], -each["env_steps"]))
    assert store.find(BEST)["agent"].env_steps == best["env_steps"]
    assert store.find(BEST)["agent"].score == best["score"]
    assert store.find(LATEST)["agent"].env_steps == STEPS
    assert len(store) <= 2
    arrays = store.find(LATEST)["agent"].arrays()
    np.testing.assert_array_equal(arrays["params/w"], run.params["w"])
    assert not any("optimiser" in name for name in arrays)


def test_the_lowest_may_be_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(
        tmp_path / "run", eval_every=EVERY, eval_episodes=5, eval_metric="min:length", keep_best=10, quiet=False
    )  # fmt: skip
    found = read_evaluations(run.run_dir)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("evaluated at ")]
    assert len(said) == len(found)
    for line, each in zip(said, found, strict=True):
        assert f", length {short(each['mean_length'])}, 5 episodes" in line
    assert [each["score"] for each in found] == [-each["mean_length"] for each in found]
    shortest = min(found, key=lambda each: (each["mean_length"], each["env_steps"]))
    assert PolicyStore(run.run_dir).find(BEST)["agent"].env_steps == shortest["env_steps"]
    assert len(PolicyStore(run.run_dir)) == len(found)


def test_of_equal_scores_the_earliest_is_the_best_also_if_they_are_zero(tmp_path: Path) -> None:
    class Fails(Walk):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            return *rest, {"gain": 0.0}

    run = train(tmp_path / "run", environment=Fails, eval_every=EVERY, eval_episodes=2, eval_metric="env/gain")
    assert {each["score"] for each in read_evaluations(run.run_dir)} == {0.0}
    assert run.result["best"]["env_steps"] == PolicyStore(run.run_dir).find(BEST)["agent"].env_steps == 0


def test_without_the_metric_nothing_is_called_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path / "run", eval_every=EVERY, eval_episodes=2, eval_metric="env/gain", quiet=False)
    assert run.result["evaluation"]["score"] is None
    assert "best" not in run.result
    assert "@best" not in capsys.readouterr().out
    assert not PolicyStore(run.run_dir).query(tag=BEST)


def test_several_groups_need_a_metric(tmp_path: Path) -> None:
    keywords: Any = {"environment": "toys:Tag", "algorithm": Drift(), "eval_every": 64, "eval_episodes": 2}
    with pytest.raises(UserError, match=r"eval_metric=: found none, .* of 2 groups .* return/hunter"):
        train(tmp_path / "run", **keywords)
    with pytest.raises(UserError, match=r"eval_metric='return/huntr'.*did you mean 'return/hunter'"):
        train(tmp_path / "run", **keywords, eval_metric="return/huntr")
    assert not (tmp_path / "run").exists()
    run = train(tmp_path / "run", **keywords, eval_metric="return/hunter")
    for found in read_evaluations(run.run_dir):
        assert found["score"] == found["group_returns"]["hunter"]
        assert set(found["versions"]) == {"hunter", "runners"}
    assert {s.group for s in PolicyStore(run.run_dir).query(tag=BEST)} == {"hunter", "runners"}
    assert len({s.env_steps for s in PolicyStore(run.run_dir).query(tag=BEST)}) == 1  # they were evaluated together


def test_metrics_that_no_evaluation_finds_are_refused() -> None:
    graph = runnel.build(Reinforce(), "toys:Corridor", "inline", envs=4).graph
    for fine in (None, "return", "length", "min:length", "env/anything", "min:env/anything"):
        check_metric(fine, graph)
    for wrong in ("retrun", "min:", "return/agent", "max:return", ""):
        with pytest.raises(UserError, match="eval_metric="):
            check_metric(wrong, graph)
    assert score_of({"return": 2.0, "length": 3.0}, None) == 2.0
    assert score_of({"return": 2.0, "length": 3.0}, "min:length") == -3.0
    with pytest.raises(RunFailed, match=r"no env/is_sucess.*env/is_success"):
        score_of({"env/is_success": 0.5}, "env/is_sucess")


@pytest.mark.parametrize(
    ("distribution", "more"),
    [("inline", {}), pytest.param("coarse", {"actors": 2, "eval_wait": True}, marks=pytest.mark.slow)],
    ids=str,
)
def test_a_return_in_evaluation_ends_the_run(distribution: str, more: dict[str, Any], trained: Train) -> None:
    whole = trained(eval_every=EVERY, eval_episodes=5)
    reached = next(at for at, returns, _ in evaluated(whole) if np.mean(returns) >= 0.4)
    assert 0 < reached < STEPS
    run = trained(distribution, eval_every=EVERY, eval_episodes=5, stop_at_eval_return=0.4, **more)
    assert (run.result["status"], run.result["env_steps"]) == ("finished", reached)
    assert evaluated(run) == evaluated(whole)[: len(evaluated(run))]
    again = runnel.resume(run.run_dir, quiet=True)
    assert again.result["env_steps"] == reached  # nothing is left to train
    if distribution == "inline":
        further = runnel.resume(run.run_dir, steps=STEPS, quiet=True)
        assert further.result["env_steps"] == STEPS
        assert bits(further) == bits(whole)


# Slower than training, and broken


def test_versions_that_evaluation_is_too_slow_for_are_skipped_and_counted(trained: Train) -> None:
    run = trained(
        eval_every=PER_ITERATION, eval_episodes=2, eval_workers=1, eval_env_settings={"slow_s": 0.02}
    )  # fmt: skip
    found = evaluated(run)
    assert (found[0][0], found[-1][0]) == (0, STEPS)
    assert run.result["evaluations_skipped"] == STEPS // PER_ITERATION + 1 - len(found) > 0
    assert any("were skipped" in event["reason"] for event in events(run, "evaluation"))
    assert bits(run) == bits(trained())


def test_the_best_is_there_however_late_its_evaluation_ends(tmp_path: Path) -> None:
    """Checkpoints, which prune policies, may be written between a snapshot and its result."""
    run = train(
        tmp_path / "run", eval_every=PER_ITERATION, eval_episodes=2, eval_workers=1, checkpoint_every_s=0.01,
        eval_env_settings={"slow_s": 0.02}, eval_metric="min:length",
    )  # fmt: skip
    best = max(read_evaluations(run.run_dir), key=lambda each: (each["score"], -each["env_steps"]))
    kept = PolicyStore(run.run_dir).find(BEST)["agent"]
    assert (kept.env_steps, kept.score) == (best["env_steps"], best["score"])
    assert kept.version == best["versions"]["agent"]
    kept.arrays()


@pytest.mark.parametrize("environment", ["evaluated:Walk", "toys:Corridor"])
def test_an_episode_without_an_end_counts_as_it_stands_and_those_after_it_keep_their_places(
    environment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "AT_A_TIME", 4)
    built = runnel.build(Reinforce(), environment, "inline", envs=4)
    task = task_of(built, {}, 8, 5, False)
    assert task.quota() == {0: 2, 1: 2, 2: 2, 3: 2}

    def played(*quotas: dict[int, int]) -> list[PlayedEpisodes]:
        made = [task.make(quota) for quota in quotas]
        state = Loop(built.graph).init_state(jax.numpy.uint32(0), "agent")
        return [evaluator.play({"agent": state.params}) for evaluator, _ in made]

    (whole,) = played(task.quota())
    limit = int(np.sort(whole.lengths)[4])
    assert whole.lengths.min() < limit
    monkeypatch.setattr(evaluation, "LIMIT_STEPS", limit)
    (cut,) = played(task.quota())
    assert len(cut.lengths) == len(cut.learner_returns) == len(cut.returns["agent"]) == 8
    first, second = whole.lengths[:4], whole.lengths[4:]
    np.testing.assert_array_equal(cut.lengths[:4], np.minimum(first, limit))
    np.testing.assert_array_equal(cut.lengths[4:], np.where(first > limit, 0, np.minimum(second, limit)))
    np.testing.assert_array_equal(np.isnan(cut.returns["agent"]), cut.lengths == 0)
    same = (whole.lengths <= limit) & (cut.lengths > 0)
    np.testing.assert_array_equal(cut.returns["agent"][same], whole.returns["agent"][same])
    assert cut.notes[-1].startswith(f"episodes without an end, cut after {limit} steps: ")
    # However many processes play them: an episode is cut at the same step.
    left, right = played({0: 2, 2: 2}, {1: 2, 3: 2})
    for one, (part, place) in enumerate([(left, 0), (right, 0), (left, 1), (right, 1)]):
        np.testing.assert_array_equal(part.returns["agent"][[place, place + 2]], cut.returns["agent"][[one, one + 4]])


def test_an_evaluation_without_the_end_of_an_episode_says_what_it_waits_for() -> None:
    built = runnel.build(Reinforce(), "evaluated:Walk", "inline", envs=4)
    state = Loop(built.graph).init_state(jax.numpy.uint32(1), "agent")
    notes: list[str] = []
    evaluators = InProcessEvaluators(task_of(built, {}, 3, 11, False), lambda: False, notes.append, long_s=0.0)
    for _ in range(2):
        evaluators.submit(snapshots.take({"agent": state}, {"agent": 4}, 12800, 12800))
    evaluators.close()
    said = "evaluation at 12,800 steps: 0 of 3 episodes have ended after 1 steps of each environment"
    assert notes == [said] * 2  # once each
    notes.clear()
    list(wait_for(_Slow(), lambda: False, 120.0, notes.append, long_s=0.0))
    assert notes == ["has waited 0 s for an evaluation"]


class _Slow:
    """Evaluators that are busy when they are first asked."""

    skipped = steps = asked = 0

    def poll(self) -> list[Any]:
        return []

    def busy(self) -> bool:
        self.asked += 1
        return self.asked < 3

    def submit(self, snapshot: Any, must: bool = False) -> None: ...

    def rewind(self, env_steps: int) -> None: ...

    def close(self) -> None: ...


def test_an_evaluation_worker_that_is_killed_is_replaced(tmp_path: Path, trained: Train) -> None:
    canary = tmp_path / "canary"
    canary.touch()
    run = train(
        tmp_path / "run", eval_every=5 * PER_ITERATION, eval_episodes=3, eval_wait=True, eval_workers=1,
        eval_env_settings={"kills": str(canary)},
    )  # fmt: skip
    assert not canary.exists()
    (lost,) = events(run, "evaluator")
    assert (lost["worker"], lost["action"]) == ("evaluator-0", "replaced")
    assert "9" in lost["reason"]
    calm = trained(eval_every=5 * PER_ITERATION, eval_episodes=3)
    assert evaluated(run) == evaluated(calm)
    assert [at for at, *_ in evaluated(run)] == [0, 160, 320]
    assert bits(run) == bits(calm)


@pytest.mark.parametrize("distribution", ["coarse", pytest.param("fine", marks=pytest.mark.slow)])
def test_training_that_does_not_wait_takes_no_notice_of_an_evaluation_worker_that_is_killed(
    distribution: str, tmp_path: Path, trained: Train
) -> None:
    canary = tmp_path / "canary"
    canary.touch()
    run = train(
        tmp_path / "run", distribution, actors=2, eval_every=EVERY, eval_episodes=3,
        eval_env_settings={"kills": str(canary)},
    )  # fmt: skip
    assert not canary.exists()
    (lost,) = events(run, "evaluator")
    assert (lost["worker"], lost["action"]) == ("evaluator-0", "replaced")
    assert run.result["restarts"] == 0
    assert bits(run) == bits(trained(distribution, actors=2))
    steps = [at for at, *_ in evaluated(run)]
    assert (steps[0], steps[-1]) == (0, STEPS)
    calm = {at: returns for at, returns, _ in evaluated(trained(eval_every=EVERY, eval_episodes=3))}
    assert all(calm[at] == returns for at, returns, _ in evaluated(run))


def test_an_evaluation_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    built = runnel.build(Reinforce(), "evaluated:Walk", "inline", envs=4)
    canary = tmp_path / "canary"
    canary.touch()
    state = Loop(built.graph).init_state(jax.numpy.uint32(1), "agent")
    snapshot = snapshots.take({"agent": state}, {"agent": 4}, 128, 128)
    lost: list[dict[str, Any]] = []
    evaluators = EvaluationWorkers(
        task_of(built, {"hangs": str(canary)}, 3, 11, explore=False), 1, tmp_path, 1.0,
        lambda event, **details: lost.append(details), LocalStandalone,
    )  # fmt: skip
    try:
        evaluators.submit(snapshot)
        (done,) = wait_for(evaluators, lambda: False, 120.0)
    finally:
        evaluators.close()
    assert not canary.exists()
    (event,) = lost
    assert (event["worker"], event["action"]) == ("evaluator-0", "replaced")
    assert event["reason"] == "sent no heartbeat for 1 s"
    here = InProcessEvaluators(task_of(built, {}, 3, 11, explore=False))
    here.submit(snapshot)
    (wanted,) = here.poll()
    here.close()
    assert done.played is not None
    assert wanted.played is not None
    np.testing.assert_array_equal(done.played.returns["agent"], wanted.played.returns["agent"])


@pytest.mark.parametrize("raises", ["made", "reset"])
def test_an_environment_that_fails_in_evaluation_is_given_up_and_training_goes_on(
    raises: str, tmp_path: Path, trained: Train
) -> None:
    given = {"eval_every": 10**6, "eval_episodes": 2, "eval_workers": 1, "eval_env_settings": {"raises": raises}}
    if raises == "made":
        with pytest.raises(UserError, match="no such place"):  # it is made once before anything starts
            train(tmp_path / "run", **given)
        return
    run = train(tmp_path / "run", **given)
    assert (run.result["status"], run.result["env_steps"]) == ("finished", STEPS)
    assert evaluated(run) == []
    lost = events(run, "evaluator")
    assert [event["action"] for event in lost] == (["replaced"] * (MOST_TRIES - 1) + ["its evaluation is given up"]) * 2
    assert all("broken ground" in event["reason"] + event["detail"] for event in lost)
    assert bits(run) == bits(trained())


@pytest.mark.parametrize(("distribution", "environment"), [("inline", "evaluated:Walk"), ("fused", "toys:Corridor")])
def test_an_evaluation_that_fails_in_this_process_is_given_up_too(
    distribution: str, environment: str, tmp_path: Path, trained: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = trained(distribution, environment=environment)
    if distribution == "fused":  # what cannot be compiled fails like what cannot be reset
        monkeypatch.setattr(CompiledEvaluator, "first", lambda self, seed: 1 / 0)
    more = {} if distribution == "fused" else {"eval_env_settings": {"raises": "reset"}}
    run = train(tmp_path / "run", distribution, environment, eval_every=10**6, eval_episodes=2, **more)
    assert (run.result["status"], run.result["env_steps"]) == ("finished", STEPS)
    assert evaluated(run) == []
    failed = events(run, "evaluation_failed")
    assert [event["reason"].partition(" failed: ")[0] for event in failed] == [
        "the evaluation at 0 steps", f"the evaluation at {STEPS} steps"
    ]  # fmt: skip
    cause = "ZeroDivisionError" if distribution == "fused" else "broken ground"
    assert all(cause in event["reason"] and cause in event["detail"] for event in failed)
    assert bits(run) == bits(without)


def test_the_evaluation_after_one_that_failed_is_played(tmp_path: Path, trained: Train) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    run = train(
        tmp_path / "run", eval_every=EVERY, eval_episodes=5, eval_env_settings={"breaks": str(broken)},
        on_update=lambda progress: broken.unlink(missing_ok=True), callback_every_s=0.0,
    )  # fmt: skip
    assert len(events(run, "evaluation_failed")) == 1
    assert evaluated(run) == evaluated(trained(eval_every=EVERY, eval_episodes=5))[1:]


def test_episodes_that_an_environment_cuts_are_left_out(trained: Train) -> None:
    run = trained(eval_every=EVERY, eval_episodes=8, eval_env_settings={"raises": "now and then"})
    calm = trained(eval_every=EVERY, eval_episodes=8)
    notes = [event["reason"] for event in events(run, "evaluation")]
    for at, (found, whole) in enumerate(
        zip(read_evaluations(run.run_dir), read_evaluations(calm.run_dir), strict=True)
    ):
        kept = [value for value in found["returns"] if value is not None]
        assert 0 < found["cut_episodes"] == 8 - len(kept) < 8
        assert (found["episodes"], len(found["lengths"])) == (len(kept), 8)
        assert found["mean_return"] == found["score"] == pytest.approx(np.mean(kept))
        assert found["returns"] == [
            w if f is not None else None for f, w in zip(found["returns"], whole["returns"], strict=True)
        ]
        (note,) = found["notes"]
        assert note.startswith(f"{found['cut_episodes']} episodes were cut and left out: environment ")
        assert note in notes[at]
        assert "cut_episodes" not in whole
    assert bits(run) == bits(calm)


def test_an_evaluation_without_a_whole_episode_has_failed(tmp_path: Path, trained: Train) -> None:
    run = trained(eval_every=10**6, eval_episodes=2, eval_env_settings={"raises": "stepped"})
    assert run.result["status"] == "finished"
    assert evaluated(run) == []
    assert "best" not in run.result
    reasons = [event["reason"] for event in events(run, "evaluation_failed")]
    why = "no episode is left: 2 episodes were cut and left out: environment 0: step raised RuntimeError: broken ground"
    assert reasons == [f"the evaluation at {at} steps failed: {why}" for at in (0, STEPS)]
    with pytest.raises(RunFailed, match="could not be evaluated: no episode is left: 2 episodes"):
        evaluate(run.run_dir, episodes=2, env_settings={"raises": "stepped"})


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_fails_in_evaluation_ends_a_run_that_waits_for_it(workers: int, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="broken ground") as caught:
        train(
            tmp_path / "run", eval_every=EVERY, eval_episodes=2, eval_workers=workers, eval_wait=True,
            eval_env_settings={"raises": "reset"},
        )  # fmt: skip
    assert isinstance(caught.value, RunFailed)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    newest = Checkpoints(tmp_path / "run").newest()
    assert newest is not None  # what was trained is kept
    assert (result["status"], result["env_steps"]) == ("failed", int(newest.name) * PER_ITERATION)


def test_an_environment_that_no_other_process_can_make_is_refused(tmp_path: Path) -> None:
    from evaluated import Walk

    with pytest.raises(UserError, match="eval_workers"):
        train(tmp_path / "run", environment=lambda: Walk(), eval_every=EVERY, eval_workers=1)
    assert not (tmp_path / "run").exists()
    run = train(tmp_path / "run", environment=lambda: Walk(), eval_every=EVERY, eval_episodes=2)
    assert [at for at, *_ in evaluated(run)] == MARKS


# Resumed, rolled back and killed


def test_a_resumed_run_has_the_evaluations_of_an_uninterrupted_one(tmp_path: Path, trained: Train) -> None:
    whole = trained(eval_every=EVERY, eval_episodes=5)

    def stop(progress: Any) -> None:
        if progress.env_steps >= 5 * PER_ITERATION:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError):
        train(
            tmp_path / "run", eval_every=EVERY, eval_episodes=5, on_update=stop, callback_every_s=0.0,
            keep_every=PER_ITERATION,
        )  # fmt: skip
    # What a run writes after its last checkpoint, before it is killed: it will be made again.
    log = tmp_path / "run" / "evaluations.jsonl"
    assert [at for at, *_ in evaluated(tmp_path / "run")] == [0, 64, 128]
    with log.open("a") as file:
        file.write(json.dumps({**read_evaluations(whole.run_dir)[-1], "env_steps": 192, "mean_return": 99.0}) + "\n")
    run = runnel.resume(tmp_path / "run", quiet=True)
    assert evaluated(run) == evaluated(whole)
    assert bits(run) == bits(whole)
    assert run.result["best"] == whole.result["best"]


def test_an_evaluation_that_an_interruption_has_cut_off_is_made_again(tmp_path: Path, trained: Train) -> None:
    """The run is interrupted at a mark, before the workers that evaluate have answered."""
    whole = trained(eval_every=EVERY, eval_episodes=5)

    def stop(progress: Any) -> None:
        if progress.env_steps >= EVERY:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError):
        train(
            tmp_path / "run", eval_every=EVERY, eval_episodes=5, eval_workers=1, on_update=stop, callback_every_s=0.0,
            eval_env_settings={"slow_s": 0.01},
        )  # fmt: skip
    interrupted = PolicyStore(tmp_path / "run").find(LATEST)["agent"].env_steps
    assert interrupted == EVERY
    run = runnel.resume(tmp_path / "run", quiet=True)
    found = {at: returns for at, returns, _ in evaluated(run)}
    assert EVERY in found
    assert found[EVERY] == {at: returns for at, returns, _ in evaluated(whole)}[EVERY]


KILLED = ["toys:Reinforce", "evaluated:Walk", "--actors", "2", "--set", "env.slow_s=0.002",
          "--set", "eval.env.slow_s=0.0", "--eval-every", "320", "--eval-episodes", "3"]  # fmt: skip


def command(run_dir: Path, distribution: str, steps: int, *more: str) -> list[str]:
    flags = ["--envs", "4", "--seed", "3", "--steps", str(steps), "--run-dir", str(run_dir), "--quiet"]
    flags += ["--distribution", distribution, "--restarts", "1000", "--checkpoint-every", "1"]
    return ["train", *KILLED, *flags, *more]


def killed(run_dir: Path, distribution: str, worker: str, *more: str) -> tuple[Run, Path]:
    """A run in one process that nothing happens to, and one in which a worker is killed."""
    steps = 150 * PER_ITERATION
    calm = train(run_dir / "calm", env_settings={"slow_s": 0.0}, steps=steps, eval_every=320, eval_episodes=3)
    broken = run_dir / "killed"
    chaos = Chaos(
        command(broken, distribution, steps, *more), broken, [worker], seed=1, pause_s=(0.5, 1.0),
        signals=[signal.SIGKILL], most=1,
    )  # fmt: skip
    assert chaos.run() == 0, chaos.output()
    assert chaos.done
    found = PolicyStore(broken).find(LATEST)["agent"].arrays()
    for name, array in PolicyStore(calm.run_dir).find(LATEST)["agent"].arrays().items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    return calm, broken


@pytest.mark.parametrize(
    ("distribution", "worker"),
    [
        ("coarse", "learner"),
        *(
            pytest.param(distribution, worker, marks=pytest.mark.slow)
            for distribution, worker in [
                ("coarse", "actor-0"), ("coarse", "evaluator-0"),
                ("fine", "learner"), ("fine", "environment-0"), ("fine", "evaluator-0"),
            ]
        ),
    ],
)  # fmt: skip
def test_a_run_whose_workers_are_killed_ends_alike_with_evaluation_on(
    distribution: str, worker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    calm, broken = killed(tmp_path, distribution, worker, "--eval-wait")
    assert evaluated(broken) == evaluated(calm)
    if worker == "learner":
        result = json.loads((broken / "result.json").read_text())
        assert result["restart_reasons"] == {"learner was killed by signal 9 (SIGKILL)": 1}
        (rollback,) = [event for event in read_events(broken) if event["event"] == "rollback"]
        assert 0 <= rollback["lost_updates"] < result["updates"]


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["coarse", "fine"])
def test_a_killed_learner_that_does_not_wait_for_evaluations_ends_alike(
    distribution: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    calm, broken = killed(tmp_path, distribution, "learner")
    found, all_of_them = evaluated(broken), evaluated(calm)
    assert (found[0], found[-1]) == (all_of_them[0], all_of_them[-1])
    assert [each for each in all_of_them if each in found] == found  # in order, each once, with the same returns


# Policies are written meanwhile


@pytest.mark.parametrize(("distribution", "environment"), [("inline", "evaluated:Walk"), ("fused", "toys:Corridor")])
def test_training_goes_on_while_policies_are_written_in_order_and_before_a_checkpoint(
    distribution: str, environment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_on, written, before_checkpoints = threading.Event(), [], []
    add, save, count = PolicyStore.add, Checkpoints.save, RunStats.add

    def slow(self: PolicyStore, config: Any, arrays: Any) -> Any:
        assert trained_on.wait(60)
        written.append(config.env_steps)
        return add(self, config, arrays)

    def counted(self: RunStats, progress: Any, steps_per_iteration: int) -> None:
        count(self, progress, steps_per_iteration)
        if self.counters.env_steps >= 3 * PER_ITERATION:
            trained_on.set()

    def saved(self: Checkpoints, iteration: int, *state: Any) -> Path:
        before_checkpoints.append((iteration * PER_ITERATION, list(written)))
        return save(self, iteration, *state)

    monkeypatch.setattr(PolicyStore, "add", slow)
    monkeypatch.setattr(RunStats, "add", counted)
    monkeypatch.setattr(Checkpoints, "save", saved)
    train(tmp_path / "run", distribution, environment, keep_every=PER_ITERATION)
    marks = list(range(0, STEPS + 1, PER_ITERATION))
    assert written == marks
    assert before_checkpoints == [(STEPS, marks)]


# Policies by the clock


@pytest.mark.parametrize(
    ("distribution", "more"), [("inline", {}), ("coarse", {"actors": 2})], ids=["inline", "coarse"]
)
def test_a_policy_of_every_so_many_seconds_is_kept(
    distribution: str, more: dict[str, Any], tmp_path: Path, trained: Train
) -> None:
    every_s = 0.25
    run = train(
        tmp_path / "run", distribution, env_settings={"slow_s": 0.01}, keep_every_s=every_s, **more
    )  # fmt: skip
    kept = PolicyStore(run.run_dir).query()
    began = kept[0].config.time
    places = [int((snapshot.config.time - began) // every_s) for snapshot in kept]
    assert kept[-1].env_steps == STEPS
    assert len(kept) >= 3
    assert len(set(places[:-1])) == len(places) - 1  # of each such time one, and the newest
    assert [snapshot.env_steps for snapshot in kept] == sorted({snapshot.env_steps for snapshot in kept})
    for name, array in PolicyStore(trained().run_dir).find(LATEST)["agent"].arrays().items():
        np.testing.assert_array_equal(kept[-1].arrays()[name], array, err_msg=name)
