"""A different algorithm for each group of agents."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from toys import flee

import runnel
from runnel.algorithm import PerGroup
from runnel.algorithms.a2c import A2C
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.opponent_pool import OpponentPool
from runnel.algorithms.ppo import PPO
from runnel.algorithms.scripted import Scripted
from runnel.cli.main import main
from runnel.errors import UserError
from runnel.evaluation.evaluate import evaluate
from runnel.execution.policies.group_algorithms import by_group, parse_settings, resolved
from runnel.runtime.programs.loop import Loop

HUNTER = A2C(unroll=5, hidden=(8,))
RUNNERS = PPO(unroll=5, hidden=(8,), minibatches=1, epochs=1)


def train(run_dir: Path, algorithm, distribution="inline", iterations=4, **more):
    more = {"envs": 4, "steps": iterations * 20, "seed": 2, "quiet": True, **more}
    return runnel.train(algorithm, "toys:Tag", distribution, run_dir=run_dir, **more)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return train(tmp_path_factory.mktemp("two") / "run", {"hunter": HUNTER, "runners": RUNNERS})


def test_every_group_learns_by_its_own_algorithm(two):
    assert two.result["algorithm"] == "hunter=a2c,runners=ppo"
    stored = {snapshot.group: snapshot.config.algorithm["class"] for snapshot in runnel.policies(two.run_dir)}
    assert stored == {"hunter": "runnel.algorithms.a2c:A2C", "runners": "runnel.algorithms.ppo:PPO"}
    loaded = runnel.load(two.run_dir)
    assert {group: type(loaded[group].algorithm) for group in ("hunter", "runners")} == {
        "hunter": A2C,
        "runners": PPO,
    }


def test_each_group_trains_as_it_does_under_the_same_algorithm_for_all(tmp_path):
    """Which algorithm another group has changes what it does, and nothing else: one for all is the same as it twice."""
    one = train(tmp_path / "one", RUNNERS)
    twice = train(tmp_path / "twice", PerGroup({"hunter": RUNNERS, "runners": RUNNERS}))
    for mine, own in zip(jax.tree.leaves(dict(one.states)), jax.tree.leaves(dict(twice.states)), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(own))


SLOW = ("environments", "coarse", "fine")


@pytest.mark.parametrize("distribution", ["fused", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_distributions_train_the_same(distribution, two, tmp_path):
    other = train(tmp_path / "other", {"hunter": HUNTER, "runners": RUNNERS}, distribution)
    for mine, own in zip(jax.tree.leaves(dict(other.states)), jax.tree.leaves(dict(two.states)), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(own), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["async", "decoupled"])
def test_groups_learn_asynchronously_by_their_own_algorithms(distribution, tmp_path):
    two = {"hunter": IMPALA(unroll=5, hidden=(8,)), "runners": RUNNERS}
    run = train(tmp_path / "run", two, distribution, iterations=12, actors=2)
    assert run.result["status"] == "finished"
    assert run.result["updates"] >= 2 * 12
    first = Loop(run.built.graph)
    for group in two:
        began = jax.tree.leaves(first.init_state(jax.numpy.uint32(2), group).params)
        ended = jax.tree.leaves(run.states[group].params)
        assert any((np.asarray(one) != np.asarray(other)).any() for one, other in zip(began, ended, strict=True))


def test_a_resumed_run_remembers_the_algorithms(tmp_path):
    whole = train(tmp_path / "whole", {"hunter": HUNTER, "runners": RUNNERS}, iterations=6)
    train(tmp_path / "parts", {"hunter": HUNTER, "runners": RUNNERS}, iterations=3)
    last = runnel.resume(tmp_path / "parts", steps=120, quiet=True)
    for mine, own in zip(jax.tree.leaves(dict(last.states)), jax.tree.leaves(dict(whole.states)), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(own))


def test_a_group_can_follow_a_function(tmp_path):
    run = train(tmp_path / "run", {"hunter": HUNTER, "runners": "toys:flee"})
    assert run.states["runners"].params == ()
    assert "group_returns" not in run.result  # one group learns
    assert set(evaluate(run.run_dir, episodes=2)["group_returns"]) == {"hunter", "runners"}


def test_a_group_can_be_played_by_a_stored_policy(two, tmp_path):
    run = train(tmp_path / "run", {"hunter": HUNTER, "runners": f"{two.run_dir}@latest"})
    stored, playing = two.states["runners"].params, run.states["runners"].params.places
    for mine, own in zip(jax.tree.leaves(playing), jax.tree.leaves(stored), strict=True):
        np.testing.assert_array_equal(np.asarray(mine)[0], np.asarray(own))
    again = runnel.resume(run.run_dir, steps=120, quiet=True)
    for mine, own in zip(jax.tree.leaves(again.states["runners"].params.places), jax.tree.leaves(playing), strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(own))


def test_a_group_that_does_not_learn_may_come_first(two, tmp_path):
    """The unroll is that of the groups that learn, whatever the order of the environment's groups."""
    run = train(tmp_path / "run", {"hunter": f"{two.run_dir}@latest", "runners": RUNNERS})
    assert run.result["updates"] == 2 * 4  # the pool counts results


