"""The EnvPool adapter: against Gymnasium, and where EnvPool is unlike it."""

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from playing import empty, play

import runnel
from runnel.algorithms.ppo import PPO
from runnel.envs.envpool import EnvPoolEnvironment
from runnel.errors import UserError

CARTPOLE = EnvPoolEnvironment("CartPole-v1")


class Table:
    """A vector and where it writes."""

    def __init__(self, environment=CARTPOLE, indices=range(3)):
        self.vector = environment.open(indices, 7)
        self.out = empty(environment.spec, len(indices))
        self.vector.reset(self.out.observation)

    def step(self, *actions):
        self.vector.step({"agent": np.array(actions, np.int32)}, self.out)
        return self.out

    @property
    def shown(self):
        return self.out.observation["agent"].copy()


@pytest.mark.parametrize("limit", [500, 12])
def test_cartpole_is_gymnasiums_step_by_step(limit):
    """No step is lost between episodes, the last observations are the true ones, and ends are of the right kind."""
    environment = EnvPoolEnvironment("CartPole-v1", max_episode_steps=limit)
    assert environment.spec.max_episode_steps == limit
    table = Table(environment, [5])
    plain = gymnasium.make("CartPole-v1", max_episode_steps=limit)
    plain.reset(seed=0)
    rng, ends = np.random.default_rng(0), []

    def stand():  # EnvPool draws its own beginnings
        plain.reset()
        plain.unwrapped.state = table.shown[0].astype(np.float64)

    stand()
    for _ in range(150):
        action = int(rng.integers(2))
        observation, reward, terminated, truncated, _ = plain.step(action)
        out = table.step(action)
        assert out.reward["agent"][0] == reward
        assert (out.terminated[0] | out.truncated[0]) == (terminated or truncated)
        if terminated or truncated:
            assert out.truncated[0] == truncated
            ends.append(truncated)
            np.testing.assert_allclose(out.last_observation["agent"][0], observation, atol=1e-4)
            assert (np.abs(table.shown) <= 0.05).all()  # where CartPole begins
            stand()
        else:
            np.testing.assert_allclose(table.shown[0], observation, atol=1e-4)
    assert len(ends) > 3
    assert any(ends) == (limit == 12)
    assert table.vector.episode_numbers().tolist() == [len(ends)]


def test_actions_are_clipped_at_the_door():
    environment = EnvPoolEnvironment("Pendulum-v1")
    vectors = [environment.open([0], 0) for _ in range(2)]
    seen = []
    for vector, force in zip(vectors, (2.0, 50.0), strict=True):
        out = empty(environment.spec, 1)
        vector.reset(out.observation)
        vector.step({"agent": np.full((1, 1), force, np.float32)}, out)
        seen.append((out.observation["agent"].copy(), out.reward["agent"].copy()))
    np.testing.assert_array_equal(seen[0][0], seen[1][0])
    np.testing.assert_array_equal(seen[0][1], seen[1][1])


class Sick:
    """A pool of which some answers hold a NaN."""

    def __init__(self, pool):
        self.pool, self.where = pool, {}

    def step(self, action, rows):
        observation, reward, *rest = self.pool.step(action, rows)
        if (row := self.where.pop("step", None)) is not None:
            observation = observation.copy()
            observation[rows == row] = np.nan
        for name, value in (("reward", np.nan), ("infinity", -np.inf)):
            if (row := self.where.pop(name, None)) is not None:
                reward = np.where(rows == row, value, reward)
        return (observation, reward, *rest)

    def reset(self, rows):
        observation, info = self.pool.reset(rows)
        if (row := self.where.pop("reset", None)) is not None:
            observation = np.where((rows == row)[:, None], np.nan, observation)
        return observation, info


@pytest.mark.parametrize("call", ["step", "reward", "infinity"])
def test_nan_ends_an_episode_at_the_last_good_step(call):
    table = Table()
    table.vector.pool = sick = Sick(table.vector.pool)
    before = table.shown
    sick.where = {call: 1, "reset": 1}
    out = table.step(0, 0, 0)
    assert out.truncated.tolist() == [False, True, False]
    assert out.reward["agent"].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(out.last_observation["agent"][1], before[1])
    assert np.isfinite(table.shown).all()
    assert table.vector.episode_numbers().tolist() == [0, 2, 0]  # the first that should have followed did not begin
    said = [(failure.row, failure.episode, failure.what) for failure in table.vector.failures()]
    reward = {
        "reward": "step returned NaN as its reward",
        "infinity": "step returned -inf as its reward, expected a finite number",
    }
    what = {"step": "step returned NaN in its observation", **reward}[call]
    assert said == [(1, 0, what), (1, 1, "reset returned NaN in its observation")]


