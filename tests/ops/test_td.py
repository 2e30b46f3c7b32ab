"""Errors of temporal differences are those of rlax."""

import subprocess
import sys

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import rlax

from runnel.nn.policies import Gaussian, SquashedGaussian
from runnel.ops.critic_loss import td_errors
from runnel.ops.n_step import Transition
from runnel.ops.returns import serial_lambda_returns
from runnel.ops.td import double_q_error, td_error

RANDOM = np.random.default_rng(0)
N, ACTIONS = 16, 5


def drawn(*shape: int) -> jax.Array:
    return jnp.asarray(RANDOM.normal(size=shape), jnp.float32)


def test_of_values_with_their_gradient() -> None:
    values = drawn(N), drawn(N), drawn(N), drawn(N)
    for function in (lambda f: f, lambda f: jax.grad(lambda *x: f(*x).sum(), argnums=(0, 1, 2, 3))):
        found, expected = function(td_error)(*values), function(jax.vmap(rlax.td_learning))(*values)
        np.testing.assert_allclose(np.stack([*found]), np.stack([*expected]), rtol=1e-6)


def test_of_action_values_with_their_gradient() -> None:
    q_tm1, q_t, selector = drawn(N, ACTIONS), drawn(N, ACTIONS), drawn(N, ACTIONS)
    a_tm1 = jnp.asarray(RANDOM.integers(0, ACTIONS, N))
    r_t, discount_t = drawn(N), drawn(N)

    def ours(q_tm1, q_t, selector):
        return double_q_error(q_tm1, a_tm1, r_t, discount_t, q_t, selector)

    def theirs(q_tm1, q_t, selector):
        return jax.vmap(rlax.double_q_learning)(q_tm1, a_tm1, r_t, discount_t, q_t, selector)

    np.testing.assert_allclose(ours(q_tm1, q_t, selector), theirs(q_tm1, q_t, selector), rtol=1e-6)
    ways = (jax.grad(lambda *q, f=f: f(*q).sum(), argnums=(0, 1, 2))(q_tm1, q_t, selector) for f in (ours, theirs))
    for found, expected in zip(*ways, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_of_several_critics() -> None:
    q_tm1, v_t, r_t, discount_t = drawn(N, 2), drawn(N), drawn(N), drawn(N)
    items = Transition(*[None] * len(Transition._fields))._replace(r_t=r_t, discount_t=discount_t)
    expected = jax.vmap(jax.vmap(rlax.td_learning, (0, None, None, None)))(q_tm1, r_t, discount_t, v_t)
    np.testing.assert_allclose(td_errors(q_tm1, items, v_t), expected, rtol=1e-6)


def test_lambda_returns_step_by_step() -> None:
    values = drawn(7, N), drawn(7, N), drawn(7, N), jnp.asarray(RANDOM.random((7, N)), jnp.float32)
    expected = jax.vmap(rlax.lambda_returns, (1, 1, 1, 1), 1)(*values)
    np.testing.assert_allclose(serial_lambda_returns(*values), expected, rtol=1e-5)


def test_the_log_probability_of_a_squashed_action_is_that_of_distrax() -> None:
    mean, log_std, key = 4 * drawn(N, 3), drawn(N, 3), jax.random.key(1)
    action, log_prob = SquashedGaussian(mean, log_std).sample_and_log_prob(key)
    before = Gaussian(mean, log_std).sample(key)
    squashed, slope = distrax.Tanh().forward_and_log_det(before)
    np.testing.assert_allclose(action, squashed, rtol=1e-6)
    expected = Gaussian(mean, log_std).log_prob(before) - slope.sum(-1)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5, atol=1e-5)


def test_only_c51_imports_tensorflow_probability() -> None:
    """It would take a second of every process that starts."""
    code = (
        "import sys, runnel.execution.session.session, runnel.launch.host as host, importlib\n"
        "from runnel import algorithms\n"
        "for name in host.JAX_MODULES: importlib.import_module(name)\n"
        "for name in set(algorithms.names()) - {'c51'}: algorithms.load(name)\n"
        "print({'rlax', 'distrax', 'tensorflow_probability'} & sys.modules.keys())\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
