"""The gymnax adapter, on whichever version is installed."""

import sys
import warnings

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.environment import JaxEnvironment
from runnel.envs.gymnax import LIMIT_IS_THE_END, GymnaxEnvironment
from runnel.errors import UserError
from runnel.types import Box, Discrete

BROKEN = {"MNISTBandit-bsuite": "cannot make"}  # it wants the network
if not hasattr(gymnax.environments.environment.Environment, "is_truncated"):
    BROKEN["SimpleBandit-bsuite"] = "does not work with gymnax 0.0.9"
NAMES = [name for name in gymnax.registered_envs if name not in BROKEN]
NO_64_BITS = {"MemoryChain-bsuite", "MetaMaze-misc", "GaussianBandit-misc", "Freeway-MinAtar"}
"""Mix 32 and 64 bits inside, in one version or the other."""


def types(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def an_action(environment):
    space = environment.spec.groups["agent"].action
    return jax.ShapeDtypeStruct(space.shape, space.dtype)


def check_types(environment):
    """A step leaves every type as a reset made it, weak types too, and the spec says which they are."""
    assert isinstance(environment, JaxEnvironment)
    key = jax.eval_shape(jax.random.key, 0)
    state, observation = jax.eval_shape(environment.reset, key)
    stepped, timestep = jax.eval_shape(environment.step, state, an_action(environment), key)
    assert types(stepped) == types(state)
    assert types(timestep.observation) == types(observation)
    space = environment.spec.groups["agent"].observation
    assert (observation.shape, observation.dtype) == (space.shape, space.dtype)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, observation, timestep)))
    assert (timestep.reward.shape, timestep.reward.dtype) == ((), jnp.result_type(float))
    assert timestep.terminated.dtype == timestep.truncated.dtype == jnp.bool


@pytest.mark.parametrize("name", NAMES)
def test_types_are_stable(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_types(GymnaxEnvironment(name))


@pytest.mark.parametrize("name", sorted(set(NAMES) - NO_64_BITS))
def test_types_are_stable_in_64_bits(name):
    with jax.enable_x64(True):
        check_types(GymnaxEnvironment(name))


def test_one_environment_serves_32_and_64_bits():
    environment = GymnaxEnvironment("CartPole-v1")
    check_types(environment)
    with jax.enable_x64(True):
        check_types(environment)
    check_types(environment)


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_what_gymnax_cannot_do_is_reported(name):
    with pytest.raises(UserError, match=BROKEN[name]):
        GymnaxEnvironment(name)


def rollout(environment, action, steps):
    """One episode's steps, past its end too; jitted, scanned."""

    @jax.jit
    def run(key):
        state, _ = environment.reset(key)

        def step(state, key):
            return environment.step(state, action(environment, state), key)

        return jax.lax.scan(step, state, jax.random.split(key, steps))[1]

    return jax.device_get(run(jax.random.key(0)))


def zero(environment, state):
    space = environment.spec.groups["agent"].action
    return jnp.zeros(space.shape, space.dtype)


LIMITED = ["CartPole-v1", "Pendulum-v1", "BernoulliBandit-misc", "DiscountingChain-bsuite", "Reacher-misc"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in LIMITED else [pytest.mark.slow]) for name in NAMES]
)
def test_the_limit_is_a_truncation_unless_it_is_the_task(name):
    limit = 3
    environment = GymnaxEnvironment(name, max_steps_in_episode=limit)
    assert environment.spec.max_episode_steps == limit
    steps = rollout(environment, zero, limit)
    ended = steps.terminated | steps.truncated
    assert not (steps.terminated & steps.truncated).any()
    if name == "SimpleBandit-bsuite":
        assert steps.terminated.all()
    else:
        assert ended.tolist() == [False, False, True]
        assert bool(steps.terminated[-1]) == (name in LIMIT_IS_THE_END)


def balance(_, state):
    return (0.1 * state.x + 0.3 * state.x_dot + 3 * state.theta + state.theta_dot > 0).astype(jnp.int32)


def test_cartpole_is_truncated_at_500_steps_and_terminates_when_it_falls():
    steps = rollout(GymnaxEnvironment("CartPole-v1"), balance, 500)
    assert not steps.terminated.any()
    assert np.flatnonzero(steps.truncated).tolist() == [499]
    assert (steps.reward == 1).all()
    last = steps.observation[-2:]
    np.testing.assert_allclose(last[1, 0], last[0, 0] + 0.02 * last[0, 1], rtol=1e-5)

    fallen = rollout(GymnaxEnvironment("CartPole-v1"), zero, 20)
    assert fallen.terminated.any()
    assert not fallen.truncated.any()