def test_a_policy_of_a_group_that_has_not_learnt_is_refused(two, tmp_path):
    run = train(tmp_path / "run", {"hunter": HUNTER, "runners": f"{two.run_dir}@latest"})
    with pytest.raises(UserError, match="group 'runners' has not learnt there"):
        train(tmp_path / "again", {"hunter": HUNTER, "runners": f"{run.run_dir}@latest"})


def test_the_command_line_names_algorithms_and_settings_by_group(tmp_path):
    flags = ["--set", "hunter.unroll=5", "hunter.learning_rate=0.5", "runners.unroll=5", "--envs", "4", "--steps", "40"]
    command = ["train", "hunter=a2c,runners=ppo", "toys:Tag", "--quiet", "--run-dir", str(tmp_path / "run")]
    assert main([*command, *flags]) == 0
    kept = runnel.execution.training.read_config(tmp_path / "run")["algorithm"]["settings"]["algorithms"]["dict"]
    assert kept["hunter"]["settings"]["learning_rate"] == 0.5


def test_the_command_line_names_a_function(tmp_path, capsys):
    command = ["hunter=a2c,runners=toys:flee", "toys:Tag", "--set", "hunter.unroll=5", "--envs", "4"]
    assert main(["train", *command, "--steps", "40", "--quiet", "--run-dir", str(tmp_path / "run")]) == 0
    kept = runnel.execution.training.read_config(tmp_path / "run")["algorithm"]["settings"]["algorithms"]["dict"]
    assert kept["runners"]["class"].endswith(":Scripted")
    assert main(["plan", *command]) == 0
    assert "hunter=A2C,runners=Scripted on tag" in capsys.readouterr().out
    assert main(["train", *command, "--set", "runners.unroll=5"]) == 2
    assert "group 'runners' does not learn" in capsys.readouterr().err


def test_a_plan_names_all_algorithms(capsys):
    flags = ["--set", "hunter.unroll=5", "runners.unroll=5"]
    assert main(["plan", "hunter=a2c,runners=ppo", "toys:Tag", *flags]) == 0
    assert "hunter=A2C,runners=PPO on tag" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hunter=ppo,", "found '', expected GROUP=NAME"),
        ("hunter=ppo,runners", "found 'runners', expected GROUP=NAME"),
        ("hunter=ppo,hunter=dqn", "found group 'hunter' twice"),
    ],
)
def test_text_that_names_no_algorithms_is_refused(text, expected):
    with pytest.raises(UserError, match=expected):
        by_group(text)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"hunter": HUNTER}, "group 'runners' has no algorithm; found hunter"),
        ({"hunter": HUNTER, "runner": RUNNERS}, "has no group 'runner'.*did you mean 'runners'|no algorithm"),
        ({"hunter": HUNTER, "runners": PPO(unroll=6)}, "give each flow.rollout the same steps"),
        ({"hunter": HUNTER, "runners": "ppoo"}, "there is no algorithm 'ppoo'"),
        ({"hunter": HUNTER, "runners": "/nowhere@best"}, "there is no directory /nowhere"),
        ({"hunter": flee, "runners": flee}, "found no group that learns"),
        ({"hunter": "dqn", "runners": "dqn"}, "DQN: found Box actions of 'tag'"),
    ],
)
def test_a_mistake_is_said_before_anything_starts(algorithm, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        train(tmp_path / "run", algorithm)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["learning_rate=1"], "expected GROUP.key=value"),
        (["huntr.learning_rate=1"], "did you mean 'hunter'"),
        (["hunter.learning_rat=1"], "did you mean 'learning_rate'"),
        (["runners.learning_rate=1"], "group 'runners' does not learn"),
    ],
)
def test_settings_of_no_group_are_refused(pairs, expected):
    with pytest.raises(UserError, match=expected):
        parse_settings("hunter=a2c,runners=toys:flee", pairs)


def test_groups_that_do_not_learn_are_pools_and_scripts(two):
    algorithm, settings = resolved({"runners": f"{two.run_dir}@latest", "hunter": HUNTER}, "toys:Tag", None)
    assert settings is None
    assert list(algorithm.algorithms) == ["hunter", "runners"]  # those that learn first
    assert isinstance(algorithm.for_group("runners"), OpponentPool)
    assert isinstance(resolved({"hunter": flee, "runners": RUNNERS}, "", None)[0].for_group("hunter"), Scripted)
