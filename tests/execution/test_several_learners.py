"""Runs in which several groups learn against each other's past: games of two roles, and leagues."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from chaos import Chaos
from kill_runs import assert_same, final_state, train, undisturbed

import runnel
from runnel.algorithms.dqn import DQN
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.ppo import PPO
from runnel.errors import UserError
from runnel.evaluation.evaluate import evaluate
from runnel.execution.building import build
from runnel.matchmaking import PFSP, Fixed, UniformPast
from runnel.recording.match_log import read_matches
from runnel.reporting.payoff_report import read_payoffs

SMALL = PPO(unroll=8, minibatches=1, epochs=1, hidden=(8,), learning_rate=3e-3)
PENNIES, TAG = "matrix:matching_pennies", "pettingzoo:mpe2.simple_tag_v3"
ADVERSARY, TICTACTOE = "pettingzoo:mpe2.simple_adversary_v3", "pettingzoo:classic.tictactoe_v3"
ENVS = 8
ITERATION = 8 * ENVS
PAST = PFSP(every=2 * ITERATION, places=3)
LEAGUE = runnel.League(every=2 * ITERATION, places=3, league_exploiters=0, patience=3)


def play(run_dir: Path, algorithm=SMALL, game=PENNIES, distribution="fused", iterations=6, **more):
    more = {"opponents": PAST, "envs": ENVS, "steps": iterations * ITERATION, "seed": 3, "quiet": True, **more}
    return runnel.train(algorithm, game, distribution, run_dir=run_dir, **more)


def everything(run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(dict(run.states))]


def assert_alike(one, other):
    assert read_matches(one.run_dir) == read_matches(other.run_dir)
    for mine, own in zip(jax.tree.leaves(dict(one.states)), jax.tree.leaves(dict(other.states)), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(own), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def two_roles(tmp_path_factory):
    return play(tmp_path_factory.mktemp("roles") / "run")


@pytest.fixture(scope="module")
def league(tmp_path_factory):
    return play(tmp_path_factory.mktemp("league") / "run", game="matrix:rock_paper_scissors", opponents=LEAGUE)


# Two roles


def test_each_role_learns_and_its_past_plays_the_other(two_roles):
    rounds = read_matches(two_roles.run_dir)
    assert {made.group for made in rounds} == {"row-past", "column-past"}
    assert set(two_roles.result["group_returns"]) == {"row", "column"}
    for made in rounds:
        role = made.group.removesuffix("-past")
        other = {"row": "column", "column": "row"}[role]
        assert all(key.startswith(f"{role}:") for key in made.places)
        assert made.pool[-1] == f"{other}:{2 * made.round}"
        assert {result.opponent for result in made.results} <= {made.pool[-1]}
        assert {result.role for result in made.results} <= {role}
        if made.round:  # two of eight environments, of which an episode is one step
            assert sum(result.games for result in made.results) == 2 * ITERATION / 4


def test_a_group_learns_from_the_environments_in_which_it_plays():
    built = build(SMALL, PENNIES, "fused", envs=ENVS, opponents=PAST)
    (learn,) = (node for node in built.graph.learners("row"))
    assert learn.inputs[0].type.reward.shape == (8, 6)
    (learn,) = (node for node in built.graph.learners("row-past"))
    assert learn.inputs[0].type.reward.shape == (8, 2)
    assert built.env_settings["lineups"] == [
        ["row", "column"], ["row", "column"], ["row", "column-past"], ["row-past", "column"],
    ]  # fmt: skip


def test_replays_have_only_what_a_group_played():
    built = build(DQN(unroll=8, min_size=64, capacity=256, batch=16), PENNIES, "fused", envs=ENVS, opponents=PAST)
    (replay,) = (node for node in built.graph.of_kind("replay") if node.group == "row")
    assert replay.inputs[0].type.r_t.shape == (8 * 6,)


@pytest.mark.parametrize(("share", "newest", "count"), [(0.0, 0, 2), (0.25, 2, 8), (0.5, 2, 4), (0.75, 6, 8)])
def test_the_newest_meet_in_their_share_of_the_environments(share, newest, count):
    built = build(SMALL, PENNIES, "fused", envs=ENVS, opponents=UniformPast(latest_share=share))
    found = built.env_settings["lineups"]
    assert (len(found), found.count(["row", "column"])) == (count, newest)


def test_a_group_that_does_not_learn_plays_in_all_environments():
    algorithms = {"row": SMALL, "column": SMALL}
    built = build(runnel.PerGroup(algorithms), PENNIES, "fused", envs=ENVS, opponents=PAST)
    assert list(built.algorithm.algorithms) == ["row", "column", "column-past", "row-past"]


@pytest.mark.parametrize(
    "distribution",
    [
        "inline",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("coarse", "fine", "environments", "replicated")),
    ],
)
def test_synchronous_distributions_play_the_same(distribution, two_roles, tmp_path):
    assert_alike(play(tmp_path / "other", distribution=distribution), two_roles)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["async", "decoupled"])
def test_asynchronous_learners_play_each_others_past(distribution, tmp_path):
    run = play(tmp_path / "run", IMPALA(unroll=8), distribution=distribution, envs=16, iterations=6)
    assert any(made.results for made in read_matches(run.run_dir))


@pytest.mark.slow
@pytest.mark.parametrize(("distribution", "game"), [("inline", TAG), ("coarse", TAG), ("inline", ADVERSARY)])
def test_roles_of_host_environments_are_resumed(distribution, game, tmp_path):
    whole = play(tmp_path / "whole", SMALL, game, distribution, 7)
    play(tmp_path / "parts", SMALL, game, distribution, 3)
    last = runnel.resume(tmp_path / "parts", steps=7 * ITERATION, quiet=True)
    assert read_matches(last.run_dir) == read_matches(whole.run_dir)
    assert everything(last) == everything(whole)


@pytest.mark.slow
def test_roles_of_several_agents_play_each_others_past(tmp_path):
    """One adversary against two agents that share a policy; an episode has 25 steps."""
    past = dataclasses.replace(PAST, every=16 * ITERATION, payoff="return")
    run = play(tmp_path / "run", dataclasses.replace(SMALL, unroll=32), ADVERSARY, "inline", 40, opponents=past)
    assert set(run.result["group_returns"]) == {"adversary", "agent"}
    rounds = read_matches(run.run_dir)
    assert {made.group for made in rounds} == {"adversary-past", "agent-past"}
    for group in ("adversary-past", "agent-past"):
        own = [made for made in rounds if made.group == group]
        assert len(own) == 3
        assert all(key.startswith(group.removesuffix("past").rstrip("-")) for made in own for key in made.places)
        assert sum(result.games for made in own for result in made.results) > 0


def test_stopped_and_resumed_equals_never_stopped(two_roles, tmp_path):
    play(tmp_path / "parts", iterations=3)
    last = runnel.resume(tmp_path / "parts", steps=6 * ITERATION, quiet=True)
    assert read_matches(last.run_dir) == read_matches(two_roles.run_dir)
    assert everything(last) == everything(two_roles)


@pytest.mark.slow
def test_killed_workers_change_nothing(tmp_path):
    command = ["ppo", TAG, "--distribution", "coarse", "--actors", "2", "--opponents", "pfsp", "--set", "unroll=64"]
    command += ["opponents.every=8192", "opponents.places=3"]
    wanted = undisturbed(command, tmp_path / "calm", 40_000)
    workers, killed = ["actor-0", "learner"], tmp_path / "killed"
    chaos = Chaos(train(command, killed, 40_000), killed, workers, seed=1, pause_s=(1.0, 3.0), most=3)
    assert chaos.run() == 0, chaos.output()
    assert chaos.done
    assert_same(final_state(tmp_path / "killed"), wanted)
    assert read_matches(tmp_path / "killed") == read_matches(tmp_path / "calm")


def test_there_are_ratings_for_each_role(two_roles):
    row, column = sorted(read_payoffs(two_roles.run_dir), key=lambda report: report.role, reverse=True)
    assert (row.role, column.role) == ("row", "column")
    assert all(key.startswith("row:") for key in row.players)
    assert all(key.startswith("column:") for key in row.opponents)
    assert row.anchor == "row:0"


def test_an_evaluation_counts_the_games_that_a_group_played(two_roles):
    found = evaluate(two_roles.run_dir, episodes=16)
    assert set(found["group_returns"]) == {"row", "column", "row-past", "column-past"}
    assert found["episodes"] == 16


def test_policies_of_both_roles_play_a_match(two_roles):
    found = runnel.versus(f"{two_roles.run_dir}@0", f"{two_roles.run_dir}@latest", episodes=8, explore=True)
    assert [seat["seat"] for seat in found["seats"]] == ["row", "column"]


# A league


def test_every_learner_of_a_league_has_its_own_pool(league):
    rounds = read_matches(league.run_dir)
    assert {made.group for made in rounds} == {"main-opponent", "main-exploiter-opponent"}
    assert set(league.result["group_returns"]) == {"main", "main-exploiter"}
    last = [made for made in rounds if made.group == "main-opponent"][-1]
    assert {key.partition(":")[0] for key in last.pool} == {"main", "main-exploiter"}
    assert last.pool[-1] == "main:6"
    exploiter = [made for made in rounds if made.group == "main-exploiter-opponent"]
    assert {key.partition(":")[0] for made in exploiter for key in made.places} == {"main"}


@pytest.mark.slow
def test_a_league_plays_a_game_of_turns(tmp_path):
    """A board game with illegal moves, of the host."""
    often = dataclasses.replace(LEAGUE, every=4 * ITERATION)
    run = play(tmp_path / "run", SMALL, TICTACTOE, "inline", 13, opponents=often)
    rounds = [made for made in read_matches(run.run_dir) if made.group == "main-opponent"]
    assert len(rounds) == 4
    assert {key.partition(":")[0] for key in rounds[-1].pool} == {"main", "main-exploiter"}
    games = [result for made in rounds for result in made.results]
    assert sum(result.wins + result.losses for result in games) > 0
    assert len({key for made in rounds for key in made.places}) > 1


def test_exploiters_begin_again_with_their_first_parameters(league, tmp_path):
    rounds = [made for made in read_matches(league.run_dir) if made.group == "main-exploiter-opponent"]
    assert [made.began for made in rounds] == [False, False, False, True]
    store = runnel.policies(league.run_dir)
    first, kept = (store.query("main-exploiter", version=version)[0].arrays() for version in (0, 6))
    names = [name for name in first if name.startswith("params")]
    now = [np.asarray(leaf) for leaf in jax.tree.leaves(dict(league.states)["main-exploiter"].params)]
    assert sorted(x.tobytes() for x in now) == sorted(first[name].tobytes() for name in names)
    assert any(first[name].tobytes() != kept[name].tobytes() for name in names)  # what it had learnt is in the pool


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_workers_change_nothing_in_a_league(tmp_path):
    command = ["ppo", "openspiel:kuhn_poker", "--distribution", "coarse", "--actors", "2", "--opponents", "league"]
    command += ["--set", "opponents.every=8192", "opponents.places=3", "opponents.league_exploiters=0"]
    command += ["opponents.patience=2"]
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    wanted = undisturbed(command, calm, 60_000)
    chaos = Chaos(train(command, killed, 60_000), killed, ["actor-0", "actor-1", "learner"], seed=1, most=4)
    assert chaos.run() == 0, chaos.output()
    assert chaos.done
    assert_same(final_state(killed), wanted)
    assert read_matches(killed) == read_matches(calm)
    assert any(made.began for made in read_matches(killed))


@pytest.mark.slow
def test_a_league_is_resumed_where_it_stopped(tmp_path):
    often = dataclasses.replace(LEAGUE, patience=1)
    whole = play(tmp_path / "whole", game="matrix:rock_paper_scissors", opponents=often)
    play(tmp_path / "parts", game="matrix:rock_paper_scissors", opponents=often, iterations=3)
    last = runnel.resume(tmp_path / "parts", steps=6 * ITERATION, quiet=True)
    assert read_matches(last.run_dir) == read_matches(whole.run_dir)
    assert everything(last) == everything(whole)


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["inline", "coarse", "fine", "environments", "replicated"])
def test_a_league_is_the_same_under_every_synchronous_distribution(distribution, tmp_path):
    often = dataclasses.replace(LEAGUE, patience=1)
    one, other = (
        play(tmp_path / name, SMALL, "matrix:rock_paper_scissors", name, opponents=often)
        for name in ("fused", distribution)
    )
    assert_alike(one, other)


def test_the_main_agent_of_a_league_plays_matches(league):
    notes = []
    found = runnel.versus(league.run_dir, f"{league.run_dir}@0", episodes=4, explore=True, note=notes.append)
    assert [seat["seat"] for seat in found["seats"]] == ["player_0", "player_1"]
    assert any("'main' plays" in note for note in notes)
    exploiter = runnel.load(league.run_dir, group="main-exploiter")
    assert 0 <= runnel.versus(exploiter, league.run_dir, episodes=4, explore=True)["score"] <= 1


def test_a_league_has_one_table_of_results(league):
    (report,) = read_payoffs(league.run_dir)
    assert report.role == ""
    assert {key.partition(":")[0] for key in report.players} == {"main", "main-exploiter"}


def test_lines_of_older_runs_have_no_new_beginnings(league, tmp_path):
    lines = (league.run_dir / "matches.jsonl").read_text().splitlines()
    older = [{name: value for name, value in json.loads(line).items() if name != "began"} for line in lines]
    (tmp_path / "matches.jsonl").write_text("".join(json.dumps(line) + "\n" for line in older))
    assert len(read_matches(tmp_path)) == len(lines)
    assert not any(made.began for made in read_matches(tmp_path))


# Mistakes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"opponents": "league"}, "a league needs players that are alike: .* has the groups row, column, expected one"),
        ({"envs": 6}, "envs=6: .* has 4 line-ups, found envs=6, expected a multiple of 4"),
        ({"opponents": UniformPast(latest_share=0.4)}, "found 0.4, expected 0, 0.25, 0.5 or 0.75"),
        ({"opponents": Fixed(keys=("row:0",))}, "found no policy 'row:0' in the pool"),
        (
            {"algorithm": {"row": SMALL, "column": lambda observation, key: 0}},
            "has 1 groups? that learn.* \\(row\\), expected two",
        ),
        ({"env_settings": {"lineups": [["row", "column"]]}}, "found env.lineups, which opponents decide"),
        ({"distribution": "coarse", "actors": 4}, "4 line-ups, .* found 2 environments in each.*envs=16"),
        ({"game": "matrix:rock_paper_scissors", "opponents": "leauge"}, "did you mean 'league'"),
    ],
)
def test_a_mistake_is_said_before_anything_is_trained(given, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        play(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()
