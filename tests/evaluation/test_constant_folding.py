"""A traced function keeps what its outputs depend on, and computes the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.evaluation.constant_folding import MOST_ELEMENTS, fold

X, Y = (jax.ShapeDtypeStruct((3,), jnp.float32) for _ in range(2))


def names(folded):
    return [step.equation.primitive.name for step in folded.steps]


def test_calls_are_written_out_and_give_the_same():
    @jax.jit
    def inner(x):
        return jax.nn.relu(x) * 2.0  # relu has a derivative of its own

    def function(x, y):
        return inner(x) + jax.checkpoint(jnp.tanh)(y), jax.nn.softmax(x)

    folded = fold(function, X, Y)
    assert not {"jit", "pjit", "custom_jvp_call", "checkpoint", "remat2"} & set(names(folded))
    x, y = np.array([-1, 0, 2], np.float32), np.array([3, -1, 0.5], np.float32)
    for found, wanted in zip(folded.run([x, y]), function(x, y), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    batch = jax.vmap(lambda *rows: folded.run(rows))(jnp.stack([x, y]), jnp.stack([y, x]))
    np.testing.assert_allclose(batch[1][1], function(y, x)[1], rtol=1e-6)


def test_what_depends_on_no_input_is_computed_once():
    def function(x):
        scale = jax.random.uniform(jax.random.key(1)) + jnp.sqrt(jnp.arange(3.0)).sum()
        return (x * scale,)

    folded = fold(function, X)
    assert names(folded) == ["mul"]
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_allclose(folded.run([x])[0], function(x)[0], rtol=1e-6)


def test_of_a_choice_that_is_known_only_what_is_chosen_stays():
    def function(x, y):
        never = jax.random.bernoulli(jax.random.key(1), 0.0)
        one = jnp.where(never, y, jnp.sin(x))
        return (jax.lax.cond(never, lambda: jnp.cos(y), lambda: one + 1.0),)

    folded = fold(function, X, Y)
    assert names(folded) == ["sin", "add"]
    assert folded.used == {0}
    np.testing.assert_allclose(folded.run([np.ones(3, np.float32), None])[0], np.sin(1) + 1, rtol=1e-6)


def test_a_choice_between_elements_stays():
    def function(x, y):
        return (jnp.where(jnp.array([True, False, True]), x, y),)

    folded = fold(function, X, Y)
    assert folded.used == {0, 1}
    np.testing.assert_array_equal(folded.run([np.ones(3), np.zeros(3)])[0], [1, 0, 1])


def test_outputs_may_be_inputs_or_constants():
    folded = fold(lambda x, y: (y, jnp.zeros(2), y), X, Y)
    assert folded.steps == ()
    assert folded.used == {1}
    found = folded.run([None, np.ones(3)])
    np.testing.assert_array_equal(found[0], 1)
    np.testing.assert_array_equal(found[1], 0)


def test_large_constants_are_not_stored():
    def function(x):
        return (x.sum() + jnp.zeros(MOST_ELEMENTS + 1),)

    folded = fold(function, X)
    assert max(np.size(ref) for step in folded.steps for ref in step.inputs) < 10
    assert folded.run([np.ones(3, np.float32)])[0].shape == (MOST_ELEMENTS + 1,)


@pytest.mark.parametrize("used", [True, False])
def test_folding_calls_nothing_outside_of_jax(used):
    def called(x):
        raise AssertionError("it was called")

    def function(x):
        def told():
            return jax.pure_callback(called, jax.ShapeDtypeStruct((), jnp.float32), 1.0)

        looped, _ = jax.lax.scan(lambda carry, _: (carry + told(), None), jnp.float32(0), None, length=2)
        jax.debug.callback(called, x)
        return (x + told() + looped if used else x,)

    folded = fold(function, X)
    assert ({"pure_callback", "scan"} <= set(names(folded))) == used


def test_primitives_can_be_replaced():
    folded = fold(lambda x: (jnp.tanh(x),), X)
    (found,) = folded.run([np.zeros(3)], {"tanh": lambda x, **settings: [x + 7]})
    np.testing.assert_array_equal(found, 7)
