"""A user's `gymnasium.vector.VectorEnv`: every step of a row is one of its environment, in every autoreset mode."""

import functools

import gymnasium
import jax
import numpy as np
import own_vectors
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector as wrappers
from own_vectors import Counter, OwnVector, Sick, async_, own, sync
from playing import empty, play, same

import runnel
from runnel.algorithms.ppo import PPO
from runnel.distributions.coarse import Coarse
from runnel.distributions.fine import Fine
from runnel.environment import Episode, HostEnvironment
from runnel.envs import make, of_object
from runnel.envs.frame_stack import FrameStackedEnvironment
from runnel.envs.recovery import MOST_IN_A_ROW
from runnel.envs.user_vector_modes import Apart, Masked, SameStep
from runnel.errors import EnvironmentFailed, UserError
from runnel.recording.events import read_events

MODES = [mode.name for mode in AutoresetMode]


class Existing(functools.partial):
    """Makes a vector that is given as it is: of three environments, in the default mode."""


MADE = {
    **{f"own {mode}": own(mode) for mode in MODES},
    **{f"sync {mode}": functools.partial(sync, mode=mode) for mode in MODES},
    "sync NEXT_STEP, one buffer": functools.partial(sync, mode="NEXT_STEP", copy=False),
    "sync DISABLED, one buffer": functools.partial(sync, mode="DISABLED", copy=False),
    "existing, own": Existing(OwnVector, 3),
    "existing, in an unknown wrapper": Existing(lambda: Strange(sync(3))),
    "list of infos": lambda num_envs: wrappers.DictInfoToList(sync(num_envs, "SAME_STEP")),
    "statistics": lambda num_envs: wrappers.RecordEpisodeStatistics(sync(num_envs, "DISABLED")),
}
PPO_OF_COUNTER = PPO(unroll=8, hidden=(4,), epochs=1, minibatches=1)


class Table:
    """A vector and where it writes."""

    def __init__(self, environment, rows=3):
        self.environment = environment
        self.vector = environment.open(range(rows), 7)
        self.out = empty(environment.spec, rows)
        self.vector.reset(self.out.observation)

    def step(self, *actions):
        self.vector.step({"agent": np.array(actions, np.int32)}, self.out)
        return self.out

    def play(self, steps):
        for _ in range(steps):
            self.step(*[0] * len(self.out.terminated))

    @property
    def shown(self):
        return self.out.observation["agent"].copy()

    @property
    def last(self):
        return self.out.last_observation["agent"].copy()


@pytest.mark.parametrize("name", MADE)
def test_every_step_of_a_row_is_a_step_of_its_environment(name):
    made = MADE[name]
    table = Table(of_object(made() if isinstance(made, Existing) else made, {}))
    rng, ended, cut = np.random.default_rng(0), 0, 0
    for _ in range(60):
        before, actions = table.shown, rng.integers(0, 4, 3)
        numbers = table.vector.episode_numbers()
        out = table.step(*actions)
        for row in range(3):
            episode, count, _ = before[row]
            over = out.terminated[row] or out.truncated[row]
            after = table.last[row] if over else table.shown[row]
            np.testing.assert_array_equal(after, [episode, count + 1, actions[row]])
            assert out.reward["agent"][row] == 10 * episode + count + 1
            if over:
                assert out.truncated[row] == ((count + 1) % 2 == 0)
                np.testing.assert_array_equal(table.shown[row][1:], [0, -1])
                assert table.shown[row][0] > episode
            assert table.vector.episode_numbers()[row] == numbers[row] + over
        ended, cut = ended + out.terminated.sum(), cut + out.truncated.sum()
    assert ended > 5
    assert cut > 5
    assert not table.vector.failures()
    table.vector.close()


