"""A message that goes to a program in one piece is the same message there."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.planning.schemas import empty
from runnel.runtime.programs import row_packing
from runnel.transport.stream import Field

DTYPES = ("|b1", "|u1", "|i1", "<i2", "<i4", "<u4", "<f2", "<f4", "bfloat16")
fields = st.builds(Field, st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(DTYPES))


def filled(schema, seed=0):
    rng = np.random.default_rng(seed)
    arrays = empty(schema)
    for array in arrays:
        array[...] = rng.integers(0, 2 if array.dtype == np.bool_ else 100, array.shape).astype(array.dtype)
    return arrays


@given(schema=st.lists(fields, min_size=1, max_size=6).map(tuple))
@settings(max_examples=60, deadline=None)
def test_a_message_in_one_piece_comes_apart_into_its_arrays(schema):
    arrays = filled(schema)
    message = row_packing.whole(arrays, schema)
    assert isinstance(message, row_packing.Row)
    for found, wanted in zip(row_packing.apart(message), arrays, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_array_equal(np.asarray(found), wanted, strict=True)


def test_a_compiled_program_takes_a_message_as_one_array():
    schema = (Field((3,), "<f4"), Field((2, 2), "|b1"), Field((5,), "|u1"))
    arrays = filled(schema)
    assert len(jax.tree.leaves(row_packing.whole(arrays, schema))) == 1
    for found, wanted in zip(jax.jit(row_packing.apart)(row_packing.whole(arrays, schema)), arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(found), wanted, strict=True)


def test_it_is_the_memory_itself_and_no_copy():
    schema = (Field((3,), "<f4"), Field((2,), "<i4"))
    arrays = filled(schema)
    message = row_packing.whole(arrays, schema)
    arrays[1][...] = 77
    np.testing.assert_array_equal(np.asarray(row_packing.apart(message)[1]), [77, 77])


@pytest.mark.parametrize("dtype", ["<f8", "<i8"])
def test_numbers_that_programs_would_make_shorter_go_as_arrays(dtype):
    schema = (Field((3,), "<f4"), Field((2,), dtype))
    arrays = filled(schema)
    assert row_packing.whole(arrays, schema) is arrays
    with jax.enable_x64(True):
        message = row_packing.whole(arrays, schema)
        assert isinstance(message, row_packing.Row)
        np.testing.assert_array_equal(np.asarray(row_packing.apart(message)[1]), arrays[1], strict=True)
