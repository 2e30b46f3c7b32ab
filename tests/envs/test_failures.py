"""Environments that fail: the vector recovers, and other environments do not notice."""

import asyncio

import gymnasium
import jax
import numpy as np
import own_envs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_envs import Saboteur
from playing import empty, play, same

import runnel
from runnel.algorithms.ppo import PPO
from runnel.environment import Episode, Failure, episode_seed
from runnel.envs.gymnasium import GymnasiumEnvironment
from runnel.envs.recovery import KEPT, MOST_IN_A_ROW, WINDOW_STEPS, Failures
from runnel.errors import EnvironmentFailed, UserError

SEED = 7
PLAY, END, RAISE = 0, 1, 2
IN_STEP = {
    "raise": "step raised ValueError: bad thing",
    "nan": "step returned NaN in its observation",
    "nan reward": "step returned NaN as its reward",
    "shape": "step returned an observation of shape (1,), its observation_space expects (3,)",
    "words": "step returned an observation of <U1, its observation_space expects float32",
    "tuple": "step returned a tuple of 4, expected (observation, reward, terminated, truncated, info)",
    "nothing": "step returned a NoneType, expected (observation, reward, terminated, truncated, info)",
    "reward": "step returned a ndarray of shape (2,) as its reward, expected a number",
    "flags": "step returned a ndarray of shape (2,) and a bool as terminated and truncated, expected booleans",
    "exit": "step raised SystemExit: 0",
    "inf reward": "step returned -inf as its reward, expected a finite number",
    "huge reward": "step returned 1e+300 as its reward, which is infinite as float32",
    "huger reward": "step returned an int as its reward, which is infinite as float32",
    "complex": "step returned an observation of complex128, its observation_space expects float32",
    "complex reward": "step returned a complex as its reward, expected a number",
}
IN_RESET = {
    "no reset": "reset raised OSError: the door is locked",
    "nan reset": "reset returned NaN in its observation",
    "shape reset": "reset returned an observation of shape (2,), its observation_space expects (3,)",
    "tuple reset": "reset returned a ndarray of shape (3,), expected (observation, info)",
    "exit reset": "reset raised SystemExit: 0",
    "complex reset": "reset returned an observation of complex128, its observation_space expects float32",
}


class Table:
    """A vector of saboteurs and where it writes."""

    def __init__(self, indices=range(4), environment=None):
        self.environment = environment or GymnasiumEnvironment(Saboteur)
        self.vector = self.environment.open(indices, SEED)
        self.out = empty(self.environment.spec, len(indices))

    def reset(self):
        self.vector.reset(self.out.observation)
        return self

    def step(self, *actions):
        self.vector.step({"agent": np.array(actions, np.int32)}, self.out)
        return jax.tree.map(np.copy, self.out)

    @property
    def shown(self):
        return self.out.observation["agent"].copy()


def start(index, episode):
    """The expected first observation of an episode."""
    environment = Saboteur()
    observation, _ = environment.reset(seed=episode_seed(SEED, index, episode))
    return observation.astype(np.float32)


def way(name):
    return Saboteur.ways.index(name)


@pytest.mark.parametrize("name", IN_STEP)
@pytest.mark.parametrize("row", [0, 2, 3])
def test_an_episode_is_truncated_at_the_last_good_step(name, row):
    table = Table().reset()
    table.step(0, 0, 0, 0)
    before, stepped = table.shown, Saboteur.steps
    step = table.step(*[way(name) if r == row else PLAY for r in range(4)])
    assert Saboteur.steps == stepped + 4  # nobody twice
    assert step.reward["agent"][row] == 0
    assert step.truncated.tolist() == [r == row for r in range(4)]
    assert not step.terminated.any()
    np.testing.assert_array_equal(step.last_observation["agent"][row], before[row])
    np.testing.assert_array_equal(step.observation["agent"][row], start(row, 1))
    assert table.vector.episode_numbers().tolist() == [int(r == row) for r in range(4)]
    (failure,) = table.vector.failures()
    assert (failure.row, failure.index, failure.episode, failure.what) == (row, row, 0, IN_STEP[name])
    assert ("in step" in failure.traceback) == (name in ("raise", "exit"))
    assert table.vector.failures() == []
    after = table.step(0, 0, 0, 0)  # and on it plays
    assert not after.truncated.any()
    assert np.isfinite(after.observation["agent"]).all()


