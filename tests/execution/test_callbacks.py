"""Functions of the user's that a run calls: when, with what, and what follows from what they return or raise."""

from __future__ import annotations

import dataclasses
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from toys import Drift, Reinforce

import runnel
from runnel.algorithms.dqn import DQN
from runnel.errors import UserError
from runnel.execution.callbacks import Callbacks, Progress
from runnel.policy import Policies, Policy
from runnel.recording.evaluation_log import read_evaluations
from runnel.recording.policy_store import PolicyStore

PER_ITERATION = 32
STEPS = 10 * PER_ITERATION


def train(run_dir: Path, distribution: str = "inline", environment: str = "evaluated:Walk", **more: Any) -> runnel.Run:
    given = {"envs": 4, "steps": STEPS, "seed": 3, "quiet": True, "run_dir": run_dir, "callback_every_s": 0.0, **more}
    return runnel.train(given.pop("algorithm", Reinforce()), environment, distribution, **given)


def bits(run: runnel.Run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(run.states)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> runnel.Run:
    """The same training without callbacks."""
    return train(tmp_path_factory.mktemp("plain") / "run")


# When, and with what


def test_they_see_how_far_the_run_has_come_and_change_nothing(tmp_path: Path, plain: runnel.Run) -> None:
    seen: dict[str, list[Progress]] = {"on_update": [], "on_evaluation": [], "on_checkpoint": []}
    run = train(
        tmp_path / "run", eval_every=2 * PER_ITERATION, eval_episodes=2, keep_every=PER_ITERATION,
        **{name: called.append for name, called in seen.items()},
    )  # fmt: skip
    assert bits(run) == bits(plain)
    updates = seen["on_update"]
    assert [p.env_steps for p in updates] == list(range(PER_ITERATION, STEPS + 1, PER_ITERATION))
    assert [p.updates for p in updates] == list(range(1, 11))
    assert all(p.run_dir == run.run_dir for p in updates)
    assert all(p.metrics["env_steps"] == p.env_steps for p in updates)
    assert updates[-1].episodes == run.result["episodes"]
    assert updates[-1].mean_return == pytest.approx(run.result["mean_return"])
    evaluations = read_evaluations(run.run_dir)
    assert [p.evaluation and p.evaluation["env_steps"] for p in seen["on_evaluation"]] == [
        found["env_steps"] for found in evaluations
    ]
    assert [p.evaluation and p.evaluation["returns"] for p in seen["on_evaluation"]] == [
        tuple(found["returns"]) for found in evaluations
    ]
    # In every callback the newest line of metrics.jsonl, which here is that of the iteration before.
    assert [p.metrics.get("env_steps", 0) for p in seen["on_evaluation"]] == [
        max(0, found["env_steps"] - PER_ITERATION) for found in evaluations
    ]
    (saved,) = seen["on_checkpoint"]
    assert saved.checkpoint == (run.run_dir / "checkpoints" / "latest").resolve()
    assert saved.env_steps == saved.metrics["env_steps"] == STEPS


def test_what_they_see_cannot_be_changed(tmp_path: Path) -> None:
    problems: list[str] = []

    def meddle(progress: Any) -> None:
        for change in (
            lambda: setattr(progress, "env_steps", 0),
            lambda: progress.metrics.update(loss=0),
            lambda: progress.metrics.__setitem__("loss", 0),
            lambda: progress.evaluation.__setitem__("mean_return", 9.0),
            lambda: progress.evaluation["returns"].append(9.0),
            lambda: progress.evaluation["returns"].__setitem__(0, 9.0),
            lambda: progress.evaluation["versions"].__setitem__("agent", 9),
        ):
            try:
                change()
            except (AttributeError, TypeError, dataclasses.FrozenInstanceError):
                problems.append("refused")

    run = train(tmp_path / "run", steps=PER_ITERATION, eval_every=PER_ITERATION, eval_episodes=1, on_update=meddle)
    assert problems == ["refused"] * 7
    assert run.result["evaluation"]["mean_return"] != 9.0


def test_a_callback_that_no_evaluation_would_call_is_refused(tmp_path: Path, plain: runnel.Run) -> None:
    with pytest.raises(UserError, match=r"on_evaluation=: found a run without evaluations, expected eval_every=STEPS"):
        train(tmp_path / "run", on_evaluation=print)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"on_evaluation=: found a run without evaluations"):
        runnel.resume(plain.run_dir, steps=2 * STEPS, quiet=True, on_evaluation=print)


def test_updates_are_reported_at_the_rate_that_is_asked_for(tmp_path: Path) -> None:
    called: list[int] = []
    train(tmp_path / "run", callback_every_s=1000.0, on_update=lambda p: called.append(p.env_steps))
    assert called == [PER_ITERATION]
    callbacks = Callbacks(on_update=lambda progress: None, every_s=1000.0)
    assert callbacks.is_due(0)
    callbacks.call("on_update", Progress(Path(), 0, 0, 0, None))
    assert not callbacks.is_due(0)
    assert not Callbacks().is_due(0)


