"""Comparisons of parameters fail where a number is not one."""

import json

import numpy as np
import pytest
from gaps import beyond, largest_gap

ONES, OTHERS = np.ones(3), np.array([1.0, 1.5, 1.0])
LOST, ENDLESS = np.array([1.0, np.nan, 1.0]), np.array([np.inf, 1.0, 1.0])


def test_the_largest_gap_is_that_of_any_array():
    assert largest_gap([ONES, ONES], [ONES, ONES]) == 0.0
    assert largest_gap([ONES, OTHERS], [ONES, ONES]) == largest_gap([OTHERS, ONES], [ONES, ONES]) == 0.5
    assert largest_gap([np.zeros((0, 2)), np.int32(3)], [np.zeros((0, 2)), np.int32(1)]) == 2.0
    assert largest_gap([np.uint8([1])], [np.uint8([3])]) == 2.0


@pytest.mark.parametrize("lost", [LOST, ENDLESS], ids=["nan", "inf"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_number_that_is_not_one_is_beyond_every_limit(lost, place):
    """Wherever it is, in one or in both, and after it has been printed as JSON."""
    with_it, without = [lost if k == place else ONES for k in range(3)], [ONES] * 3
    for found, expected in ((with_it, without), (without, with_it), (with_it, with_it)):
        gaps = json.loads(json.dumps({"first": 0.0, "this": largest_gap(found, expected), "last": 0.0}))
        assert list(beyond(gaps, 1e-8)) == ["this"]


def test_arrays_of_other_shapes_or_numbers_are_not_compared():
    with pytest.raises(AssertionError):
        largest_gap([np.ones(3)], [np.ones(1)])
    with pytest.raises(ValueError, match="shorter"):
        largest_gap([ONES, ONES], [ONES])