@pytest.mark.parametrize("name", IN_RESET)
def test_an_episode_that_cannot_begin_is_left_out(name):
    table = Table().reset()
    step = table.step(PLAY, way(name), PLAY, PLAY)
    # The episode before ended well, and says so.
    assert step.terminated.tolist() == [False, True, False, False]
    assert step.reward["agent"][1] == 1
    assert np.isfinite(step.last_observation["agent"][1]).all()
    assert table.vector.episode_numbers().tolist() == [0, 2, 0, 0]
    np.testing.assert_array_equal(step.observation["agent"][1], start(1, 2))
    (failure,) = table.vector.failures()
    assert (failure.row, failure.episode, failure.what) == (1, 1, IN_RESET[name])


def test_the_one_that_failed_is_closed_and_another_takes_its_place():
    table = Table().reset()
    olds = [id(one.unwrapped) for one in table.vector.environments]
    kept = list(table.vector.environments)  # so that no id is given twice
    Saboteur.closed.clear()
    table.step(0, 0, RAISE, 0)
    news = [id(one.unwrapped) for one in table.vector.environments]
    assert Saboteur.closed == [olds[2]]
    assert [a == b for a, b in zip(olds, news, strict=True)] == [True, True, False, True]
    table.vector.close()  # although none of them can be closed
    assert Saboteur.closed == [olds[2], *news]
    del kept


def test_a_replacement_is_stripped_and_limited_as_the_first_was():
    environment = GymnasiumEnvironment(own_envs.Faulty, {"chance": 1.0})
    vector, out = environment.open([0], 0), empty(environment.spec, 1)
    vector.reset(out.observation)
    first = vector.bare[0]
    vector.step({"agent": np.zeros(1, np.int32)}, out)
    assert vector.bare[0] is not first
    for bare in (first, vector.bare[0]):
        assert type(bare.env).__name__ == "TimeLimit"
        assert type(bare.unwrapped.action_space).__name__ == "_QuickDiscrete"


def test_failures_of_all_and_of_one_alone():
    table = Table().reset()
    before = table.shown
    step = table.step(way("nan"), way("shape"), way("raise"), way("tuple"))
    assert step.truncated.all()
    assert step.reward["agent"].tolist() == [0] * 4
    np.testing.assert_array_equal(step.last_observation["agent"], before)
    alone = Table([5]).reset()
    for name in IN_STEP:  # a wrong shape could be broadcast where there is one row
        alone.step(PLAY)
        alone.step(way(name))
    assert [failure.what for failure in alone.vector.failures()] == list(IN_STEP.values())
    assert alone.vector.episode_numbers().tolist() == [len(IN_STEP)]


@pytest.mark.parametrize("number", [np.inf, 1e30])
def test_infinite_observations_pass_and_large_rewards(number):
    class Endless(own_envs.Drunkard):
        def step(self, action):
            return np.array([number, -number]), np.float64(1e30 if action[0] > 0 else -1e30), False, False, {}

    environment = GymnasiumEnvironment(Endless)
    steps = play(environment, 5).steps
    assert not any(step.truncated.any() for step in steps)
    assert all((np.abs(step.observation["agent"]) == np.float32(number)).all() for step in steps)
    assert all((np.abs(step.reward["agent"]) == np.float32(1e30)).all() for step in steps)


def test_parts_of_an_observation_are_looked_at_too():
    class Blurred(own_envs.Camera):
        def _observe(self):
            seen = super()._observe()
            if self.steps == 2:
                seen["arm"] = (np.array([0, np.nan]), 1)
            if self.steps == 5:
                del seen["lamps"]
            if self.steps == 3:
                seen["picture"] = seen["picture"][1:]
            return seen

    environment = GymnasiumEnvironment(Blurred)
    vector, out = environment.open([3], 0), empty(environment.spec, 1)
    vector.reset(out.observation)
    action = {"agent": np.zeros((1, 2), np.int32)}
    vector.step(action, out)
    seen = jax.tree.map(np.copy, out.observation)
    vector.step(action, out)
    assert out.truncated.all()
    assert same(out.last_observation, seen)
    (failure,) = vector.failures()
    assert failure.what == "step returned NaN in its observation"
    said = []
    for skipped in (3, 5):
        vector.step(action, out)
        vector.bare[0].steps = skipped - 1
        vector.step(action, out)
        said += [failure.what for failure in vector.failures()]
    assert said == [
        "step returned an observation 'picture' of shape (19, 20, 3), its observation_space expects (20, 20, 3)",
        "step returned an observation 'lamps' that is not of its observation_space (KeyError: 'lamps')",
    ]


