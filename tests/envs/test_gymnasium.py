"""The Gymnasium adapter: against Gymnasium itself, and where users trip."""

import subprocess
import sys

import gymnasium
import numpy as np
import own_envs
import pytest
from playing import empty, play, random_actions

from runnel.environment import episode_seed
from runnel.envs.gymnasium import GymnasiumEnvironment
from runnel.errors import UserError
from runnel.types import Box, Discrete, MultiDiscrete


def balance(observation):
    """Keeps CartPole upright for as long as one likes."""
    x, x_dot, theta, theta_dot = np.moveaxis(observation, -1, 0)
    return (0.1 * x + 0.3 * x_dot + 3 * theta + theta_dot > 0).astype(np.int32)


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "HalfCheetah-v5"])
def test_the_vector_plays_as_a_plain_loop_does(name):
    seed, index, steps = 3, 5, 120
    environment = GymnasiumEnvironment(name)
    vector, out, rng = environment.open([index], seed), empty(environment.spec, 1), np.random.default_rng(0)
    plain, episode = gymnasium.make(name), 0
    observation, _ = plain.reset(seed=episode_seed(seed, index, 0))
    vector.reset(out.observation)
    np.testing.assert_array_equal(out.observation["agent"][0], observation.astype(np.float32))
    for _ in range(steps):
        action = random_actions(environment.spec, 1, rng)
        inside = np.clip(action["agent"], -1, 1)[0] if name.startswith("Half") else action["agent"][0]
        observation, reward, terminated, truncated, _ = plain.step(inside)
        vector.step(action, out)
        assert out.reward["agent"][0] == np.float32(reward)
        assert (out.terminated[0], out.truncated[0]) == (terminated, truncated)
        if terminated or truncated:
            np.testing.assert_array_equal(out.last_observation["agent"][0], observation.astype(np.float32))
            episode += 1
            observation, _ = plain.reset(seed=episode_seed(seed, index, episode))
        np.testing.assert_array_equal(out.observation["agent"][0], observation.astype(np.float32))
        assert vector.episode_numbers().tolist() == [episode]
    vector.close()


def test_cartpole_is_truncated_at_500_steps_and_its_last_observation_is_the_true_one():
    environment = GymnasiumEnvironment("CartPole-v1")
    assert environment.spec.max_episode_steps == 500
    vector, out = environment.open(range(3), 0), empty(environment.spec, 3)
    vector.reset(out.observation)
    for step in range(1, 1001):
        before = out.observation["agent"].copy()
        vector.step({"agent": balance(before)}, out)
        assert not out.terminated.any()
        assert out.truncated.all() == (step % 500 == 0)
        if step % 500 == 0:
            # One Euler step of CartPole moves the cart by 0.02 times its speed, and nothing else does.
            last = out.last_observation["agent"]
            np.testing.assert_allclose(last[:, 0], before[:, 0] + 0.02 * before[:, 1], rtol=0, atol=1e-6)
            assert (np.abs(out.observation["agent"]) <= 0.05).all()  # where CartPole begins
    assert vector.episode_numbers().tolist() == [2, 2, 2]


def test_a_restored_episode_is_cut_where_it_would_have_been():
    environment = GymnasiumEnvironment("Pendulum-v1")
    played = play(environment, 150)
    on = play(environment, 60, restore=played.episodes)
    truncated = [bool(step.truncated.all()) for step in on.steps]
    assert truncated == [step == 50 for step in range(1, 61)]


def test_terminated_wins_where_an_environment_says_both():
    steps = play(GymnasiumEnvironment(own_envs.Countdown), 6).steps
    assert [bool(step.terminated.all()) for step in steps] == [False, False, True, False, False, True]
    assert not any(step.truncated.any() for step in steps)


def test_numbers_that_begin_elsewhere_begin_at_0():
    environment = GymnasiumEnvironment(own_envs.Countdown)
    spec = environment.spec.groups["agent"]
    assert (spec.observation, spec.action) == (Discrete(4), Discrete(3))
    vector, out = environment.open(range(2), 0), empty(environment.spec, 2)
    vector.reset(out.observation)
    assert out.observation["agent"].tolist() == [3, 3]  # the environment's 8
    vector.step({"agent": np.array([0, 2], np.int32)}, out)
    assert out.reward["agent"].tolist() == [5.0, 7.0]  # its reward is the action it was given


