"""Runs that cannot be trained are refused while they are built; the error states found, expected and fix."""

import functools
import json
import threading

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from evaluated import Walk
from toys import Corridor, Reinforce

import runnel
from runnel import envs as environments
from runnel.distributions.coarse import Coarse
from runnel.errors import EnvironmentFailed, UserError
from runnel.evaluation.evaluate import evaluate
from runnel.recording.metrics import read_metrics


class FloatClock(Corridor):
    """Its state changes type at the first step."""

    def step(self, state, action, key):
        (place, clock), timestep = super().step(state, action, key)
        return (place, clock.astype(jnp.float32)), timestep


class WideObservation(Corridor):
    """Sees three numbers where its spec says two."""

    def _observe(self, state):
        return jnp.zeros(3, jnp.float32)


class ManyRewards(Corridor):
    """Gives a vector of rewards to its one agent."""

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(reward=jnp.zeros(2))


class ComplexReward(Corridor):
    """Gives a complex number as its reward."""

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(reward=timestep.reward + 0j)


class NumberedEnd(Corridor):
    """Says whether it ended with a number."""

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(terminated=timestep.terminated.astype(jnp.int32))


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            {"speed": jnp.zeros(3)},
            r"step returns metrics whose 'speed' is float32\[3\], expected a single bool, int or float",
        ),
        ({"phase": jnp.complex64(1)}, r"metrics whose 'phase' is complex64\[\], expected a single bool, int or float"),
        ({"a b": 1.0}, r"metrics called 'a b', expected letters, digits, '_', '\.' and '-', at most 64"),
        ({"n" * 65: 1.0}, "metrics called 'nnn.*', expected letters"),
        ({3: 1.0}, "metrics called 3, expected letters"),
        ({"hunter": {"speed": 1.0}}, "metrics of the group 'hunter', expected one of its groups: agent"),
        ({"speed": 1.0, "agent": {"speed": 1.0}}, "metrics whose 'agent' is .*, expected a single bool, int or float"),
        ({f"n{i}": 1.0 for i in range(65)}, "metrics of 65 names, expected 64 or fewer"),
        (jnp.zeros(3), r"metrics float32\[3\], expected a dict from name to a number, or \(\)"),
    ],
)
def test_metrics_of_a_jax_environment_that_are_no_numbers(metrics, message):
    class Wrong(Corridor):
        def step(self, state, action, key):
            state, timestep = super().step(state, action, key)
            return state, timestep._replace(metrics=metrics)

    with pytest.raises(UserError, match=f"corridor: step returns {message.removeprefix('step returns ')}"):
        runnel.build(Reinforce(), Wrong, "fused", envs=4)


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        ({}, []),
        ({"agent": {"speed": 1.0}}, ["env/agent/speed"]),
        ({"speed": True, "place": 3, "time": jnp.int8(4)}, ["env/place", "env/speed", "env/time"]),
    ],
)
def test_metrics_of_a_jax_environment_that_are_numbers(metrics, names, tmp_path):
    class Right(Corridor):
        def step(self, state, action, key):
            state, timestep = super().step(state, action, key)
            return state, timestep._replace(metrics=metrics)

    runnel.train(Reinforce(), Right(), "fused", envs=4, steps=3 * 8 * 4, run_dir=tmp_path, quiet=True)
    assert sorted(name for name in read_metrics(tmp_path)[-1] if name.startswith("env/")) == names


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("FloatClock", r"step returns a state whose \[1\] is float32\[\]; expected int32\[\]"),
        ("WideObservation", r"reset returns an observation that is float32\[3\]; expected float32\[2\]"),
        ("ManyRewards", r"step returns rewards float\d+\[2\], expected"),
        ("ComplexReward", r"step returns rewards complex\d+\[\], expected real numbers"),
        ("NumberedEnd", r"step returns terminated as int32\[\], expected a single bool"),
    ],
)
def test_a_jax_environment_that_does_not_keep_its_word(environment, message):
    with pytest.raises(UserError, match=message):
        runnel.build(Reinforce(), f"{__name__}:{environment}", "fused", envs=4)


def test_sizes_that_make_no_sense():
    with pytest.raises(UserError, match="envs=0: found 0, expected"):
        runnel.build(Reinforce(), "toys:Corridor", envs=0)
    with pytest.raises(UserError, match="steps=0: found 0, expected"):
        runnel.train(Reinforce(), "toys:Corridor", steps=0)


def test_a_host_environment_cannot_be_fused_and_the_error_says_what_can():
    with pytest.raises(UserError, match=r"host environment.*distribution='inline', or use .*gymnax:CartPole-v1"):
        runnel.build("ppo", "CartPole-v1", "fused")


def test_a_host_environment_of_ones_own_has_no_version_in_jax():
    with pytest.raises(UserError, match=r"Hill' is a host environment .* distribution='inline'$"):
        runnel.build(Reinforce(), Hill, "fused")


