"""Actions in units and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import UserError
from runnel.nn import bounds_of
from runnel.types import Box

UNEVEN = bounds_of(Box((2, 2), np.dtype(np.float32), -1.0, np.array([[1.0, 3.0], [0.0, -1.0]])), "it")


def test_the_edges_are_one_and_the_middle_is_nought():
    for unit, wanted in ((-1.0, [[-1, -1], [-1, -1]]), (1.0, [[1, 3], [0, -1]]), (0.0, [[0, 1], [-0.5, -1]])):
        np.testing.assert_allclose(UNEVEN.action(np.full(4, unit)), wanted)
    np.testing.assert_array_equal(UNEVEN.action(np.full(4, 7.0)), UNEVEN.action(np.ones(4)))


def test_there_and_back_but_for_an_element_that_has_no_choice():
    unit = np.array([-0.3, 0.2, 1.0, 0.5])
    np.testing.assert_allclose(UNEVEN.unit(UNEVEN.action(unit)), [-0.3, 0.2, 1.0, 0.0], rtol=1e-5)


@settings(deadline=None, max_examples=30)
@given(
    shape=st.sampled_from([(), (1,), (2, 3)]),
    low=st.floats(-1e4, 1e4, width=32, allow_subnormal=False),
    width=st.floats(0.0, 1e4, width=32, allow_subnormal=False),
    seed=st.integers(0, 1000),
)
def test_actions_are_within_bounds(shape, low, width, seed):
    space = Box(shape, np.dtype(np.float32), np.float32(low), np.float32(low) + np.float32(width))
    bounds = bounds_of(space, "it")
    unit = np.random.default_rng(seed).normal(size=bounds.size).astype(np.float32)  # some of it beyond 1
    for each in (unit, np.sign(unit)):
        action = np.asarray(bounds.action(each))
        assert (action.shape, action.dtype) == (shape, np.float32)
        assert (action >= space.low).all()
        assert (action <= space.high).all()


def test_what_has_no_bounds_is_refused():
    with pytest.raises(UserError, match=r"it: found .* from -2 to inf, expected real numbers within bounds; give its"):
        bounds_of(Box((2,), np.dtype(np.float32), -2.0, np.array([1.0, np.inf])), "it")