def test_a_fall_at_the_limit_is_a_termination():
    fallen = int(np.argmax(rollout(GymnaxEnvironment("CartPole-v1"), zero, 20).terminated)) + 1
    steps = rollout(GymnaxEnvironment("CartPole-v1", max_steps_in_episode=fallen), zero, fallen)
    assert steps.terminated.tolist() == [False] * (fallen - 1) + [True]
    assert not steps.truncated.any()


def test_it_plays_as_gymnax_plays():
    """Until an episode ends, bit for bit what `gymnax.make(...)` gives with the same keys."""
    ours, (theirs, params) = GymnaxEnvironment("CartPole-v1"), gymnax.make("CartPole-v1")
    key = jax.random.key(5)
    # Parameters closed over, as ours are: passed in, they are no constants, and the last bits differ.
    step, step_t = (
        jax.jit(ours.step),
        jax.jit(lambda key, state, action: theirs.step_env(key, state, action, params)),
    )
    state, observation = ours.reset(key)
    observation_t, state_t = theirs.reset_env(key, params)
    for n in range(8):
        np.testing.assert_array_equal(observation, observation_t)
        key = jax.random.fold_in(key, n)
        state, timestep = step(state, jnp.int32(n % 2), key)
        observation_t, state_t, reward, done, _ = step_t(key, state_t, jnp.int32(n % 2))
        observation = timestep.observation
        assert (timestep.reward, timestep.terminated) == (reward, done)


def test_actions_are_clipped_to_their_bounds():
    environment = GymnaxEnvironment("MountainCarContinuous-v0")
    action = environment.spec.groups["agent"].action
    assert isinstance(action, Box)
    assert (action.shape, action.low.item(), action.high.item()) == ((1,), -1, 1)
    state, _ = environment.reset(jax.random.key(0))
    step = jax.jit(environment.step)
    wild, most = (step(state, jnp.array([x]), jax.random.key(1)) for x in (50.0, 1.0))
    jax.tree.map(np.testing.assert_array_equal, wild, most)
    np.testing.assert_allclose(wild[1].reward, -0.1, rtol=1e-6)  # gymnax 0.0.9 charges for the unclipped action


def test_settings_are_parameters_or_arguments():
    light = GymnaxEnvironment("CartPole-v1", gravity=0)  # an integer where a real is wanted
    check_types(light)
    assert GymnaxEnvironment("DeepSea-bsuite", size=5).spec.groups["agent"].observation.shape == (5, 5)
    sea = GymnaxEnvironment("DeepSea-bsuite", size=5, unscaled_move_cost=0.5, max_steps_in_episode=4)
    assert sea.spec.max_episode_steps == 4
    assert GymnaxEnvironment("Acrobot-v1", available_torque=[-2, 0, 2]).spec.groups["agent"].action == Discrete(3)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("CartPol-v1", {}, "no gymnax environment is called 'CartPol-v1'; did you mean 'CartPole-v1'"),
        ("CartPole-v1", {"gravty": 1.0}, "has no setting 'gravty'; did you mean 'gravity'"),
        ("CartPole-v1", {"gravity": "much"}, "setting gravity is 'much'; expected a float, like 9.8"),
        ("CartPole-v1", {"max_steps_in_episode": 2.5}, "setting max_steps_in_episode is 2.5; expected a int"),
        ("Acrobot-v1", {"available_torque": [1, 2]}, "setting available_torque is"),
    ],
)
def test_mistakes_are_reported(name, settings, words):
    with pytest.raises(UserError, match=words):
        GymnaxEnvironment(name, **settings)


def test_without_gymnax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnax", None)
    with pytest.raises(UserError, match=r"gymnax:CartPole-v1 needs 'gymnax'.*pip install 'runnel\[gymnax\]'"):
        GymnaxEnvironment("CartPole-v1")


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "Pendulum-v1", pytest.param("Breakout-MinAtar", marks=pytest.mark.slow), "Catch-bsuite"],
)
def test_pictures(name):
    environment = GymnaxEnvironment(name)
    state, _ = environment.reset(jax.random.key(0))
    picture = environment.render(state)
    assert (picture.dtype, picture.ndim, picture.shape[-1]) == (np.uint8, 3, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 1


def test_what_cannot_be_drawn_says_so():
    environment = GymnaxEnvironment("Reacher-misc")
    state, _ = environment.reset(jax.random.key(0))
    with pytest.raises(UserError, match="cannot be rendered"):
        environment.render(state)