def test_a_condemned_episode_is_not_gone_on_with():
    table = Table()
    before = table.shown
    table.vector.condemn(2, 0, "it is said to be deadly")
    out = table.step(1, 1, 1)
    assert out.truncated.tolist() == [False, False, True]
    np.testing.assert_array_equal(out.last_observation["agent"][2], before[2])
    assert [failure.what for failure in table.vector.failures()] == ["it is said to be deadly"]
    assert not table.step(0, 0, 0).truncated.any()


def test_a_watched_vector_reports_the_row_and_plays_the_same():
    turns, runs = [], []
    for watched in (False, True):
        table = Table()
        if watched:
            table.vector.watch = turns.append
        runs.append([(table.step(1, 0, 1).observation["agent"].copy(), table.out.terminated.copy()) for _ in range(30)])
    assert turns[:4] == [0, 1, 2, -1]
    for (a, ends), (b, same_ends) in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(ends, same_ends)


@pytest.mark.slow
@pytest.mark.parametrize("lives", [False, True])
def test_the_score_of_an_atari_game_is_that_of_the_whole_game_and_not_clipped(lives):
    settings = {"noop_max": 1, "episodic_life": lives}
    tables = [
        Table(EnvPoolEnvironment("SpaceInvaders-v5", reward_clip=clip, **settings), [0]) for clip in (True, False)
    ]
    rng, rewards, lengths, ends = np.random.default_rng(0), np.zeros(2), 0, 0
    while tables[0].vector.episode_numbers()[0] == 0:
        action = int(rng.integers(6))
        outs = [table.step(action) for table in tables]
        rewards += [out.reward["agent"][0] for out in outs]
        lengths, ends = lengths + 1, ends + int(outs[0].terminated[0])
    assert rewards[0] < rewards[1]
    assert ends == (3 if lives else 1)
    (reported,) = tables[0].vector.episode_metrics()
    assert reported.values == {"return": rewards[1], "length": lengths}
    assert [len(table.vector.episode_metrics()) for table in tables] == [0, int(lives)]


@pytest.mark.parametrize(
    ("name", "settings", "reports"),
    [
        ("CartPole-v1", {}, False), ("Pong-v5", {}, False),
        ("Pong-v5", {"reward_clip": True}, True), ("Pong-v5", {"episodic_life": True}, True),
    ],
)  # fmt: skip
def test_which_environments_have_a_score_of_their_own(name, settings, reports):
    assert EnvPoolEnvironment(name, **settings).reports_return == reports


def test_a_run_that_is_taken_up_counts_the_episodes_it_cut(tmp_path):
    algorithm = PPO(unroll=16, minibatches=2, epochs=1, hidden=(8,))
    run_dir = tmp_path / "run"
    runnel.train(algorithm, "envpool:CartPole-v1", "inline", envs=4, steps=128, run_dir=run_dir, quiet=True)
    run = runnel.resume(run_dir, steps=192, quiet=True)
    assert run.result["env_steps"] == 192
    assert run.result["cut_episodes"] == 4


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("CartPol-v1", {}, "no EnvPool environment is called 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ("CartPole-v1", {"gravty": 1}, "envpool:CartPole-v1 has no setting 'gravty'"),
    ],
)
def test_mistakes_are_reported(name, settings, words):
    with pytest.raises(UserError, match=words):
        EnvPoolEnvironment(name, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Pong-v5", "HalfCheetah-v4", "FrozenLake-v1"])
def test_other_families_play_too(name):
    assert all(np.isfinite(step.reward["agent"]).all() for step in play(EnvPoolEnvironment(name), 50).steps)


def test_workers_never_import_jax():
    program = """
import sys
from runnel.envs import make
vector = make("envpool:CartPole-v1").open(range(2), 0)
vector.close()
assert "jax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
