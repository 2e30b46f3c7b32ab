"""Runs in which past policies play the other seats of a game."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import jax
import jax.monitoring
import numpy as np
import pytest
from chaos import Chaos
from kill_runs import assert_same, final_state, train, undisturbed

import runnel
from runnel import distributions
from runnel.algorithms.a2c import A2C
from runnel.algorithms.dqn import DQN
from runnel.algorithms.impala import IMPALA
from runnel.algorithms.ppo import PPO
from runnel.errors import UserError
from runnel.evaluation.evaluate import evaluate
from runnel.execution.policies.group_algorithms import resolved
from runnel.execution.policies.opponents import Opponents, pools_in
from runnel.execution.policies.pool_games import PoolGames
from runnel.launch.host_launcher import LocalHostLauncher
from runnel.matchmaking import PFSP, Fixed, Latest, Matches, Matchmaker, Psro, UniformPast
from runnel.ops import meta_games
from runnel.planning.channels import derive_channels
from runnel.planning.machine import Machine
from runnel.recording.events import read_events
from runnel.recording.match_log import payoffs_of, read_matches
from runnel.runtime.programs.loop import Loop
from runnel.transport.memory import arrays_bytes

SMALL = PPO(unroll=8, minibatches=2, epochs=2, hidden=(16,), learning_rate=3e-3, advantages="gae")
GRU = PPO(unroll=8, minibatches=2, epochs=1, hidden=(16,), memory="gru", memory_size=8, advantages="gae")
GAME, ENVS = "matrix:rock_paper_scissors", 8
ITERATION = 8 * ENVS
MATCHMAKER = PFSP(every=2 * ITERATION, places=3)


def play(run_dir: Path, algorithm=SMALL, game=GAME, distribution="fused", iterations=8, **more):
    more = {"opponents": MATCHMAKER, "envs": ENVS, "steps": iterations * ITERATION, "seed": 3, "quiet": True, **more}
    return runnel.train(algorithm, game, distribution, run_dir=run_dir, **more)


def everything(run) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(dict(run.states))]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    return play(tmp_path_factory.mktemp("played") / "run")


@pytest.fixture
def played(whole_run, tmp_path):
    """The directory of a run of eight iterations, for each test a copy of its own."""
    return Path(shutil.copytree(whole_run.run_dir, tmp_path / "played", symlinks=True))


def test_past_policies_enter_the_pool_and_play(whole_run):
    rounds = read_matches(whole_run.run_dir)
    assert [(made.round, made.env_steps) for made in rounds] == [(k, 2 * k * ITERATION) for k in range(5)]
    assert rounds[0].places == ("player:0",) * 3
    assert [made.pool[-1] for made in rounds] == [f"player:{2 * k}" for k in range(5)]
    for before, made in pairwise(rounds):
        assert set(made.places) <= set(made.pool)
        assert {result.player for result in made.results} <= set(before.places)
        assert {result.opponent for result in made.results} == {made.pool[-1]}
    games = sum(result.games for made in rounds for result in made.results)
    assert games == 8 * ITERATION  # an episode is one step, and none was cut


def test_policies_of_the_pool_are_kept_whatever_the_rule_says(whole_run):
    kept = {snapshot.version for snapshot in runnel.policies(whole_run.run_dir).query("player")}
    assert kept == {0, 2, 4, 6, 8}


def test_the_learner_alone_counts_in_returns(whole_run):
    assert "group_returns" not in whole_run.result
    assert -1 <= whole_run.result["mean_return"] <= 1


SYNCHRONOUS = ("coarse", "fine", "environments", "replicated")
ASYNCHRONOUS = ("async", "decoupled")


@pytest.mark.parametrize(
    "distribution", ["inline", *(pytest.param(name, marks=pytest.mark.slow) for name in (*SYNCHRONOUS, "decoupled"))]
)
def test_every_synchronous_distribution_plays_the_same_matches(distribution, whole_run, tmp_path):
    other = play(tmp_path / "other", distribution=distribution)
    assert read_matches(other.run_dir) == read_matches(whole_run.run_dir)
    for mine, own in zip(jax.tree.leaves(dict(other.states)), jax.tree.leaves(dict(whole_run.states)), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(own), rtol=1e-4, atol=1e-5)


def test_every_distribution_is_named_by_its_test():
    """Each distribution is tested for the statements of the page about all of them."""
    assert {"fused", "inline", *SYNCHRONOUS, *ASYNCHRONOUS, "central"} == set(distributions.names())


@pytest.mark.parametrize("algorithm", [SMALL, A2C(unroll=8)], ids=["ppo", "a2c"])
def test_central_is_refused(algorithm, tmp_path):
    with pytest.raises(UserError, match="central"):
        play(tmp_path / "run", algorithm, distribution="central")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ASYNCHRONOUS)
def test_asynchronous_learners_play_past_policies_too(distribution, tmp_path):
    """Actors play while the learner continues; at a decision all of them pause, and play the same policies from then
    on."""
    run = play(tmp_path / "run", IMPALA(unroll=8), distribution=distribution, iterations=12, actors=2)
    assert run.result["status"] == "finished"
    rounds = read_matches(run.run_dir)
    assert [made.round for made in rounds] == list(range(len(rounds)))
    assert len(rounds) >= 3
    assert len({place for made in rounds for place in made.places}) >= 3
    for before, made in pairwise(rounds):
        assert made.env_steps >= before.env_steps + MATCHMAKER.every
        assert {result.player for result in made.results} <= set(before.places)
    # All games that were learnt from count, except for those that a decision interrupted, of which there are none here.
    assert sum(result.games for made in rounds for result in made.results) == rounds[-1].env_steps
    last = runnel.resume(run.run_dir, steps=16 * ITERATION, quiet=True)
    assert read_matches(last.run_dir)[: len(rounds)] == rounds
    assert len(read_matches(last.run_dir)) > len(rounds)


PSRO = Psro(every=ITERATION, places=6, payoff="return", games=20)


@pytest.fixture(scope="module")
def psro_run(tmp_path_factory):
    return play(tmp_path_factory.mktemp("psro") / "run", opponents=PSRO, iterations=5)


def test_psro_plays_every_pair_of_its_pool_beside_training(psro_run):
    """So its payoff table is complete, and the policies of the places are those of the meta-strategy of that table."""
    rounds = read_matches(psro_run.run_dir)
    payoffs, keys = payoffs_of(rounds), rounds[-1].pool
    assert keys == tuple(f"player:{k}" for k in range(6))
    assert all(payoffs.games(one, other) == PSRO.games for one in keys for other in keys if one != other)
    mixture = meta_games.solve("nash", np.nan_to_num(payoffs.zero_sum_returns(keys))).column
    played = Counter()
    for key, share in zip(rounds[-1].places, rounds[-1].probabilities, strict=True):
        played[key] += share
    np.testing.assert_allclose([played[key] for key in keys], mixture, atol=1e-6)


def test_games_beside_training_are_of_the_policies_that_are_given():
    """Nearly always rock, against nearly always paper, from either side."""
    built = runnel.build(SMALL, GAME, "fused", envs=ENVS, opponents=PSRO)
    ((group, pool),) = pools_in(built.graph).items()
    state = Loop(built.graph).init_state(jax.numpy.uint32(3), "player")

    def always(action):
        bias = 9.0 * jax.nn.one_hot(action, 3)
        return jax.tree.map(lambda x: bias if x.shape == (3,) else x, state.params)

    games = PoolGames(built, group, pool, seed=3)
    assert games.play("a", always(0), "b", always(1)) == ("a", "b", 0, 0, 20, -20, "")
    assert games.play("b", always(1), "a", always(0)) == ("b", "a", 20, 0, 0, 20, "")
    assert games.play("b", always(1), "c", always(1)) == ("b", "c", 0, 20, 0, 0, "")


def test_psro_makes_the_same_decisions_when_it_is_resumed(psro_run, tmp_path):
    play(tmp_path / "run", opponents=PSRO, iterations=2)
    last = runnel.resume(tmp_path / "run", steps=5 * ITERATION, quiet=True)
    assert read_matches(last.run_dir) == read_matches(psro_run.run_dir)


def test_games_that_fail_are_reported_and_the_run_continues(monkeypatch, tmp_path):
    """An environment that raises, or ends the process, costs its results and not the run."""
    real, problems = PoolGames.play, [OSError("no such device"), SystemExit(3)]

    def play_or_fail(self, *args):
        if problems:
            raise problems.pop()
        return real(self, *args)

    monkeypatch.setattr(PoolGames, "play", play_or_fail)
    run = play(tmp_path / "run", opponents=PSRO, iterations=3)
    assert run.result["status"] == "finished"
    lost = [event for event in read_events(run.run_dir) if event["event"] == "results_lost"]
    assert ["SystemExit: 3" in lost[0]["reason"], "OSError: no such device" in lost[1]["reason"]] == [True, True]
    payoffs = payoffs_of(read_matches(run.run_dir))
    assert payoffs.games("player:3", "player:2") == PSRO.games  # of the last decision, whose games did not fail


def trajectory_bytes(plan) -> dict[str, int]:
    """By group: of a trajectory that actors send in an iteration."""
    return {cut.group: cut.bytes_per_iteration for cut in plan.cuts if cut.channel == "unroll"}


@pytest.mark.parametrize("distribution", ["coarse", "async"])
def test_of_an_opponents_games_only_results_are_sent(distribution):
    built = runnel.build(SMALL, "openspiel:kuhn_poker", distribution, envs=ENVS, opponents=MATCHMAKER)
    # By step: the place, its serial and the reward, 4 bytes each, and two flags. By column: a sum, version and index.
    assert trajectory_bytes(built.plan)["opponent"] == ITERATION * 14 + ENVS * 12
    streams = {s.group: s for s in derive_channels(built.plan, built.graph, True).streams if s.kind == "unroll"}
    sent = {group: arrays_bytes(stream.schema) / stream.schema[0].shape[1] for group, stream in streams.items()}
    assert sent["opponent"] < sent["player"] / 4


@pytest.mark.parametrize("distribution", ["coarse", "async"])
def test_of_a_function_nothing_is_sent_but_ends_of_episodes(distribution):
    hunted, _ = resolved({"hunter": IMPALA(unroll=8), "runners": "toys:flee"}, "toys:Tag", None)
    built = runnel.build(hunted, "toys:Tag", distribution, envs=ENVS)
    groups = {s.group: s for s in derive_channels(built.plan, built.graph, False).streams if s.kind == "unroll"}
    assert [field.dtype for field in groups["runners"].schema] == ["<f4", "<i4"]  # returns and lengths
    assert trajectory_bytes(built.plan)["runners"] == 2 * ENVS * 8  # versions and indices, which need no message


@contextmanager
def compilations():
    """A list that gets longer with every program that is compiled in this process."""
    found = []

    def heard(event, duration, **_):
        if event.endswith("/backend_compile_duration"):
            found.append(duration)

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)


@pytest.mark.parametrize("distribution", ["fused", "inline"])
def test_more_stored_policies_compile_nothing(distribution, tmp_path):
    """Three places; every iteration stores a policy, and from the fourth on the places are drawn among more."""
    counted = []
    with compilations() as compiled:
        run = play(
            tmp_path / "run", distribution=distribution, iterations=16, callback_every_s=0.0,
            opponents=UniformPast(every=ITERATION, places=3, latest_share=0.2),
            on_update=lambda progress: counted.append(len(compiled)),
        )  # fmt: skip
    rounds = read_matches(run.run_dir)
    assert [len(made.pool) for made in rounds] == [1, *range(2, 18)]
    assert len({made.places for made in rounds}) > 8
    assert len(counted) == 16
    assert compiled
    assert counted[4:] == [counted[4]] * 12


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["coarse", "decoupled"])
def test_workers_compile_nothing_new_for_more_stored_policies(distribution, tmp_path, monkeypatch):
    """Workers begin again from what they saved at a decision; their programs are in the compilation cache."""
    cache = tmp_path / "cache"
    for name, value in (("DIR", cache), ("MIN_COMPILE_TIME_SECS", 0), ("MIN_ENTRY_SIZE_BYTES", -1)):
        prefix = "JAX_COMPILATION_CACHE_" if name == "DIR" else "JAX_PERSISTENT_CACHE_"
        monkeypatch.setenv(prefix + name, str(value))
    found = []
    for iterations in (3, 6):
        play(
            tmp_path / str(iterations), IMPALA(unroll=8) if distribution == "decoupled" else SMALL,
            distribution=distribution, iterations=iterations, opponents=UniformPast(every=ITERATION, places=2),
        )  # fmt: skip
        found.append({path.name for path in cache.iterdir() if path.name.endswith("-cache")})
    assert found[0]
    assert found[1] == found[0]


@pytest.mark.parametrize(
    ("algorithm", "game", "distribution"),
    [
        (SMALL, GAME, "fused"),
        (SMALL, "openspiel:kuhn_poker", "inline"),
        pytest.param(SMALL, "pettingzoo:classic.tictactoe_v3", "inline", marks=pytest.mark.slow),
        pytest.param(GRU, "pgx:kuhn_poker", "fused", marks=pytest.mark.slow),
        pytest.param(SMALL, "openspiel:kuhn_poker", "coarse", marks=pytest.mark.slow),
        pytest.param(
            DQN(unroll=8, min_size=64, capacity=256, batch=16, hidden=(16,)), GAME, "inline", marks=pytest.mark.slow
        ),
    ],
)
def test_stopped_and_resumed_equals_never_stopped(algorithm, game, distribution, tmp_path):
    """Also between two decisions, and during one: pool, payoffs and running matches are restored."""
    whole = play(tmp_path / "whole", algorithm, game, distribution, 7)
    play(tmp_path / "parts", algorithm, game, distribution, 3)
    for stop in (4, 7):
        last = runnel.resume(tmp_path / "parts", steps=stop * ITERATION, quiet=True)
    assert read_matches(last.run_dir) == read_matches(whole.run_dir)
    assert everything(last) == everything(whole)


def test_policies_that_left_the_pool_are_there_while_a_checkpoint_needs_them(tmp_path):
    """A run that was killed resumes from a checkpoint whose policies the pool has dropped since."""
    small = UniformPast(every=ITERATION, pool_size=2, places=3)
    whole = play(tmp_path / "whole", opponents=small, iterations=9)
    play(tmp_path / "killed", opponents=small, iterations=4)
    kept = shutil.copytree(tmp_path / "killed" / "checkpoints", tmp_path / "checkpoints")
    runnel.resume(tmp_path / "killed", steps=9 * ITERATION, quiet=True)
    shutil.rmtree(tmp_path / "killed" / "checkpoints")  # as if the last one had never been written
    shutil.copytree(kept, tmp_path / "killed" / "checkpoints")
    (tmp_path / "killed" / "result.json").unlink()
    last = runnel.resume(tmp_path / "killed", steps=9 * ITERATION, quiet=True)
    assert "opponent_lost" not in (tmp_path / "killed" / "events.jsonl").read_text()
    assert read_matches(last.run_dir) == read_matches(whole.run_dir)
    assert everything(last) == everything(whole)


def test_a_decision_at_the_step_of_a_checkpoint_of_before_it_is_made_again(whole_run, tmp_path, monkeypatch):
    """Workers may reach a decision while they pause for a checkpoint; then a run is killed."""
    due = Opponents.due
    with monkeypatch.context() as patch:
        patch.setattr(Opponents, "due", lambda self, env_steps: env_steps < 4 * ITERATION and due(self, env_steps))
        play(tmp_path / "run", iterations=4)
    assert len(read_matches(tmp_path / "run")) == 2
    lines = (whole_run.run_dir / "matches.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "matches.jsonl").write_text("".join(lines[:3]))
    last = runnel.resume(tmp_path / "run", steps=8 * ITERATION, quiet=True)
    assert "results_lost" not in (tmp_path / "run" / "events.jsonl").read_text()
    assert read_matches(last.run_dir) == read_matches(whole_run.run_dir)
    assert everything(last) == everything(whole_run)


def test_a_lost_line_costs_results_and_is_reported(played):
    lines = (played / "matches.jsonl").read_text().splitlines(keepends=True)
    (played / "matches.jsonl").write_text("".join(lines[:-1]))
    run = runnel.resume(played, steps=12 * ITERATION, quiet=True)
    assert "results_lost" in (played / "events.jsonl").read_text()
    assert read_matches(run.run_dir)[len(lines) - 1].results == ()


def test_what_a_killed_start_has_left_is_not_of_the_next_run(played, whole_run, tmp_path):
    left = tmp_path / "left"
    left.mkdir()
    for name in ("matches.jsonl", "policies"):
        shutil.move(played / name, left / name)
    again = play(left)
    assert read_matches(again.run_dir) == read_matches(whole_run.run_dir)
    assert everything(again) == everything(whole_run)


def test_a_learner_begins_with_stored_parameters(whole_run, tmp_path):
    run = play(tmp_path / "run", iterations=1, init_from=str(whole_run.run_dir))
    (first, *_) = [each for each in runnel.policies(run.run_dir).query("player") if each.version == 0]
    stored = {each.version: each for each in runnel.policies(whole_run.run_dir).query("player")}[8]
    names = [name for name in stored.arrays() if name.startswith("params") and "kernel" in name]
    assert names
    for name in names:
        np.testing.assert_array_equal(first.arrays()[name], stored.arrays()[name])


KILLED = {
    "coarse": (["--actors", "2"], ["actor-0", "actor-1", "learner"]),
    "fine": (["--actors", "2"], ["environment-0", "environment-1", "learner"]),
    "environments": (["--actors", "2"], ["environment-0", "environment-1", "learner"]),
    "replicated": (["--learners", "2"], ["replica-0", "replica-1"]),
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("distribution", KILLED)
def test_killed_workers_change_nothing(distribution, tmp_path):
    flags, workers = KILLED[distribution]
    command = ["ppo", "openspiel:kuhn_poker", "--distribution", distribution, *flags, "--opponents", "pfsp"]
    command += ["--set", "opponents.every=8192", "opponents.places=3"]
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    wanted = undisturbed(command, calm, 60_000)
    chaos = Chaos(train(command, killed, 60_000), killed, workers, seed=1, most=4)
    assert chaos.run() == 0, chaos.output()
    assert chaos.done
    assert_same(final_state(killed), wanted)
    assert read_matches(killed) == read_matches(calm)
    payoffs = payoffs_of(read_matches(killed))
    assert payoffs == payoffs_of(read_matches(calm))
    assert sum(result.games for result in payoffs.results) > 1000


def test_a_policy_that_is_gone_is_reported_and_not_played_any_more(played):
    for version in (0, 2):
        shutil.rmtree(played / "policies" / "group-player" / f"{version:012d}")
    run = runnel.resume(played, steps=14 * ITERATION, quiet=True)
    assert run.result["status"] == "finished"
    events = [json.loads(line) for line in (played / "events.jsonl").read_text().splitlines()]
    lost = [event for event in events if event["event"] == "opponent_lost"]
    assert lost
    assert all(event["reason"].startswith(("player:0:", "player:2:")) for event in lost)


@pytest.mark.parametrize("line", ["", "{}", "[1]", '{"group": 1}', "not json", '{"group": "opponent", "round": -1}'])
def test_lines_that_no_run_writes_are_left_out(line, played):
    known = read_matches(played)
    with (played / "matches.jsonl").open("a") as file:
        file.write(line + "\n")
    assert read_matches(played) == known


@pytest.mark.slow
def test_opponents_on_two_machines_are_those_on_one(tmp_path):
    """Policies of the pool reach actors whose machine has no access to the store."""
    given = {"distribution": "coarse", "iterations": 6, "actors": 2, "opponents": MATCHMAKER}
    alone = play(tmp_path / "alone", **given)
    machines = LocalHostLauncher([Machine(2, ("cpu:0",), name) for name in "ab"])
    both = play(tmp_path / "both", launcher=machines, **given)
    assert {worker["host"] for worker in both.result["workers"]} == {"a", "b"}
    assert everything(both) == everything(alone)
    assert [made.places for made in read_matches(both.run_dir)] == [made.places for made in read_matches(alone.run_dir)]
    assert len(read_matches(both.run_dir)[-1].pool) > 2


def test_stored_policies_of_other_runs_can_be_the_opponents(whole_run, tmp_path):
    key = f"{whole_run.run_dir}@latest"
    run = play(tmp_path / "run", opponents=Fixed(keys=(key,), places=2, every=4 * ITERATION))
    rounds = read_matches(run.run_dir)
    assert {place for made in rounds for place in made.places} == {key}
    assert {result.player for made in rounds for result in made.results} == {key}
    stored, own = whole_run.states["player"].params, run.states["opponent"].params.places
    for mine, theirs in zip(jax.tree.leaves(own), jax.tree.leaves(stored), strict=True):
        np.testing.assert_array_equal(np.asarray(mine)[1], np.asarray(theirs))


def test_an_evaluation_plays_against_the_pool_and_reports_the_learners_return(whole_run, tmp_path):
    found = evaluate(whole_run.run_dir, episodes=8)
    assert set(found["group_returns"]) == {"player", "opponent"}
    assert found["mean_return"] == pytest.approx(found["group_returns"]["player"])
    run = play(tmp_path / "run", eval_every=4 * ITERATION, eval_episodes=4)
    best = run.result["best"]
    assert best["score"] == pytest.approx(best["mean_return"])


def test_a_loaded_policy_is_the_learners(whole_run):
    policy = runnel.load(whole_run.run_dir)
    assert policy.act(np.ones(policy.spec.observation.shape, np.float32)).shape == ()


def test_the_learner_is_exported_and_the_pool_is_not(whole_run, tmp_path):
    assert runnel.export(whole_run.run_dir, tmp_path / "policy", "stablehlo")
    with pytest.raises(UserError, match="found an opponent pool or a function, expected a policy that has learnt"):
        runnel.export(whole_run.run_dir, tmp_path / "pool", "stablehlo", group="opponent")


def test_a_past_policy_is_evaluated_against_the_pool_of_now(whole_run):
    assert evaluate(f"{whole_run.run_dir}@2", episodes=2)["version"] == 2


@pytest.mark.parametrize(
    ("train_several", "more"),
    [
        (runnel.sweep, {"over": {"learning_rate": [1e-3, 1e-2]}, "sampler": "grid"}),
        (runnel.train_population, {"rule": runnel.PBT(every=64), "members": 2}),
    ],
)
def test_several_runs_that_would_share_opponents_are_refused(train_several, more, tmp_path):
    given = {"opponents": Latest(), "run_dir": tmp_path / "all", "steps": 64, "quiet": True}
    with pytest.raises(UserError, match="opponents"):
        train_several("ppo", GAME, **more, **given)
    assert not (tmp_path / "all").exists()


@pytest.mark.slow
def test_members_have_pools_of_their_own(tmp_path):
    found = runnel.train_members(
        SMALL, GAME, "fused", seeds=2, envs=ENVS, steps=4 * ITERATION, run_dir=tmp_path / "all", quiet=True,
        opponents=MATCHMAKER,
    )  # fmt: skip
    alone = play(tmp_path / "alone", seed=1, iterations=4)
    assert read_matches(found.members[1]) == read_matches(alone.run_dir)
    assert read_matches(found.members[0]) != read_matches(alone.run_dir)


@dataclass(frozen=True)
class Nobody(Matchmaker):
    def fill(self, rng, round, payoffs, pool):
        return Matches((), ())


@pytest.mark.parametrize(
    ("algorithm", "game", "opponents", "expected"),
    [
        (SMALL, GAME, Nobody(), "found no snapshot, expected 4 keys of the pool"),
        (SMALL, GAME, Fixed(keys=("player:77",)), "found no policy 'player:77' in the pool"),
        (SMALL, GAME, Fixed(keys=("/nowhere@best",)), "there is no directory /nowhere"),
        (SMALL, "gymnax:CartPole-v1", Latest(), "has 1 player, expected more than seats that learn"),
        ({"player": SMALL}, GAME, Latest(), "found an algorithm for each group, expected one"),
        (SMALL, GAME, Nobody, "found no snapshot, expected 4 keys of the pool"),
        (SMALL, GAME, 3, "opponents=3: found"),
        (SMALL, GAME, "pfps", "there is no matchmaker 'pfps'.*did you mean 'pfsp'"),
    ],
)
def test_a_mistake_is_said_before_anything_is_trained(algorithm, game, opponents, expected, tmp_path):
    with pytest.raises(UserError, match=expected):
        play(tmp_path / "run", algorithm, game, opponents=opponents)
    assert not (tmp_path / "run").exists()


WIDER = dataclasses.replace(SMALL, hidden=(24,))


@pytest.mark.parametrize(
    ("algorithm", "found"),
    [
        (WIDER, r"params/\S+ is float32\[.*16.*\], expected float32\[.*24.*\]"),
        (DQN(unroll=8, min_size=64, capacity=256, batch=16), "has no params/"),
    ],
    ids=["wider", "of another algorithm"],
)
def test_policies_of_other_architectures_are_refused_in_a_pool(algorithm, found, whole_run, tmp_path):
    key = f"{whole_run.run_dir}@latest"
    with pytest.raises(UserError, match=found) as caught:
        play(tmp_path / "run", algorithm, opponents=Fixed(keys=(key,)))
    assert f"opponent={key} in the place of an algorithm" in str(caught.value)
    assert "env.learning_seats=1" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("distribution", ["fused", pytest.param("coarse", marks=pytest.mark.slow)])
def test_policies_of_other_architectures_play_as_a_group_of_their_own(distribution, whole_run, tmp_path):
    """As the error says; the plan shows the group."""
    algorithms = {"player": WIDER, "opponent": f"{whole_run.run_dir}@latest"}
    run = play(tmp_path / "run", algorithms, GAME, distribution, 2, opponents=None, env_settings={"learning_seats": 1})
    assert {"player", "opponent"} == {node.group for node in run.built.graph.of_kind("act")}
    stored, plays = whole_run.states["player"].params, run.states["opponent"].params.places
    for mine, theirs in zip(jax.tree.leaves(plays), jax.tree.leaves(stored), strict=True):
        np.testing.assert_array_equal(np.asarray(mine)[0], np.asarray(theirs))
    assert not any(place.startswith("player:") for made in read_matches(run.run_dir) for place in made.places)


@pytest.mark.slow
def test_uniform_past_opponents_are_of_many_versions(tmp_path):
    run = play(tmp_path / "run", opponents=UniformPast(every=ITERATION, places=6, latest_share=0.2), iterations=10)
    assert len(set(read_matches(run.run_dir)[-1].places)) == 6
