"""Writes to cells done by comparison give the very same numbers, and leave no scatter behind."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runnel.ops.scatters import SMALL, without_scatters


def cell(grid, i, j):
    return grid.at[i, j].set(7)


def row(grid, i, j):
    return grid.at[i].set(jnp.arange(grid.shape[1], dtype=grid.dtype) + j)


def column(grid, i, j):
    return grid.at[:, j].set(jnp.arange(grid.shape[0], dtype=grid.dtype) * i)


def inside_a_jit(grid, i, j):
    return {"out": jax.jit(cell)(grid, i, j) + 1, "as it is": i}


def flags(grid, i, j):
    return (grid > 3).at[i, j].set(True)


def chosen(grid, i, j):
    return jax.lax.cond(i > 0, lambda: grid.at[i, j].set(2), lambda: grid)


@pytest.mark.parametrize("function", [cell, row, column, inside_a_jit, flags, chosen])
def test_gives_the_same_numbers(function):
    grid = jnp.arange(12.0).reshape(3, 4)
    # Past the end nothing is written, from the end numbers count down.
    i, j = jnp.array([0, 2, 1, 3, -1, -4, 2]), jnp.array([0, 3, 4, 1, -2, 1, -9])
    wanted = jax.vmap(function, (None, 0, 0))(grid, i, j)
    found = jax.jit(jax.vmap(without_scatters(function), (None, 0, 0)))(grid, i, j)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert jax.tree.map(lambda x: x.dtype, found) == jax.tree.map(lambda x: x.dtype, wanted)


@pytest.mark.parametrize("function", [cell, row, column, inside_a_jit, flags])
def test_no_scatter_is_left(function):
    grid = jnp.zeros((3, 4))
    assert "scatter" in str(jax.make_jaxpr(function)(grid, 0, 1))
    assert "scatter" not in str(jax.make_jaxpr(without_scatters(function))(grid, 0, 1))


def test_large_arrays_and_other_writes_are_left_alone():
    large = jnp.zeros((SMALL, 2))
    assert "scatter" in str(jax.make_jaxpr(without_scatters(cell))(large, 0, 1))

    def many(grid, i):
        return grid.at[i].set(1)

    assert "scatter" in str(jax.make_jaxpr(without_scatters(many))(jnp.zeros(5), jnp.arange(2)))