def test_a_nested_observation_keeps_its_tree_and_narrows_its_types():
    spec = GymnasiumEnvironment(own_envs.Camera).spec.groups["agent"]
    assert list(spec.observation) == ["arm", "lamps", "picture"]
    assert spec.observation["picture"].dtype == np.uint8
    assert spec.observation["lamps"].dtype == np.int8
    place, count = spec.observation["arm"]
    assert (place.dtype, place.shape, count) == (np.float32, (2,), Discrete(4))
    assert spec.action == MultiDiscrete((3, 2))


def test_actions_are_clipped_at_the_door_and_not_in_the_trajectory():
    environment = GymnasiumEnvironment(own_envs.Drunkard)
    action_space = environment.spec.groups["agent"].action
    assert isinstance(action_space, Box)
    np.testing.assert_array_equal(action_space.high, [1, 2])
    vector, out = environment.open([0], 0), empty(environment.spec, 1)
    vector.reset(out.observation)
    action = np.array([[100.0, -100.0]], np.float32)
    vector.step({"agent": action}, out)  # the environment asserts that its space contains what it is given
    assert action.tolist() == [[100.0, -100.0]]


def test_an_environment_may_overwrite_what_it_showed():
    played = play(GymnasiumEnvironment(own_envs.Drunkard), 100, indices=range(2))
    ends = [step for step in played.steps if step.terminated.any()]
    assert ends
    for step in ends:
        rows = step.terminated
        assert (step.last_observation["agent"][rows] != step.observation["agent"][rows]).any()


def test_settings_reach_the_environment():
    assert GymnasiumEnvironment("CartPole-v1", {"max_episode_steps": 9}).spec.max_episode_steps == 9
    calm, windy = (play(GymnasiumEnvironment(own_envs.Drunkard, {"wind": w}), 1).steps[0] for w in (0.0, 5.0))
    np.testing.assert_allclose(windy.observation["agent"] - calm.observation["agent"], 5.0, rtol=0, atol=1e-5)


def test_a_factory_with_its_own_wrappers_keeps_them():
    environment = GymnasiumEnvironment(own_envs.limited, {"steps": 6})
    assert environment.spec.max_episode_steps == 6
    assert environment.spec.name == "own_envs:limited"
    steps = play(environment, 12, indices=range(2)).steps
    assert [bool(step.truncated.all()) for step in steps] == [False] * 5 + [True] + [False] * 5 + [True]


def test_checks_are_taken_off_wherever_they_are():
    vector = GymnasiumEnvironment(own_envs.limited).open([0], 0)
    environment, kinds = vector.bare[0], []
    while isinstance(environment, gymnasium.Wrapper):
        kinds.append(type(environment).__name__)
        environment = environment.env
    assert kinds == ["FlattenObservation", "TimeLimit"]
    assert not isinstance(GymnasiumEnvironment("CartPole-v1").open([0], 0).bare[0], gymnasium.Wrapper)


@pytest.mark.parametrize("made_from", ["CartPole-v1", own_envs.limited])
def test_pictures(made_from):
    environment = GymnasiumEnvironment(made_from)
    vector = environment.open([0], 0, render=True)
    vector.reset(empty(environment.spec, 1).observation)
    picture = vector.render(0)
    assert (picture.dtype, picture.ndim, picture.shape[-1]) == (np.uint8, 3, 3)
    vector.close()


def test_an_environment_that_cannot_be_drawn_says_so():
    with pytest.raises(UserError, match=r"cannot be rendered: expected render mode 'rgb_array', .* of ansi"):
        GymnasiumEnvironment(own_envs.Countdown).open([0], 0, render=True)
    with pytest.raises(UserError, match=r"expected render mode 'rgb_array', its metadata has no render_modes\. Let it"):
        GymnasiumEnvironment(own_envs.Drunkard).open([0], 0, render=True)