@pytest.mark.parametrize(
    ("distribution", "environment"),
    [
        ("inline", "evaluated:Walk"),
        ("fused", "toys:Corridor"),
        pytest.param("coarse", "evaluated:Walk", marks=pytest.mark.slow),
    ],
)
def test_updates_are_reported_at_the_steps_that_are_asked_for(
    distribution: str, environment: str, tmp_path: Path
) -> None:
    every, called = 3 * PER_ITERATION // 2, []
    more = {"actors": 2} if distribution == "coarse" else {}
    train(
        tmp_path / "run", distribution, environment=environment, callback_every=every,
        on_update=lambda p: called.append(p.env_steps), **more,
    )  # fmt: skip
    if distribution == "coarse":  # which trains on: no interval twice
        assert len({at // every for at in called}) == len(called) >= 1
        return
    wanted = [-(-at // PER_ITERATION) * PER_ITERATION for at in range(every, STEPS + 1, every)]
    assert called == wanted
    again: list[int] = []
    runnel.resume(
        tmp_path / "run", steps=2 * STEPS, quiet=True, callback_every=STEPS,
        on_update=lambda p: again.append(p.env_steps),
    )  # fmt: skip
    assert again == [2 * STEPS]


# What follows


@pytest.mark.parametrize("name", ["on_update", "on_evaluation", "on_checkpoint"])
def test_false_ends_the_run_and_nothing_else_does(name: str, tmp_path: Path, plain: runnel.Run) -> None:
    answers = iter([None, 0, "", False])
    called: list[int] = []

    def answer(progress: Progress) -> Any:
        called.append(progress.env_steps)
        return next(answers)

    run = train(
        tmp_path / "run", eval_every=PER_ITERATION, eval_episodes=1, keep_every=PER_ITERATION, checkpoint_every_s=1e-9,
        **{name: answer},
    )  # fmt: skip
    assert len(called) == 4
    assert run.result["status"] == "finished"
    assert called[-1] == run.result["env_steps"] < STEPS
    again = runnel.resume(run.run_dir, quiet=True)
    assert again.result["env_steps"] == STEPS
    assert bits(again) == bits(plain)


@pytest.mark.parametrize(
    ("name", "distribution", "more"),
    [
        ("on_update", "inline", {}),
        ("on_evaluation", "inline", {"eval_every": PER_ITERATION, "eval_episodes": 1}),
        ("on_checkpoint", "inline", {"checkpoint_every_s": 1e-9}),
        pytest.param("on_update", "coarse", {"actors": 2, "env_settings": {"slow_s": 0.01}}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_an_exception_ends_the_run_with_a_checkpoint_and_is_raised(
    name: str, distribution: str, more: dict[str, Any], tmp_path: Path, plain: runnel.Run
) -> None:
    def fail(progress: Progress) -> None:
        if progress.env_steps >= 3 * PER_ITERATION:
            raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        train(tmp_path / "run", distribution, keep_every=PER_ITERATION, **more, **{name: fail})
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "interrupted"
    assert 3 * PER_ITERATION <= result["env_steps"] < STEPS
    assert PolicyStore(tmp_path / "run").find("latest")["agent"].env_steps == result["env_steps"]
    called: list[int] = []
    again = runnel.resume(
        tmp_path / "run", quiet=True, on_update=lambda p: called.append(p.env_steps), callback_every_s=0.0
    )  # fmt: skip
    assert again.result["env_steps"] == STEPS
    assert called
    assert called[0] > result["env_steps"]
    assert called[-1] == STEPS
    assert bits(again) == bits(plain)


def test_a_callback_that_ends_the_program_leaves_a_checkpoint_too(tmp_path: Path, plain: runnel.Run) -> None:
    with pytest.raises(SystemExit, match="4"):
        train(tmp_path / "run", keep_every=PER_ITERATION, on_update=lambda progress: sys.exit(4))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "interrupted"
    assert bits(runnel.resume(tmp_path / "run", quiet=True)) == bits(plain)


def test_a_resumed_run_may_be_stopped_by_them_too(tmp_path: Path, plain: runnel.Run) -> None:
    run = train(tmp_path / "run", steps=2 * PER_ITERATION, keep_every=PER_ITERATION)
    stopped = runnel.resume(
        run, steps=STEPS, quiet=True, callback_every_s=0.0, on_update=lambda p: p.env_steps < 4 * PER_ITERATION
    )  # fmt: skip
    assert stopped.result["env_steps"] == 4 * PER_ITERATION
    assert bits(runnel.resume(run.run_dir, quiet=True)) == bits(plain)


# Policies


def test_updates_are_reported_only_after_something_was_learnt(tmp_path: Path) -> None:
    seen: list[Progress] = []
    fills = DQN(unroll=8, hidden=(8,), min_size=4 * PER_ITERATION, capacity=512, batch=8)
    train(tmp_path / "run", algorithm=fills, on_update=seen.append)
    assert seen[0].env_steps >= 4 * PER_ITERATION  # until then the replay was filled
    updates = [0, *(progress.updates for progress in seen)]
    assert all(before < after for before, after in pairwise(updates))


@pytest.mark.parametrize(
    ("distribution", "environment", "more"),
    [
        ("inline", "evaluated:Walk", {}), ("inline", "toys:Corridor", {}), ("fused", "toys:Corridor", {}),
        ("coarse", "evaluated:Walk", {"actors": 2}),
    ],
)  # fmt: skip
def test_the_policy_is_the_newest_and_stays_as_it_was(
    distribution: str, environment: str, more: dict[str, Any], tmp_path: Path
) -> None:
    held: list[tuple[Progress, Policy, dict[str, np.ndarray]]] = []

    def hold(progress: Progress) -> None:
        policy = progress.policy()
        assert isinstance(policy, Policy)
        held.append((progress, policy, {name: np.array(array) for name, array in policy.arrays.items()}))

    run = train(
        tmp_path / "run", distribution, environment, on_update=hold, on_checkpoint=hold, keep_every=PER_ITERATION,
        **more,
    )  # fmt: skip
    assert len(held) > 1
    stored = {snapshot.version: snapshot.arrays() for snapshot in PolicyStore(run.run_dir)}
    for progress, policy, before in held:
        if distribution == "coarse":
            assert policy.config.version >= progress.updates  # workers train on meanwhile
        else:
            assert (policy.config.version, policy.config.env_steps) == (progress.updates, progress.env_steps)
        wanted = stored[policy.config.version]
        for name, array in before.items():
            np.testing.assert_array_equal(array, wanted[name])
            np.testing.assert_array_equal(policy.arrays[name], array)  # training on has not changed it
        assert policy.act(np.zeros(2, np.float32)).shape == ()
    final = held[-1][1]  # that of the last checkpoint
    np.testing.assert_array_equal(final.params["w"], run.params["w"])


def test_the_policy_of_an_evaluation_is_the_one_that_was_evaluated(tmp_path: Path) -> None:
    from runnel.evaluation.evaluate import evaluate

    seen: list[tuple[dict[str, Any], Policy]] = []

    def hold(progress: Progress) -> None:
        policy = progress.policy()
        assert isinstance(policy, Policy)
        assert progress.evaluation is not None
        seen.append((dict(progress.evaluation), policy))

    run = train(
        tmp_path / "run", eval_every=4 * PER_ITERATION, eval_episodes=3, eval_seed=5, eval_workers=1, eval_wait=True,
        keep_every=4 * PER_ITERATION, on_evaluation=hold,
    )  # fmt: skip
    assert [found["env_steps"] for found, _ in seen] == [0, 128, 256, 320]
    for found, policy in seen:
        assert (policy.config.env_steps, policy.config.version) == (found["env_steps"], found["versions"]["agent"])
        assert evaluate(f"{run.run_dir}@{policy.config.version}", 3, seed=5)["returns"] == list(found["returns"])
        snapshot = PolicyStore(run.run_dir).query(version=policy.config.version)[0]
        np.testing.assert_array_equal(policy.arrays["params/w"], snapshot.arrays()["params/w"])


def test_the_newest_policy_is_asked_for_inside_the_callback(tmp_path: Path) -> None:
    seen: list[Progress] = []
    train(tmp_path / "run", on_update=seen.append)
    with pytest.raises(UserError, match=r"policy\(\): found a call after on_update has returned"):
        seen[0].policy()


def test_of_several_groups_all_policies_are_given(tmp_path: Path) -> None:
    seen: list[Any] = []
    train(
        tmp_path / "run", environment="toys:Tag", algorithm=Drift(), steps=64,
        on_checkpoint=lambda progress: seen.append(progress.policy()),
    )  # fmt: skip
    (policies,) = seen
    assert isinstance(policies, Policies)
    assert set(policies.groups) == {"hunter", "runners"}


@pytest.mark.parametrize("name", ["on_update", "on_evaluation", "on_checkpoint"])
def test_what_cannot_be_called_is_refused(name: str, tmp_path: Path, plain: runnel.Run) -> None:
    with pytest.raises(UserError, match=name):
        train(tmp_path / "run", **{name: "print"})
    with pytest.raises(UserError, match=f"{name}='print': found a str, expected a function"):
        runnel.resume(plain.run_dir, steps=2 * STEPS, quiet=True, **{name: "print"})
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match="on_updte"):
        train(tmp_path / "run", on_updte=print)