@pytest.mark.parametrize("mode", MODES)
def test_environments_in_processes_of_their_own(mode):
    """Gymnasium's AsyncVectorEnv: equal to its SyncVectorEnv, except for the time it takes."""
    here, elsewhere = (play(of_object(made, {"mode": mode}), 15, indices=range(2)) for made in (sync, async_))
    assert same(here[:2], elsewhere[:2])


@pytest.mark.parametrize(
    ("made", "treatment"),
    [
        (own("NEXT_STEP"), Apart),
        (own("SAME_STEP"), SameStep),
        (own("DISABLED"), Masked),
        (sync, Masked),
        (functools.partial(gymnasium.make_vec, "CartPole-v1"), Apart),
        (functools.partial(gymnasium.make_vec, "CartPole-v1", vectorization_mode="sync"), Masked),
        (lambda num_envs: wrappers.RecordEpisodeStatistics(sync(num_envs)), Masked),
        (lambda num_envs: wrappers.NormalizeObservation(sync(num_envs)), Apart),
        (lambda num_envs: Strange(sync(num_envs)), Apart),
    ],
)
def test_how_a_vector_is_treated_follows_from_its_mode_and_who_wrote_it(made, treatment):
    vector = of_object(made, {}).open(range(2), 7)
    assert type(vector.treated) is treatment
    vector.close()


class Strange(gymnasium.vector.VectorObservationWrapper):
    """A wrapper of the user's: what it does with a mask is not known."""

    def observations(self, observations):
        return observations


class Uncopied(OwnVector):
    """One that holds what exists once."""

    def __deepcopy__(self, memo):
        raise TypeError("a handle of the simulator")


def test_a_vector_without_shared_memory_resets_nothing_twice():
    """Gymnasium's own, which forgets that an environment was reset by a mask."""
    environment = of_object(async_, {"shared_memory": False})
    vector = environment.open(range(1), 7)
    assert type(vector.treated) is Apart
    vector.close()


