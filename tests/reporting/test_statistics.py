"""What several runs come to in a few numbers."""

import itertools

import numpy as np
import pytest

from runnel.reporting.statistics import (
    bootstrap_interval,
    interquartile_intervals,
    interquartile_mean,
    interquartile_means,
    members_statistics,
    probability_of_improvement,
)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([3.0], 3.0), ([1.0, 3.0], 2.0), ([0.0, 1.0, 5.0], 2.0), ([-1e9, 1.0, 3.0, 1e9], 2.0),
     ([8, 7, 6, 5, 4, 3, 2, 1], 4.5)],
)  # fmt: skip
def test_the_interquartile_mean_is_that_of_the_middle_half(values: list[float], wanted: float) -> None:
    assert interquartile_mean(np.array(values)) == wanted
    np.testing.assert_allclose(interquartile_means(np.array([values, values])), [wanted, wanted])


def test_intervals_of_points_are_those_of_each_point() -> None:
    values = np.random.default_rng(1).normal(size=(3, 9))
    low, high = interquartile_intervals(values)
    for i, row in enumerate(values):
        np.testing.assert_allclose((low[i], high[i]), bootstrap_interval(row, interquartile_mean))


def test_intervals_of_equal_values_have_no_width() -> None:
    low, high = interquartile_intervals(np.full((2, 5), 7.0))
    np.testing.assert_array_equal([low, high], np.full((2, 2), 7.0))
    assert bootstrap_interval(np.array([4.0]), interquartile_mean) == (4.0, 4.0)


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    low, high = interquartile_intervals(random.normal(size=(200, 30)))
    assert 0.88 <= ((low <= 0) & (high >= 0)).mean() <= 0.99


def test_statistics_of_members_hold_what_result_json_has() -> None:
    found = members_statistics(np.array([1.0, 2.0, 3.0, 100.0]))
    assert (found["iqm_return"], found["median_return"], found["min_return"], found["max_return"]) == (2.5, 2.5, 1, 100)
    assert found["iqm_interval"][0] <= 2.5 <= found["iqm_interval"][1]


def test_the_probability_of_improvement_is_the_share_of_pairs_that_improve() -> None:
    random = np.random.default_rng(0)
    first, second = random.integers(0, 6, 7).astype(float), random.integers(2, 8, 5).astype(float)
    wanted = np.mean([1.0 if b > a else 0.5 if b == a else 0.0 for a, b in itertools.product(first, second)])
    found = probability_of_improvement(first, second)
    assert found.probability == pytest.approx(wanted)
    assert found.low <= found.probability <= found.high
    assert probability_of_improvement(second, first).probability == pytest.approx(1 - wanted)


def test_equal_scores_count_half() -> None:
    same = np.full(6, 500.0)
    assert probability_of_improvement(same, same) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(("first", "second", "wanted"), [([1.0], [2.0], 1.0), ([2.0], [1.0], 0.0), ([1.0], [1.0], 0.5)])
def test_one_run_of_each(first: list[float], second: list[float], wanted: float) -> None:
    assert probability_of_improvement(np.array(first), np.array(second)) == (wanted, wanted, wanted)


@pytest.mark.parametrize("scores", [[], [1.0, np.nan], [np.inf]])
def test_scores_that_cannot_be_compared_are_refused(scores: list[float]) -> None:
    for pair in ((np.array(scores), np.ones(2)), (np.ones(2), np.array(scores))):
        with pytest.raises(ValueError, match="not finite"):
            probability_of_improvement(*pair)
