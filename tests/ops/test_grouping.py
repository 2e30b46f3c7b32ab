"""Rows grouped by the parameters that are applied to them."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.ops import grouping


@st.composite
def rows_and_places(draw):
    places = draw(st.sampled_from([1, 2, 5]))
    rows = draw(st.sampled_from([1, 7, 70]))  # each is compiled
    return places, np.asarray(draw(st.lists(st.integers(0, places - 1), min_size=rows, max_size=rows)), np.int32)


@settings(deadline=None, max_examples=12)
@given(rows_and_places(), st.sampled_from([1, 4, 9]))
def test_every_row_has_a_slot_of_its_own_in_a_block_of_its_place(drawn, size):
    places, place = drawn
    blocks = grouping.in_blocks(jnp.asarray(place), places, size)
    slots = np.asarray(blocks.slot)
    assert len(set(slots.tolist())) == len(place)
    assert np.asarray(blocks.row).reshape(-1)[slots].tolist() == list(range(len(place)))
    assert np.asarray(blocks.place)[slots // size].tolist() == place.tolist()
    assert blocks.row.shape == (-(-len(place) // size) + places, size)


@settings(deadline=None, max_examples=12)
@given(rows_and_places())
def test_each_row_gets_what_its_own_parameters_give(drawn):
    places, place = drawn
    weights = jnp.arange(places * 3, dtype=jnp.float32).reshape(places, 3)
    rows = {"x": jnp.arange(len(place) * 3, dtype=jnp.float32).reshape(-1, 3), "y": jnp.arange(len(place))}
    given = grouping.apply_by_place(lambda w, row: (w @ row["x"], row["y"]), weights, jnp.asarray(place), rows)
    expected = np.sum(np.asarray(weights)[place] * np.asarray(rows["x"]), axis=1)
    np.testing.assert_allclose(np.asarray(given[0]), expected)
    assert np.asarray(given[1]).tolist() == list(range(len(place)))


def test_parameters_are_gathered_for_blocks_and_not_for_rows():
    """Else eight opponents would move the weights of a network once for every environment."""
    places, rows = 8, 2048
    weights, place = jnp.zeros((places, 64, 64)), jnp.zeros(rows, jnp.int32)
    jaxpr = jax.make_jaxpr(
        lambda w, p, x: grouping.apply_by_place(lambda own, row: row @ own, w, p, x)
    )(weights, place, jnp.zeros((rows, 64)))  # fmt: skip
    largest = max(np.prod(v.aval.shape) for eqn in jaxpr.eqns for v in eqn.outvars)
    assert largest <= (rows // grouping.block_size(rows, places) + places) * 64 * 64
    assert largest < rows * 64 * 64 / 16
