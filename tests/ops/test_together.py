"""Rows that are traced together decide together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.ops.primitives import equations
from runnel.ops.together import branch, most

ROWS = jnp.array([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]])


def positive(row: Any) -> Any:
    """Doubled; numbers below zero become zero."""
    return branch(jnp.all(row > 0), lambda x: x * 2, lambda x: jnp.where(x > 0, x * 2, 0), row)


def test_the_usual_branch_is_taken_where_all_rows_allow_it() -> None:
    np.testing.assert_array_equal(positive(ROWS[0]), [2, 4])
    np.testing.assert_array_equal(positive(ROWS[1]), [6, 0])
    np.testing.assert_array_equal(jax.vmap(positive)(ROWS), [[2, 4], [6, 0], [10, 12]])
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.vmap(positive)))(ROWS[None])[0], jax.vmap(positive)(ROWS))


def test_one_predicate_decides_for_all_rows() -> None:
    for mapped, rows in ((jax.vmap(positive), ROWS), (jax.vmap(jax.vmap(positive)), ROWS[None])):
        (cond,) = [each for each in equations(jax.make_jaxpr(mapped)(rows)) if each.primitive.name == "cond"]
        assert cond.invars[0].aval.shape == ()


def test_what_all_rows_share_stays_shared() -> None:
    def scaled(row: Any, scale: Any) -> Any:
        return branch(scale > 0, lambda both: both[0] * both[1], lambda both: both[0], (row, scale))

    np.testing.assert_array_equal(jax.vmap(scaled, (0, None))(ROWS, 2.0), ROWS * 2)


def test_loops_of_all_rows_have_the_most_turns_of_any() -> None:
    def turns(count: Any) -> Any:
        return jax.lax.fori_loop(0, most(count), lambda i, found: found + (i < count), 0)

    counts = jnp.array([3, 1, 5])
    np.testing.assert_array_equal(jax.vmap(turns)(counts), counts)
    (loop,) = [each for each in equations(jax.make_jaxpr(jax.vmap(turns))(counts)) if each.primitive.name == "while"]
    assert loop.params["cond_jaxpr"].out_avals[0].shape == ()
    assert int(turns(4)) == 4