def test_a_setting_of_the_wrong_type_from_python():
    with pytest.raises(UserError, match="learning_rate"):
        runnel.build(Reinforce(learning_rate="fast"), "toys:Corridor")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("ppo", "CartPole-v1", 2000), r"distribution: found 2000, expected a name .*; did you mean steps=2000\?"),
        ((3, "CartPole-v1"), "algorithm: found 3, expected a name such as 'ppo', or a runnel.Algorithm"),
        ((dict, "CartPole-v1"), "algorithm: found the class dict, expected"),
        ({"steps": "2000"}, "steps='2000': found text '2000', expected a whole number"),
        ({"steps": 2000.5}, r"steps=2000\.5: found 2000\.5, expected a whole number"),
        ({"envs": "8"}, "envs='8': found text '8', expected a whole number or None"),
        ({"seed": None}, "seed=None: found None, expected a whole number"),
        ({"run_dir": 3}, "run_dir=3: found 3, expected text, a path or None"),
        ({"stop_at_return": "high"}, "found text 'high', expected a number or None"),
        ({"quiet": "no"}, "found text 'no', expected True or False"),
        ({"restarts": 1.5}, r"found 1\.5, expected a whole number"),
        ({"settings": "unroll=3"}, "settings='unroll=3': found text 'unroll=3', expected a dict or None"),
        ({"env_settings": 3}, "found 3, expected a dict or None"),
        ({"settings": {"learning_rte": 1}}, "Reinforce has no setting 'learning_rte'; did you mean 'learning_rate'"),
        ({"settings": {"unroll": "x"}}, "found text 'x', expected a whole number"),
    ],
)
def test_arguments_from_python_are_checked(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, keywords = ((Reinforce(), "toys:Corridor"), given) if isinstance(given, dict) else (given, {})
    with pytest.raises(UserError, match=message):
        runnel.train(*arguments, **keywords)
    assert not list(tmp_path.iterdir())


def test_classes_are_taken_with_their_defaults():
    built = runnel.build(Reinforce, Hill, Coarse, envs=4, settings={"unroll": 3})
    assert (built.algorithm, built.distribution) == (Reinforce(unroll=3), Coarse())
    assert runnel.build(Reinforce, Hill, Coarse, envs=4, actors=4).distribution == Coarse(actors=4)


def test_named_algorithms_take_tuned_settings_and_the_users_override_them():
    tuned = runnel.build("ppo", "CartPole-v1")
    own = runnel.build("ppo", "CartPole-v1", settings={"discount": 0.5})
    assert own.algorithm.discount == 0.5
    assert own.algorithm.unroll == tuned.algorithm.unroll
    assert {"discount=0.98", "unroll=128"} <= set(tuned.tuned)
    assert set(own.tuned) == set(tuned.tuned) - {"discount=0.98"}
    assert runnel.build(own.algorithm, "CartPole-v1").tuned == ()


def test_how_many_environments_are_tuned_too_unless_it_is_said():
    assert "--envs 16" in runnel.build("a2c", "CartPole-v1").tuned
    assert not any("--envs" in each for each in runnel.build("a2c", "CartPole-v1", envs=8).tuned)


class Hill(gymnasium.Env):
    """A Gymnasium environment of the user's own."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 3):
        self.length, self.steps = length, 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, self.steps >= self.length, False, {}


NAMED = Hill(7)
MADE = functools.partial(Hill, 9)


@pytest.mark.parametrize(
    ("environment", "name", "length"),
    [
        (Hill, f"{__name__}:Hill", 3),
        (NAMED, f"{__name__}:NAMED", 7),
        (MADE, f"{__name__}:MADE", 9),
        (functools.partial(Hill, length=4), "Hill", 4),
        (lambda: Hill(5), "lambda", 5),
        (Hill(6), "Hill", 6),
        (Corridor(), "Corridor", None),
    ],
)
def test_an_environment_may_be_an_object(environment, name, length):
    built = runnel.build(Reinforce(), environment, envs=2)
    kept = json.loads(json.dumps(environments.to_json(built.made_from, built.env_settings)))
    assert kept["name"] == name
    assert built.graph.spec.name == name or length is None
    assert ("unavailable" in kept) == (":" not in name)
    worlds = [built.environment, *([environments.make(name)] if ":" in name else [])]
    for world in worlds if length is not None else []:
        vector = world.open([0], seed=1)
        assert vector._make().length == length
        vector.close()


def test_an_environment_without_an_import_path_is_played_and_resumed_where_it_is(tmp_path):
    def environment():
        return Hill(5)

    run = runnel.train(Reinforce(unroll=8), environment, envs=2, steps=48, run_dir=tmp_path / "run", quiet=True)
    assert run.result["environment"] == "environment"
    assert evaluate(run, 2)["lengths"] == [5, 5]
    with pytest.raises(
        UserError, match=r"trained on the environment .* no other process can import; in Python, give it"
    ):
        evaluate(run.run_dir, 1)
    assert evaluate(run.run_dir, 1, environment=Hill)["lengths"] == [3]
    assert runnel.resume(run, steps=96, quiet=True).result["env_steps"] == 96


def test_processes_need_an_environment_that_they_can_import():
    assert runnel.build(Reinforce(), Hill, "coarse", actors=2, envs=4).plan.workers == 3
    with pytest.raises(
        UserError, match=r"coarse runs in 3 processes, which cannot be given this object \(lambda\): pass its class"
    ):
        runnel.train(Reinforce(), lambda: Hill(), "coarse", envs=4, quiet=True)


def test_the_environment_of_a_module_is_made_in_every_process(tmp_path):
    # Not one of this module: a package that is installed beside Runnel may be called `tests` as well.
    kept = {"steps": 16, "run_dir": tmp_path / "run", "quiet": True}
    run = runnel.train(Reinforce(unroll=8), Walk, "coarse", envs=2, actors=2, **kept)
    assert run.result["environment"] == "evaluated:Walk"
    assert len(run.result["workers"]) == 3


def test_what_is_no_environment_is_refused():
    with pytest.raises(UserError, match="'int' is an int; expected a callable that returns"):
        runnel.build("ppo", 3)
    with pytest.raises(UserError, match="is made already; settings"):
        runnel.build("ppo", Hill(), env_settings={"length": 3})
    uncopied = Hill()
    uncopied.lock = threading.Lock()
    with pytest.raises(UserError, match=r"'Hill' is one environment, and cannot be copied .*; give its class"):
        runnel.build("ppo", uncopied)


class Locked(Hill):
    """Cannot be reset."""

    def reset(self, *, seed=None, options=None):
        raise OSError("the door is locked")


def test_a_run_that_is_refused_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = iter([Hill(), "no environment", "no environment"])
    with pytest.raises(UserError, match="returned a str"):
        runnel.train(Reinforce(), lambda: next(made), envs=2, quiet=True)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    made = iter([Hill(), "no environment", "no environment"])
    with pytest.raises(UserError, match="returned a str"):
        runnel.train(Reinforce(), lambda: next(made), envs=2, quiet=True, run_dir="mine")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_run_that_fails_before_its_first_update_says_so_in_its_directory(tmp_path, capsys):
    with pytest.raises(EnvironmentFailed, match="the door is locked"):
        runnel.train(Reinforce(), Locked, envs=2, run_dir=tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["env_steps"]) == ("failed", 0)
    assert "the door is locked" in result["reason"]
    assert runnel.execution.training.read_config(tmp_path / "run")["environment"]["name"] == f"{__name__}:Locked"
    assert f"the run is in {tmp_path / 'run'}: it has no checkpoint" in capsys.readouterr().err


def test_fields_of_a_distribution_are_keywords():
    assert runnel.build(Reinforce(), "toys:Corridor", "coarse", actors=4, envs=8).distribution == Coarse(actors=4)
    assert runnel.build(Reinforce(), "toys:Corridor", Coarse(2), actors=4, envs=8).distribution == Coarse(actors=4)
    decoupled = runnel.build(Reinforce(), "toys:Corridor", "decoupled", inference=2, learners=1, env_splits=1, envs=8)
    assert [fragment.replicas for fragment in decoupled.plan.fragments] == [2, 2, 1]


@pytest.mark.parametrize(
    ("distribution", "given", "message"),
    [
        ("inline", {"actors": 4}, "distribution inline has no 'actors'; those that have: coarse, fine, environments"),
        (None, {"actors": 4}, "actors=4 needs a distribution that has it; those that have: coarse"),
        ("coarse", {"actors": "4"}, "found text '4', expected a whole number"),
        ("coarse", {"step": 4}, "train has no 'step'; did you mean 'steps'"),
        (
            "coarse",
            {"learning_rate": 4},
            r"'learning_rate' is a setting of Reinforce; give it as Reinforce\(learning_rate=4",
        ),
    ],
)
def test_a_keyword_that_nothing_has_is_refused(distribution, given, message, tmp_path):
    with pytest.raises(UserError, match=message):
        runnel.train(Reinforce(), "toys:Corridor", distribution, run_dir=tmp_path, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("CartPole-v1", {"max_episode_steps": []}),
        ("CartPole-v1", {"max_episode_steps": 0}),
        ("CartPole-v1", {"render_mode": 3}),
        ("FrozenLake-v1", {"map_name": "none"}),
        ("FrozenLake-v1", {"desc": [1, 2]}),
        ("pettingzoo:classic.tictactoe_v3", {"groups": -1}),
        ("gymnax:CartPole-v1", {"gravity": {}}),
    ],
)
def test_settings_that_a_librarys_environment_does_not_take_are_reported(name, settings):
    with pytest.raises(runnel.UserError, match=f"{name}.*{next(iter(settings))}"):
        runnel.build("ppo", name, env_settings=settings)