@pytest.mark.parametrize(
    ("made_from", "kwargs", "words"),
    [
        ("CartPol-v1", {}, "no Gymnasium environment is called 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ("Nowhere/CartPole-v1", {}, "no Gymnasium environment is called 'Nowhere/CartPole-v1'; did you mean"),
        ("HalfCheetah-v99", {}, "did you mean 'HalfCheetah-v5'"),
        ("not an id", {}, "Gymnasium cannot make 'not an id'"),
        (
            "CartPole-v1",
            {"gravty": 1},
            "CartPole-v1 has no setting 'gravty'; known: max_episode_steps, sutton_barto_reward",
        ),
        ("CartPole-v1", {"max_episode_stps": 1}, "did you mean 'max_episode_steps'"),
        (own_envs.gives_a_string, {}, "own_envs:gives_a_string returned a str; expected a new gymnasium.Env"),
    ],
)
def test_mistakes_are_reported(made_from, kwargs, words):
    with pytest.raises(UserError, match=words):
        GymnasiumEnvironment(made_from, kwargs)


def test_what_is_not_installed_is_named(monkeypatch):
    """As on a machine without MuJoCo: Gymnasium says it its way, we name our extra."""

    def missing(*_, **__):
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install ...`")

    monkeypatch.setattr(gymnasium, "make", missing)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"HalfCheetah-v5 needs MuJoCo.*pip install 'runnel\[mujoco\]'"):
        GymnasiumEnvironment("HalfCheetah-v5")


def test_a_wrong_shape_is_reported_and_not_broadcast():
    class Wrong(own_envs.Drunkard):
        def reset(self, **kwargs):
            return np.zeros(1), {}

    class NoInfo(own_envs.Drunkard):
        def reset(self, **kwargs):
            return np.zeros(2)

    environment = GymnasiumEnvironment(NoInfo)
    with pytest.raises(UserError, match=r"expected \(observation, info\); return `observation, \{\}` from reset$"):
        environment.open([0], 0).reset(empty(environment.spec, 1).observation)
    environment = GymnasiumEnvironment(Wrong)
    with pytest.raises(UserError, match=r"shape \(1,\), its observation_space expects \(2,\)"):
        environment.open([0], 0).reset(empty(environment.spec, 1).observation)


def test_workers_of_host_environments_never_import_jax():
    program = """
import sys
import numpy as np
from runnel.envs import make, schemes
from runnel.environment import HostStep
from runnel.types import zeros
for name in ("CartPole-v1", "HalfCheetah-v5"):
    environment = make(name)
    observation = environment.spec.groups["agent"].observation
    rows, last = ({"agent": zeros(observation, 2)} for _ in range(2))
    out = HostStep(rows, {"agent": np.zeros(2)}, np.zeros(2, bool), np.zeros(2, bool), last)
    vector = environment.open(range(2), 0)
    vector.reset(out.observation)
    vector.step({"agent": zeros(environment.spec.groups["agent"].action, 2)}, out)
    vector.close()
schemes()
assert "jax" not in sys.modules and "gymnax" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_environment_still_refuses_actions_that_are_not_in_its_space():
    """Its space is replaced by one that answers sooner."""
    environment = GymnasiumEnvironment("CartPole-v1")
    vector, out = environment.open(range(3), 0), empty(environment.spec, 3)
    vector.reset(out.observation)
    vector.step({"agent": np.array([-1, 1, 2], np.int32)}, out)
    assert [(failure.row, "AssertionError" in failure.what) for failure in vector.failures()] == [(0, True), (2, True)]
    vector.close()


def test_an_id_registered_with_a_callable_names_its_settings(monkeypatch):
    registry = dict(gymnasium.registry)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", registry)
    monkeypatch.setattr(gymnasium, "registry", registry)
    gymnasium.register("Own-v0", entry_point=gymnasium.envs.classic_control.CartPoleEnv)
    with pytest.raises(
        UserError, match="Own-v0 has no setting 'gravty'; known: max_episode_steps, sutton_barto_reward"
    ):
        GymnasiumEnvironment("Own-v0", {"gravty": 1})
