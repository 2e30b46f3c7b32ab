"""The Atari adapter: against ale-py's own vector, and what it adds to it."""

import subprocess
import sys

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from playing import empty, play, random_actions, same

from runnel.environment import Episode, episode_seed
from runnel.envs.ale import AleEnvironment, AtariGame
from runnel.errors import UserError
from runnel.types import Box, Discrete

PONG = AleEnvironment("Pong-v5")


class Table:
    """A vector and where it writes."""

    def __init__(self, environment, indices=(0,), seed=7, **arguments):
        self.vector = environment.open(indices, seed, **arguments)
        self.out = empty(environment.spec, len(indices))
        self.vector.reset(self.out.observation)

    def step(self, *actions):
        self.vector.step({"agent": np.array(actions, np.int32)}, self.out)
        return self.out

    @property
    def shown(self):
        return self.out.observation["agent"].copy()


def no_ops(seed, index, episode):
    """How many steps an episode does nothing at first."""
    return np.random.default_rng(episode_seed(seed, index, episode)).integers(30 // 4 + 1)


def test_the_spec_is_the_usual_one():
    spec = PONG.spec.groups["agent"]
    assert isinstance(spec.observation, Box)
    assert (spec.observation.shape, spec.observation.dtype) == ((4, 84, 84), np.uint8)
    assert spec.action == Discrete(6)
    assert PONG.spec.max_episode_steps == 27_000


def test_games_play_as_the_bare_vector_does():
    indices, seed = (3, 5), 7
    table = Table(PONG, indices, seed)
    waits = [no_ops(seed, index, 0) for index in indices]
    assert len(set(waits)) == 2  # or this would not show that they wait one by one
    for row, wait in enumerate(waits):
        bare = AtariVectorEnv("pong", 1, noop_max=0, num_threads=1)
        expected, _ = bare.reset()
        for _ in range(wait):
            expected, *_ = bare.step(np.zeros(1, np.int32))
        alone = Table(PONG, [indices[row]], seed)
        rng = np.random.default_rng(row)
        for _ in range(30):
            np.testing.assert_array_equal(alone.shown, expected)
            action = rng.integers(0, 6, 1).astype(np.int32)
            expected, reward, *_ = bare.step(action)
            assert alone.step(*action).reward["agent"][0] == reward[0]
        bare.close()
    first = [play(PONG, 0, indices=[index], seed=seed).first["agent"][0] for index in indices]
    np.testing.assert_array_equal(table.shown, first)


def test_lost_points_are_rewards_and_lost_games_are_terminations():
    environment = AleEnvironment("Pong-v5", no_ops=0)
    table = Table(environment)
    begin, total = table.shown, 0.0
    for _ in range(2000):
        before = table.shown
        out = table.step(0)
        total += out.reward["agent"][0]
        if out.terminated[0]:
            break
    assert total == -21
    assert not out.truncated[0]
    assert (out.last_observation["agent"][0, 1] == before[0, 2]).all()  # the true last one: a step after the one before
    np.testing.assert_array_equal(out.observation["agent"], begin)  # without chance every game begins alike
    assert table.vector.episode_numbers().tolist() == [1]


def test_episodes_are_cut_at_the_limit_of_frames():
    environment = AleEnvironment("Pong-v5", max_frames=40)
    assert environment.spec.max_episode_steps == 10
    steps = play(environment, 21, indices=range(2)).steps
    assert [bool(step.truncated.all()) for step in steps] == [step % 10 == 0 for step in range(1, 22)]
    assert not any(step.terminated.any() for step in steps)


def test_the_loss_of_a_life_ends_an_episode_where_that_is_set():
    lengths = {}
    for life_loss in (False, True):
        table = Table(AleEnvironment("Breakout-v5", life_loss=life_loss, no_ops=0))
        ended = [bool(table.step(0).terminated[0]) for _ in range(40)]
        lengths[life_loss] = ended.index(True) + 1 if any(ended) else None
    assert lengths == {False: None, True: 24}  # the ball is served at once, and nobody is there


class Games:
    """Random play of one game until some games are over, and what the emulator itself says to the same actions."""

    def __init__(self, name, games, **settings):
        environment = AleEnvironment(name, no_ops=0, **settings)
        table = Table(environment)
        self.vector, rng = table.vector, np.random.default_rng(1)
        self.rewards, self.ends, self.actions, self.numbers = [], [], [], []
        while table.vector.episode_numbers()[0] < games:
            self.actions.append(int(rng.integers(environment.spec.groups["agent"].action.n)))
            out = table.step(self.actions[-1])
            self.rewards.append(float(out.reward["agent"][0]))
            self.ends.append(bool(out.terminated[0] | out.truncated[0]))
            self.numbers.append(int(table.vector.episode_numbers()[0]))
        self.reported = table.vector.episode_metrics()


def scores(rom, actions, presses_fire):
    """Scores and lengths of whole games, of an emulator without clipping or lives that is given the same actions."""
    bare = AtariVectorEnv(rom, 1, noop_max=0, num_threads=1, reward_clipping=False)
    _, info = bare.reset()
    found, score, length, lives = [], 0.0, 0, info["lives"][0]
    for action in actions:
        _, reward, over, _, info = bare.step(np.array([action], np.int32))
        score, length = score + float(reward[0]), length + 1
        if presses_fire and 0 < info["lives"][0] < lives and not over[0]:
            _, reward, over, _, info = bare.step(np.ones(1, np.int32))
            score += float(reward[0])
        lives = info["lives"][0]
        if over[0]:
            found.append({"return": score, "length": length})
            _, info = bare.reset()
            score, length, lives = 0.0, 0, info["lives"][0]
    bare.close()
    return found


@pytest.mark.parametrize(("rom", "name"), [("breakout", "Breakout-v5"), ("space_invaders", "SpaceInvaders-v5")])
@pytest.mark.parametrize("life_loss", [False, True])
def test_the_score_that_is_reported_is_that_of_the_whole_game_and_not_clipped(rom, name, life_loss):
    played = Games(name, games=2, life_loss=life_loss)
    assert [each.episode for each in played.reported] == [0, 1]
    assert [each.values for each in played.reported] == scores(rom, played.actions, presses_fire=life_loss)
    assert set(played.rewards) <= {-1.0, 0.0, 1.0}
    assert sum(played.ends) == (2 if not life_loss else sum(lives_of(rom)) * 2)


def lives_of(rom):
    bare = AtariVectorEnv(rom, 1, noop_max=0, num_threads=1)
    _, info = bare.reset()
    bare.close()
    return info["lives"].tolist()


@pytest.mark.parametrize(
    ("settings", "differs"),
    [({}, True), ({"reward_clip": False}, False), ({"reward_clip": False, "life_loss": True}, True)],
)
def test_a_score_is_reported_where_learning_sees_another(settings, differs):
    environment = AleEnvironment("Breakout-v5", max_frames=20, **settings)
    assert environment.reports_return == differs
    table = Table(environment)
    for _ in range(5):
        table.step(0)
    assert bool(table.vector.episode_metrics()) == differs  # of a game that is cut at its limit, too


def test_a_game_goes_on_after_the_loss_of_a_life_and_is_replayed_from_its_beginning():
    environment = AleEnvironment("Breakout-v5", life_loss=True, sticky=0.25)
    table, rng = Table(environment, (2,)), np.random.default_rng(0)
    actions, firsts = [], []
    for _ in range(90):
        actions.append(int(rng.integers(4)))
        out = table.step(actions[-1])
        firsts.append(bool(table.vector.lives.first[0]))
        assert firsts[-1] == bool(out.terminated[0])
        if firsts[-1]:  # what comes next is not the beginning of a game
            assert not table.vector.lives.began[0]
            assert (out.last_observation["agent"] != out.observation["agent"]).any()
    assert table.vector.episode_numbers().tolist() == [0]
    assert 2 <= sum(firsts) < 5
    ended = len(firsts) - firsts[::-1].index(True)  # just after the loss of a life, and later
    for steps in (ended, 90):
        again = Table(environment, (2,))
        cut = again.vector.restore([Episode(0, {"agent": np.array(actions[:steps], np.int32)})], again.out.observation)
        assert not cut.any()
        assert again.vector.lives.first.tolist() == [firsts[steps - 1]]
        for action in actions[steps:]:
            again.step(action)
        np.testing.assert_array_equal(again.shown, table.shown)
    assert not table.vector.episode_metrics()


def test_rewards_are_clipped_unless_that_is_set_otherwise():
    def rewards(clip):
        steps = play(AleEnvironment("SpaceInvaders-v5", reward_clip=clip), 150, indices=[0]).steps
        return np.concatenate([step.reward["agent"] for step in steps])

    clipped, whole = rewards(True), rewards(False)
    assert set(np.unique(clipped)) == {0.0, 1.0}
    assert whole.max() > 1
    np.testing.assert_array_equal(clipped, np.sign(whole))


def test_sticky_actions_are_part_of_what_is_played_again():
    sticky = AleEnvironment("Pong-v5", sticky=0.5)
    plain, stuck = play(PONG, 40, indices=[1]), play(sticky, 40, indices=[1])
    assert same(plain.first, stuck.first)
    assert not same(plain.steps[-1].observation, stuck.steps[-1].observation)
    again = play(sticky, 0, indices=[1], restore=stuck.episodes)
    assert same(again.first, stuck.steps[-1].observation)


def test_a_sticky_step_repeats_the_action_before_it():
    """So where the same action is chosen again and again, only the first steps can differ: they do nothing."""
    up, steps = 2, 30

    def observations(environment, actions):
        vector, out = environment.open([1], 0), empty(environment.spec, 1)
        vector.reset(out.observation)
        seen = []
        for action in actions:
            vector.step({"agent": np.array([action], np.int32)}, out)
            seen.append(out.observation["agent"].copy())
        vector.close()
        return np.stack(seen)

    stuck = observations(AleEnvironment("Pong-v5", sticky=0.5, no_ops=0), [up] * steps)
    still = AleEnvironment("Pong-v5", no_ops=0)
    plain = [observations(still, [0] * first + [up] * (steps - first)) for first in range(6)]
    assert sum(np.array_equal(stuck, each) for each in plain) == 1


def test_an_action_that_the_game_does_not_know_is_a_failure_and_no_stillness():
    table = Table(PONG, (0, 1))
    before = table.shown
    out = table.step(2, 6)
    assert out.truncated.tolist() == [False, True]
    np.testing.assert_array_equal(out.last_observation["agent"][1], before[1])
    (failure,) = table.vector.failures()
    assert (failure.row, failure.what) == (
        1,
        "step raised ValueError: an action that the game does not have; expected one from 0 to 5",
    )
    assert not table.step(2, 2).truncated.any()


def test_all_of_the_joystick():
    assert AleEnvironment("Pong-v5", full_actions=True).spec.groups["agent"].action == Discrete(18)


def test_pictures_are_in_colour_and_of_what_is_played():
    table = Table(PONG, (0, 1), render=True)
    for _ in range(3):
        table.step(2, 3)
    pictures = [table.vector.render(row) for row in range(2)]
    assert {(picture.shape, picture.dtype) for picture in pictures} == {((210, 160, 3), np.dtype(np.uint8))}
    assert (pictures[0][..., 0] != pictures[0][..., 1]).any()
    assert (pictures[0] != pictures[1]).any()
    grey = pictures[0].mean(-1).reshape(42, 5, 40, 4).mean((1, 3))  # as coarse as the newest of the four, or about
    seen = table.shown[0, -1].reshape(42, 2, 42, 2).mean((1, 3))[:, np.linspace(0, 41, 40).round().astype(int)]
    assert np.corrcoef(grey.ravel(), seen.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("Pongg-v5", {}, "no Atari game is called 'ALE/Pongg-v5'; did you mean 'ALE/Pong-v5'"),
        ("Pong-v4", {}, "no Atari game is called 'ALE/Pong-v4'; did you mean 'ALE/Pong-v5'"),
        ("Pong-v5", {"stiky": 0.1}, "ALE/Pong-v5 has no setting 'stiky'; did you mean 'sticky'"),
        ("Pong-v5", {"sticky": 2}, "setting sticky is 2; expected a number from 0 to 1, like 0.0"),
        ("Pong-v5", {"no_ops": 1.5}, "setting no_ops is 1.5; expected a whole number, like 30"),
        ("Pong-v5", {"fire": 1}, "setting fire is 1; expected true or false, like True"),
    ],
)
def test_mistakes_are_reported(name, settings, words):
    with pytest.raises(UserError, match=words):
        AleEnvironment(name, **settings)


def test_workers_of_atari_games_never_import_jax_or_opencv():
    program = """
import sys
from runnel.envs import make
vector = make("ALE/Pong-v5").open(range(1), 0)
vector.close()
assert not {"jax", "cv2"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Breakout-v5", "SpaceInvaders-v5", "Seaquest-v5", "MsPacman-v5", "Adventure-v5"])
def test_games_play_the_same_whatever_was_played_before(name):
    """Episodes are replayable because a game without randomness of its own follows from its actions."""
    environment = AleEnvironment(name)
    game = environment._make(render=False).unwrapped
    assert isinstance(game, AtariGame)
    rng = np.random.default_rng(0)
    actions = [int(random_actions(environment.spec, 1, rng)["agent"][0]) for _ in range(100)]
    runs = []
    for seed in (3, 4, 3):
        observation, _ = game.reset(seed=seed)
        seen = [observation.copy()]
        for action in actions:
            observation, _, terminated, _, _ = game.step(action)
            seen.append(observation.copy())
            if terminated:
                break
        runs.append(np.stack(seen))
    game.close()
    assert same(runs[0], runs[2])