ways = st.sampled_from(range(len(Saboteur.ways)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.one_of(st.just(PLAY), ways)] * 3), min_size=1, max_size=12), st.booleans())
def test_neighbours_are_not_disturbed(actions, watched):
    """Whatever fails in whichever row when, every row is bit for bit what it would have been alone."""
    # More than the budget allows in a row is another test's business.
    table, alone = Table(range(3)).reset(), [Table([index]).reset() for index in range(3)]
    if watched:
        table.vector.watch = lambda row: None
    written = np.zeros(3, bool)
    for number, taken in enumerate(actions):
        if number % 4 == 0:
            taken = (PLAY, PLAY, PLAY)
        before = table.shown
        together = table.step(*taken)
        each = [one.step(action) for one, action in zip(alone, taken, strict=True)]
        for name in ("observation", "reward"):
            rows = np.concatenate([getattr(step, name)["agent"] for step in each])
            assert same(getattr(together, name)["agent"], rows)
        for name in ("terminated", "truncated"):
            assert same(getattr(together, name), np.concatenate([getattr(step, name) for step in each]))
        ended = together.terminated | together.truncated
        written |= ended
        assert np.isnan(together.last_observation["agent"][~written]).all()
        failed = [Saboteur.ways[action] in IN_STEP for action in taken]
        assert together.truncated.tolist() == failed
        np.testing.assert_array_equal(together.last_observation["agent"][failed], before[failed])
        assert (together.reward["agent"][failed] == 0).all()
    numbers = [int(one.vector.episode_numbers()[0]) for one in alone]
    assert table.vector.episode_numbers().tolist() == numbers
    assert len(table.vector.failures()) == sum(len(one.vector.failures()) for one in alone)


def test_failing_again_and_again_ends_it_with_the_environments_own_traceback():
    table = Table().reset()
    for _ in range(MOST_IN_A_ROW - 1):
        table.step(0, RAISE, 0, 0)
    table.step(0, PLAY, 0, 0)  # a step that works, and all is forgiven
    for _ in range(MOST_IN_A_ROW - 1):
        table.step(0, RAISE, 0, 0)
    with pytest.raises(EnvironmentFailed) as told:
        table.step(0, RAISE, 0, 0)
    text = str(told.value)
    assert "own_envs:Saboteur: environment 1 failed 10 times without a step that worked in between" in text
    assert "in episode 18, step raised ValueError: bad thing" in text
    assert "correct the environment" in text
    assert text.endswith("ValueError: bad thing")
    assert 'raise ValueError("bad thing")' in text  # the line of the environment
    assert "gymnasium_vector" not in text


def test_failing_more_often_than_not_ends_it_too():
    table = Table([0]).reset()
    for step in range(150):  # two of three fail
        table.step(PLAY if step % 3 == 2 else RAISE)
    with pytest.raises(EnvironmentFailed, match=rf"failed 101 times in its last {WINDOW_STEPS} steps"):
        table.step(RAISE)
    half = Table([0]).reset()
    for step in range(3 * WINDOW_STEPS):
        half.step((PLAY, RAISE)[step % 2])


def test_a_reset_that_fails_counts_as_well():
    class Locked(Saboteur):
        def reset(self, **kwargs):
            raise OSError("locked")

    table = Table(environment=GymnasiumEnvironment(Locked))
    with pytest.raises(EnvironmentFailed, match="environment 0 failed 10 times"):
        table.reset()
    assert [failure.episode for failure in table.vector.failures()] == list(range(10))


@pytest.mark.parametrize("fails", ["step", "reset", "make"])
def test_what_stays_broken_ends_it(fails):
    own_envs.Broken.left = 20
    environment = GymnasiumEnvironment(own_envs.Broken, {"fails": fails})
    vector, out = environment.open(range(2), 0), empty(environment.spec, 2)
    vector.reset(out.observation)
    action = {"agent": np.zeros((2, 2), np.float32)}
    _step(vector, action, out, times=10)
    assert vector.failures() == []
    with pytest.raises(EnvironmentFailed, match=r"failed 10 times.*(worn out|no room)"):
        _step(vector, action, out, times=20)
    said = [failure.what for failure in vector.failures()]
    assert said[0] == "step raised ValueError: worn out"
    again = {"step": said[0], "reset": "reset raised ValueError: worn out"}
    assert said[-1] == again.get(fails, "creating it again raised MemoryError: no room")


