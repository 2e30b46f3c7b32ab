"""The Brax adapter. Physics takes long to compile, so most tests use `fast`, which has none."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.environment import JaxEnvironment
from runnel.envs.brax import BraxEnvironment
from runnel.errors import UserError
from runnel.ops.autoreset import autoreset_step

pytest.importorskip("brax")


def types(tree):
    return [(leaf.shape, leaf.dtype, leaf.weak_type) for leaf in jax.tree.leaves(tree)]


def check_types(environment):
    """A step leaves every type as a reset made it, weak types too, and the spec says which they are."""
    assert isinstance(environment, JaxEnvironment)
    key, spec = jax.eval_shape(jax.random.key, 0), environment.spec.groups["agent"]
    state, observation = jax.eval_shape(environment.reset, key)
    action = jax.ShapeDtypeStruct(spec.action.shape, spec.action.dtype)
    stepped, timestep = jax.eval_shape(environment.step, state, action, key)
    assert types(stepped) == types(state)
    assert types(timestep.observation) == types(observation) == [(spec.observation.shape, np.float32, False)]
    assert not any(leaf.weak_type for leaf in jax.tree.leaves((state, observation, timestep)))
    assert (timestep.reward.shape, timestep.reward.dtype) == ((), jnp.result_type(float))


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("fast", None),
        *(
            pytest.param("reacher", backend, marks=pytest.mark.slow)
            for backend in ("generalized", "spring", "positional", "mjx")
        ),
        *(pytest.param(name, "generalized", marks=pytest.mark.slow) for name in ("ant", "halfcheetah", "humanoid")),
    ],
)
def test_types_are_stable(name, backend):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        environment = BraxEnvironment(name, **({"backend": backend} if backend else {}))
        check_types(environment)
        with jax.enable_x64(True):
            check_types(environment)


def test_the_limit_is_a_truncation():
    environment = BraxEnvironment("fast", episode_length=3)
    assert environment.spec.max_episode_steps == 3

    @jax.jit
    def run(key):
        def step(state, key):
            return environment.step(state, jnp.zeros(1), key)

        return jax.lax.scan(step, environment.reset(key)[0], jax.random.split(key, 3))[1]

    steps = jax.device_get(run(jax.random.key(0)))
    assert not steps.terminated.any()
    assert steps.truncated.tolist() == [False, False, True]
    assert steps.metrics == ()


@pytest.mark.slow
def test_metrics_of_brax_are_reported():
    environment = BraxEnvironment("reacher", backend="spring")
    state, _ = environment.reset(jax.random.key(0))
    _, timestep = jax.jit(environment.step)(state, jnp.zeros(2), jax.random.key(1))
    assert {name: (value.shape, value.dtype) for name, value in timestep.metrics.items()} == {
        "reward_ctrl": ((), np.float32), "reward_dist": ((), np.float32),
    }  # fmt: skip


@pytest.mark.slow
def test_a_fallen_pole_is_a_termination_and_the_next_episode_begins():
    environment = BraxEnvironment("inverted_pendulum", backend="spring")

    @jax.jit
    def run(key):
        def step(now, key):
            state, observation = now
            fresh_key, step_key = jax.random.split(key)
            fresh = environment.reset(fresh_key)
            state, after, timestep = autoreset_step(environment, state, jnp.ones(1), step_key, fresh)
            return (state, after), (observation, after, timestep)

        return jax.lax.scan(step, environment.reset(key), jax.random.split(key, 100))[1]

    before, after, steps = jax.device_get(run(jax.random.key(0)))
    ends = np.flatnonzero(steps.terminated)
    assert len(ends) > 1
    assert not steps.truncated.any()
    assert (np.abs(steps.observation[ends, 1]) > 0.2).all()  # the true last angle
    assert (np.abs(after[ends]) <= 0.011).all()  # a start
    assert len(np.unique(after[ends], axis=0)) == len(ends)
    assert len(before) == 100


@pytest.mark.slow
def test_actions_are_clipped_to_their_bounds():
    environment = BraxEnvironment("inverted_pendulum", backend="spring")
    state, _ = jax.jit(environment.reset)(jax.random.key(0))
    step = jax.jit(partial(environment.step, key=jax.random.key(1)))
    wild, most = (step(state, jnp.array([x])) for x in (50.0, 1.0))
    for a, b in zip(jax.tree.leaves(wild), jax.tree.leaves(most), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("aunt", {}, "no Brax environment is called 'aunt'; did you mean 'ant'"),
        ("reacher", {"backend": "bullet"}, "cannot be made with backend=bullet: backend should be in"),
        ("ant", {"legs": 4}, "cannot be made with legs=4.*legs"),
    ],
)
def test_mistakes_are_reported(name, settings, words):
    with pytest.raises(UserError, match=words):
        BraxEnvironment(name, **settings)