def test_training_sees_no_step_that_is_none(tmp_path):
    """CartPole's rewards are 1 in every step, and 0 in a step that only resets."""
    made = functools.partial(gymnasium.make_vec, "CartPole-v1")
    run = runnel.train(PPO_OF_COUNTER, made, envs=2, steps=320, run_dir=tmp_path, quiet=True)
    plain = runnel.train(PPO_OF_COUNTER, "CartPole-v1", envs=2, steps=320, run_dir=tmp_path / "plain", quiet=True)
    for ours, theirs in zip(jax.tree.leaves(run.states), jax.tree.leaves(plain.states), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    assert run.result["mean_return"] == plain.result["mean_return"]


@pytest.mark.parametrize("fixed", ["existing", "made anew"])
def test_a_vector_of_several_trains_as_its_environments_do(fixed, tmp_path):
    """In its default mode, and of a class that cannot reset one environment alone."""

    def made():
        return Strange(own_vectors.cartpoles(3, "NEXT_STEP"))

    given = dict(envs=3, steps=360, quiet=True, eval_every=120, eval_episodes=3)
    run = runnel.train(PPO_OF_COUNTER, made() if fixed == "existing" else made, run_dir=tmp_path / "run", **given)
    plain = runnel.train(PPO_OF_COUNTER, "CartPole-v1", run_dir=tmp_path / "plain", **given)
    for ours, theirs in zip(jax.tree.leaves(run.states), jax.tree.leaves(plain.states), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    counted = ("env_steps", "updates", "episodes", "mean_return", "evaluation")
    assert [run.result[name] for name in counted] == [plain.result[name] for name in counted]


def test_an_existing_vector_that_is_copied_stays_as_it_is():
    vector = OwnVector(3)
    environment = of_object(vector, {})
    assert environment.fixed_envs == 3
    first, second = Table(environment), Table(environment, 2)  # and each table has its own
    for table in (first, second):
        table.play(10)
        assert [type(treated) for treated in table.vector.treated.vectors] == [OwnVector] * len(table.out.terminated)
    np.testing.assert_array_equal(first.shown[:2], second.shown)
    assert [env.episode for env in vector.envs] == [-1] * 3  # never reset
    first.vector.close()
    second.vector.close()
    assert not vector.closed


# Numbers of environments


def test_a_callable_makes_as_many_as_are_asked_for():
    environment = make("own_vectors:sync", mode="SAME_STEP")
    assert environment.fixed_envs is None
    assert isinstance(environment, HostEnvironment)
    assert len(environment.open(range(5), 0).treated.vectors[0].envs) == 5


@pytest.mark.parametrize(
    ("given", "settings", "number"),
    [
        (own_vectors.three, {}, 3),
        (functools.partial(sync, 4), {}, 4),
        (functools.partial(sync, num_envs=4), {}, 4),
        (sync, {"num_envs": 2}, 2),
        (sync(5), {}, 5),
        (gymnasium.make_vec("CartPole-v1", num_envs=6), {}, 6),
        (functools.partial(gymnasium.make_vec, "CartPole-v1", num_envs=6), {}, 6),
    ],
)
def test_a_number_of_its_own_is_the_number_of_environments(given, settings, number, tmp_path):
    built = runnel.build(PPO_OF_COUNTER, given, env_settings=settings)
    assert built.environment.fixed_envs == number
    assert built.graph.envs == number
    with pytest.raises(UserError, match=rf"envs=7: each vector of \S+ has {number} environments; found envs=7, expect"):
        runnel.build(PPO_OF_COUNTER, given, env_settings=settings, envs=7)


def test_several_workers_need_as_many_vectors(capsys):
    assert runnel.build(PPO_OF_COUNTER, own_vectors.three, Coarse(2), envs=6).graph.envs == 6
    with pytest.raises(
        UserError, match="has 3 environments, and 4 are needed; found envs=8, expected envs=12"
    ) as error:
        runnel.build(PPO_OF_COUNTER, own_vectors.three, Fine(2, env_splits=2), envs=8)
    assert error.value.keywords == ("envs",)
    with pytest.raises(
        UserError, match=r"is one vector, made already: found env_splits=2, .* expected env_splits=1, or"
    ):
        runnel.build(PPO_OF_COUNTER, own_vectors.MADE, Fine(2, env_splits=2), envs=8)


def test_more_environments_than_rows_are_not_looked_at():
    """As evaluation asks for: one episode, of a vector of three."""
    table = Table(of_object(sync(3, "DISABLED"), {}), rows=1)
    for _ in range(20):
        before = table.shown[0]
        out = table.step(2)
        over = out.terminated[0] or out.truncated[0]
        assert (table.last if over else table.shown)[0][1] == before[1] + 1


def test_a_vector_that_is_made_is_used_once_at_a_time_and_not_closed():
    vector = sync(2, "SAME_STEP")
    environment = of_object(vector, {})
    first = environment.open(range(2), 0)
    with pytest.raises(UserError, match="is one vector, made already and in use: this needs another; give a function"):
        environment.open(range(2), 0)
    first.close()
    assert not vector.closed
    environment.open(range(2), 0).close()


# Seeds, resumed runs


def test_the_same_seed_plays_the_same_and_another_does_not():
    for made in (sync, own("SAME_STEP"), functools.partial(gymnasium.make_vec, "CartPole-v1")):
        environment = of_object(made, {})
        one, again, other = (play(environment, 30, seed=seed) for seed in (7, 7, 8))
        assert same(one[:2], again[:2])
        assert not same(one[:2], other[:2])


def test_an_environment_of_gymnasiums_does_not_depend_on_its_neighbours():
    environment = of_object(own_vectors.cartpoles, {"mode": "DISABLED"})
    alone, together = play(environment, 40, indices=[2]), play(environment, 40)
    for one, all_ in zip(alone.steps, together.steps, strict=True):
        assert same(one.observation["agent"][0], all_.observation["agent"][2])


def test_what_cannot_be_played_again_is_cut():
    environment = of_object(sync, {})
    before = play(environment, 7)
    table = Table(environment, 4)
    assert table.vector.restore(before.episodes, table.out.observation).all()
    assert table.vector.episode_numbers().tolist() == [episode.number + 1 for episode in before.episodes]
    assert (table.shown[:, 1:] == [0, -1]).all()
    table.step(0, 1, 2, 3)
    assert (table.shown[:, 1:] == [[1, 0], [1, 1], [1, 2], [1, 3]]).all()


def test_a_resumed_run_counts_the_episodes_that_it_cut(tmp_path):
    given = dict(envs=2, run_dir=tmp_path / "run", quiet=True)
    runnel.train(PPO_OF_COUNTER, sync, steps=160, **given)
    run = runnel.resume(tmp_path / "run", steps=320, quiet=True)
    assert (run.result["status"], run.result["env_steps"]) == ("finished", 320)
    assert [event["cut_episodes"] for event in read_events(tmp_path / "run")] == [2]


@pytest.mark.parametrize("distribution", [Coarse(2), pytest.param(Fine(2), marks=pytest.mark.slow)])
def test_workers_step_vectors_of_their_own(distribution, tmp_path):
    run = runnel.train(
        PPO_OF_COUNTER, sync, distribution, envs=4, steps=640, run_dir=tmp_path, quiet=True,
        env_settings={"mode": "SAME_STEP"},
    )  # fmt: skip
    assert (run.result["status"], run.result["restarts"]) == ("finished", 0)


@pytest.mark.slow
def test_a_vector_that_is_a_variable_of_a_module_is_made_in_every_worker(tmp_path):
    run = runnel.train(PPO_OF_COUNTER, own_vectors.MADE, Coarse(2), envs=4, steps=320, run_dir=tmp_path, quiet=True)
    assert (run.result["status"], run.result["restarts"]) == ("finished", 0)


# Failures


@pytest.mark.parametrize("mode", ["DISABLED", "SAME_STEP"])
@pytest.mark.parametrize(
    ("way", "rows", "what"),
    [
        ("raise", [0, 1, 2], "the vector's step raised ConnectionError: the simulator went away"),
        ("shape", [0, 1, 2], "the vector's step raised ValueError: an array of shape (1, 3) among its observations"),
        ("rewards", [0, 1, 2], "the vector's step returned rewards of float64 of shape (1,), expected a number"),
        ("flags", [0, 1, 2], "the vector's step raised ValueError: terminated and truncated of shapes (1, 3) and"),
        ("nan", [1], "step returned NaN in its observation"),
        ("nan reward", [1], "step returned NaN as its reward"),
    ],
)
def test_a_failure_cuts_episodes_at_the_last_good_step(mode, way, rows, what, monkeypatch):
    monkeypatch.setattr(Sick, "steps", 0)
    table = Table(of_object(Sick, {"mode": mode, "way": way}))
    if mode == "SAME_STEP":
        rows = [0, 1, 2]  # it cannot reset one of them
    for _ in range(4):
        assert not table.vector.failures()
        before, numbers = table.shown, table.vector.episode_numbers()
        out = table.step(1, 1, 1)
    cut = [row for row in range(3) if out.truncated[row] or out.terminated[row]]
    assert set(rows) <= set(cut)
    for row in rows:
        if row == 1 or way not in ("nan", "nan reward"):
            np.testing.assert_array_equal(table.last[row], before[row])
            assert out.reward["agent"][row] == 0
            assert out.truncated[row]
        np.testing.assert_array_equal(table.shown[row][1:], [0, -1])
        assert table.vector.episode_numbers()[row] == numbers[row] + 1
    (failure,) = table.vector.failures()
    assert failure.what.startswith(what)
    table.step(1, 1, 1)
    assert not table.vector.failures()


def test_a_failure_of_one_of_several_vectors_cuts_all_episodes(monkeypatch):
    monkeypatch.setattr(Sick, "steps", 0)
    table = Table(of_object(Sick, {"mode": "NEXT_STEP"}))
    table.play(1)
    before = table.shown
    table.play(1)  # the fourth step of all
    assert table.out.truncated.all()
    np.testing.assert_array_equal(table.last, before)
    assert [failure.what for failure in table.vector.failures()] == [
        "the vector's step raised ConnectionError: the simulator went away"
    ]
    episodes = table.vector.episode_numbers() - 1
    assert table.vector.cut_with_others() == list(enumerate(episodes.tolist()))
    assert table.vector.cut_with_others() == []


def test_what_a_failure_has_cut_is_known_through_a_wrapper(monkeypatch):
    monkeypatch.setattr(Sick, "steps", 0)
    table = Table(FrameStackedEnvironment(of_object(Sick, {"mode": "NEXT_STEP"}), 2))
    table.play(2)
    assert table.out.truncated.all()
    episodes = table.vector.episode_numbers() - 1
    assert table.vector.cut_with_others() == list(enumerate(episodes.tolist()))


@pytest.mark.parametrize("way", ["raise", "make", "nan"])
def test_a_vector_that_goes_on_failing_ends_the_run_with_its_traceback(way, monkeypatch):
    monkeypatch.setattr(Sick, "steps", 0)
    table = Table(of_object(Sick, {"way": way, "often": True}))
    with pytest.raises(EnvironmentFailed) as error:
        table.play(4 + MOST_IN_A_ROW)
    assert f"failed {MOST_IN_A_ROW} times without a step that worked" in str(error.value)
    if way != "nan":
        assert "own_vectors.py" in str(error.value)


def test_a_run_that_fails_for_good_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(Sick, "steps", 0)
    with pytest.raises(EnvironmentFailed, match="the simulator went away"):
        runnel.train(
            PPO_OF_COUNTER, Sick, envs=2, steps=640, run_dir=tmp_path, quiet=True, env_settings={"often": True}
        )


def test_a_condemned_episode_is_not_gone_on_with():
    table = Table(of_object(sync, {"mode": "SAME_STEP"}))
    table.vector.condemn(1, 0, "it brought its worker down")
    out = table.step(0, 0, 0)
    assert out.truncated.all()
    assert [failure.what for failure in table.vector.failures()] == ["it brought its worker down"]
    assert not table.step(0, 0, 0).truncated.any()


def test_the_watch_knows_when_the_vector_is_called():
    watched = []
    table = Table(of_object(sync, {}))
    table.vector.watch = watched.append
    table.step(0, 0, 0)
    assert watched == [0, -1]


# Spaces, metrics, pictures


def test_observations_in_parts():
    environment = of_object(own_vectors.Dict, {})
    assert environment.spec.groups["agent"].observation.keys() == {"place", "pair"}
    vector, out = environment.open(range(2), 0), empty(environment.spec, 2)
    vector.reset(out.observation)
    for step in range(1, 4):
        vector.step({"agent": np.array([[9, 9], [0, 0]], np.float32)}, out)
        assert out.observation["agent"]["place"][1].tolist() == [step, -step]
    assert out.terminated.tolist() == [True, False]
    assert out.last_observation["agent"]["place"][0].tolist() == [3, -3]
    assert out.last_observation["agent"]["pair"][0][0] == 3
    assert out.observation["agent"]["pair"][0].tolist() == [0, 3]


def test_infos_that_are_none_stop_nothing():
    table = Table(of_object(own_vectors.Mute, {"mode": "DISABLED"}))
    table.play(12)
    assert table.vector.episode_numbers().all()
    assert not table.vector.episode_metrics()
    assert not table.vector.failures()


@pytest.mark.parametrize("name", MADE)
def test_numbers_of_info_are_metrics_of_an_episode(name):
    made = MADE[name]
    table = Table(of_object(made() if isinstance(made, Existing) else made, {}))
    found, wanted = [], []
    for _ in range(12):
        numbers, before = table.vector.episode_numbers(), table.shown
        out = table.step(0, 1, 2)
        for row in np.flatnonzero(out.terminated | out.truncated).tolist():
            score = 1.5 * (before[row][1] + 1)
            wanted.append((row, numbers[row], {"score": score, "is_success": float(out.terminated[row])}))
        found += table.vector.episode_metrics()
    assert [(each.row, each.episode, each.values) for each in found] == wanted
    assert wanted
    assert not table.vector.episode_metrics()


@pytest.mark.parametrize(
    "made", [own("NEXT_STEP"), own("DISABLED"), functools.partial(gymnasium.make_vec, "Counter-v0")]
)
def test_a_picture_of_one_environment(made, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("Counter-v0", entry_point="own_vectors:Counter")
    monkeypatch.setitem(gymnasium.registry, "Counter-v0", spec)
    environment = of_object(made, {})
    vector, out = environment.open(range(2), 0, render=True), empty(environment.spec, 2)
    vector.reset(out.observation)
    vector.step({"agent": np.array([0, 0], np.int32)}, out)
    assert vector.render(1).shape == (4, 6, 3)
    assert (vector.render(1) == 1).all()
    vector.close()


# Mistakes


@pytest.mark.parametrize(
    ("given", "settings", "words"),
    [
        (
            Uncopied(2),
            {},
            "NEXT_STEP, in which each environment is played in a copy of the vector, and deepcopy raised TypeError: a "
            "handle of the simulator; expected SAME_STEP or DISABLED, or a callable that takes `num_envs`",
        ),
        (sync(2), {"mode": 1}, r"is made already; settings \(mode\) need what makes it"),
        (
            own_vectors.Undeclared,
            {},
            "found autoreset_mode None in its metadata, expected one of AutoresetMode.NEXT_ST",
        ),
        (own_vectors.Spaceless, {}, "has no single_observation_space; set one in `__init__`"),
        (sync, {"mod": 1}, "has no setting 'mod'; did you mean 'mode'"),
        (
            own_vectors.sync,
            {"mode": "SOON"},
            "making own_vectors:sync with mode=SOON, num_envs=1 raised KeyError: 'SOON'",
        ),
    ],
)
def test_mistakes_are_reported(given, settings, words):
    with pytest.raises(UserError, match=words) as error:
        of_object(given, settings)
    assert "\n" not in str(error.value)


def test_a_vector_of_another_number_is_refused():
    with pytest.raises(UserError, match="found a vector of 5 environments, expected 4: let it create `num_e"):
        of_object(own_vectors.stubborn, {}).open(range(4), 0)
    with pytest.raises(UserError, match="found a vector of 3 environments, expected 4; give a callable that takes"):
        of_object(own_vectors.three, {}).open(range(4), 0)


def test_a_vector_without_pictures_is_refused():
    with pytest.raises(UserError, match="cannot be rendered: expected render mode 'rgb_array', found None"):
        of_object(own_vectors.three, {}).open(range(3), 0, render=True)


def test_a_vector_that_does_not_show_last_observations_is_refused():
    table = Table(of_object(own_vectors.Silent, {}), rows=2)
    with pytest.raises(EnvironmentFailed, match=r"ended, and info has no final observation; a vector with auto"):
        table.play(6)


def test_a_replay_is_never_asked_for():
    """A vector begins the next episodes whatever the actions were."""
    environment = of_object(lambda num_envs: SyncVectorEnv([Counter] * num_envs), {})
    table = Table(environment, 1)
    assert table.vector.restore([Episode(4, {"agent": np.zeros(50, np.int32)})], table.out.observation).all()
    assert table.vector.episode_numbers().tolist() == [5]