def _step(vector, action, out, times):
    for _ in range(times):
        vector.step(action, out)


def test_failures_that_are_not_fetched_do_not_pile_up():
    kept = Failures("some", 1)
    for clock in range(0, 3 * KEPT, 3):
        kept.add(Failure(0, 0, clock, "", ""), clock, True)
    assert [failure.episode for failure in kept.fetch()[-2:]] == [3 * KEPT - 6, 3 * KEPT - 3]
    for clock in range(0, 6 * KEPT, 3):
        kept.add(Failure(0, 0, clock, "", ""), 3 * KEPT + clock, True)
    assert len(kept.fetch()) == KEPT


def test_a_shape_that_was_never_right_is_the_users_to_mend():
    class Wrong(own_envs.Camera):
        def _observe(self):
            return super()._observe() | {"lamps": np.zeros(4, np.int8)}

    environment = GymnasiumEnvironment(Wrong)
    with pytest.raises(UserError, match=r"'lamps' of shape \(4,\), its observation_space expects \(3,\); correct"):
        environment.open([0], 0).reset(empty(environment.spec, 1).observation)


def episodes(*of):
    return [Episode(number, {"agent": np.array(actions, np.int32)}) for number, actions in of]


@pytest.mark.parametrize("name", IN_STEP)
def test_an_episode_that_fails_when_played_again_is_cut(name):
    table = Table()
    table.vector.restore(episodes((0, []), (2, [0] * 5), (4, [0] * 2), (1, [])), table.out.observation)
    whole = table.shown
    cut = table.vector.restore(episodes((0, []), (2, [0] * 5), (4, [0, way(name), 0]), (1, [])), table.out.observation)
    assert cut.dtype == np.bool_
    assert cut.tolist() == [False, False, True, False]
    assert table.vector.episode_numbers().tolist() == [0, 2, 5, 1]
    np.testing.assert_array_equal(table.shown[2], start(2, 5))
    np.testing.assert_array_equal(table.shown[[0, 1, 3]], whole[[0, 1, 3]])
    (failure,) = table.vector.failures()
    assert (failure.row, failure.episode, failure.what) == (2, 4, "played again, " + IN_STEP[name])


def test_an_episode_that_does_not_play_again_is_cut():
    environment = GymnasiumEnvironment(own_envs.Unsure)
    vector, out = environment.open([3], 0), empty(environment.spec, 1)
    own_envs.Unsure.lengths = iter(range(10, 0, -1))
    vector.reset(out.observation)
    cut = vector.restore(episodes((2, [0] * 9)), out.observation)
    assert cut.tolist() == [True]
    assert vector.episode_numbers().tolist() == [3]
    (failure,) = vector.failures()
    assert failure.what == (
        "played again, an episode of 9 steps and more ended after 9: the environment is not deterministic"
    )
    vector.step({"agent": np.zeros(1, np.int32)}, out)
    assert not out.truncated.any()


def test_an_episode_begins_where_nothing_of_it_is_recorded():
    table = Table([0, 1])
    cut = table.vector.restore([Episode(3, {}), *episodes((5, []))], table.out.observation)
    assert not cut.any()
    np.testing.assert_array_equal(table.shown, [start(0, 3), start(1, 5)])


def test_a_failure_is_part_of_the_run_when_it_goes_on():
    """The reaction to a failure does not depend on whether the vector was opened again since."""
    table = Table([0, 1]).reset()
    table.step(RAISE, 0)
    table.step(0, 0)
    other = Table([0, 1])
    other.vector.restore(episodes((1, [0]), (0, [0, 0])), other.out.observation)
    assert same(other.shown, table.shown)
    assert same(other.step(0, 0)._replace(last_observation=None), table.step(0, 0)._replace(last_observation=None))


def test_a_condemned_episode_is_not_gone_on_with():
    table = Table().reset()
    table.step(PLAY, PLAY, PLAY, PLAY)
    before, stepped = table.shown, Saboteur.steps
    table.vector.condemn(2, 0, "it is said to be deadly")
    step = table.step(PLAY, PLAY, PLAY, PLAY)
    assert Saboteur.steps == stepped + 3
    assert step.truncated.tolist() == [False, False, True, False]
    np.testing.assert_array_equal(step.last_observation["agent"][2], before[2])
    assert table.vector.episode_numbers().tolist() == [0, 0, 1, 0]
    assert [failure.what for failure in table.vector.failures()] == ["it is said to be deadly"]
    assert not table.step(PLAY, PLAY, PLAY, PLAY).truncated.any()


def test_a_condemned_episode_is_not_begun():
    table = Table().reset()
    table.vector.condemn(1, 1, "it is said to be deadly")
    table.step(PLAY, way("raise"), PLAY, PLAY)  # episode 0 ends, and 2 begins
    assert table.vector.episode_numbers().tolist() == [0, 2, 0, 0]
    np.testing.assert_array_equal(table.shown[1], start(1, 2))


def test_a_watched_vector_reports_the_row():
    turns = []
    table = Table(range(3))
    table.vector.watch = turns.append

    def told():
        said = turns.copy()
        turns.clear()
        return said

    table.reset()
    assert told() == [0, 1, 2, -1]
    table.step(0, 0, 0)
    assert told() == [0, 1, 2, -1]
    table.step(0, END, 0)
    assert told() == [0, 1, 2, 1, -1]
    table.step(RAISE, 0, 0)
    assert told() == [0, 1, 2, 0, 0, -1]  # made anew, begun
    table.vector.restore(episodes((0, []), (3, [0, 0]), (1, [0])), table.out.observation)
    assert told() == [0, 1, 1, 1, 2, 2, -1]


def test_watching_changes_nothing():
    environment = GymnasiumEnvironment("CartPole-v1", {"max_episode_steps": 9})
    runs = []
    for watch in (None, lambda row: None):
        vector, out, seen = environment.open(range(3), 0), empty(environment.spec, 3), []
        vector.watch = watch
        vector.reset(out.observation)
        rng = np.random.default_rng(0)
        for _ in range(60):
            vector.step({"agent": rng.integers(0, 2, 3).astype(np.int32)}, out)
            seen.append(jax.tree.map(np.copy, out))
        runs.append(seen)
    assert all(same(a, b) for a, b in zip(*runs, strict=True))


def leaving(leave):
    class Leaving(own_envs.Drunkard):
        def step(self, action):
            leave()

    environment = GymnasiumEnvironment(Leaving)
    vector, out = environment.open([0], 0), empty(environment.spec, 1)
    vector.reset(out.observation)
    return lambda: vector.step({"agent": np.zeros((1, 2), np.float32)}, out)


def throw(problem):
    raise problem


def test_what_a_user_asks_of_the_process_passes():
    with pytest.raises(KeyboardInterrupt):
        leaving(lambda: throw(KeyboardInterrupt()))()


@pytest.mark.parametrize("problem", [SystemExit(0), asyncio.CancelledError(), GeneratorExit()])
def test_whatever_else_is_raised_is_a_failure(problem):
    step = leaving(lambda: throw(problem))
    for _ in range(MOST_IN_A_ROW - 1):
        step()
    with pytest.raises(EnvironmentFailed, match=f"step raised .*{type(problem).__name__}(.|\n)*in throw"):
        step()


def test_nan_is_found_also_where_whole_numbers_are_expected():
    class Counting(own_envs.Drunkard):
        observation_space = gymnasium.spaces.Box(0, 9, (2,), np.int32)

        def reset(self, **kwargs):
            return np.zeros(2, np.int32), super().reset(**kwargs)[1]

        def step(self, action):
            return np.array([np.nan, 1.0]), 0.0, False, False, {}

    environment = GymnasiumEnvironment(Counting)
    vector, out = environment.open(range(2), 0), empty(environment.spec, 2)
    vector.reset(out.observation)
    vector.step({"agent": np.zeros((2, 2), np.float32)}, out)
    assert out.truncated.all()
    assert {failure.what for failure in vector.failures()} == {"step returned NaN in its observation"}


def test_training_goes_on_when_one_step_in_a_hundred_fails(tmp_path):
    algorithm = PPO(unroll=32, minibatches=2, epochs=1, hidden=(16,))
    own_envs.Faulty.failed = 0
    run = runnel.train(
        algorithm, "own_envs:Faulty", "inline", envs=4, steps=32 * 4 * 8, seed=1, run_dir=tmp_path / "run", quiet=True
    )
    assert own_envs.Faulty.failed >= 3
    assert run.result["env_steps"] == 32 * 4 * 8
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.states))
