"""Metrics of the environment over the newest episodes."""

import math

import pytest

from runnel.runtime.programs.metric_window import MOST_NAMES, MetricWindow
from runnel.runtime.programs.totals import ProgressDelta

SEEN = ProgressDelta(1, 1, 7, 2.0, 5.0, {"agent": 2.0}, {}, True)
"""As learning sees it."""


def test_the_newest_hundred_count_or_a_few_more():
    window = MetricWindow()
    for value in range(250):
        window.add({"speed": (float(value), 1)})
    assert window.means() == {"speed": pytest.approx((150 + 249) / 2)}
    window.add({"speed": (0.0, 99)})
    assert window.means() == {"speed": pytest.approx(249 / 100)}
    window.add({"speed": (3000.0, 1000)})
    assert window.means() == {"speed": 3.0}


def test_without_a_score_returns_stay_as_they_are():
    window = MetricWindow()
    window.add({"speed": (3.0, 2), "length": (40.0, 2)})
    assert window.apply(SEEN) == SEEN._replace(env={"speed": 1.5, "length": 20.0})


def test_a_score_replaces_returns_lengths_and_the_number_of_episodes():
    window = MetricWindow()
    window.add({"return": (30.0, 2), "length": (40.0, 2), "speed": (3.0, 2)})
    progress = window.apply(SEEN)
    assert progress == SEEN._replace(
        episodes=2, mean_return=15.0, mean_length=20.0, group_returns={"agent": 15.0}, reached=False,
        env={"speed": 1.5}, learner_return=2.0,
    )  # fmt: skip
    assert window.apply(SEEN).episodes == 0  # they are counted once
    window.add({"return": (30.0, 2)})
    assert window.apply(SEEN).episodes == 2


def test_groups_have_scores_of_their_own():
    window = MetricWindow()
    window.add({"a/return": (30.0, 3), "b/return": (60.0, 3), "b/length": (9.0, 3)})
    progress = window.apply(SEEN._replace(group_returns={"a": 1.0, "b": 3.0}))
    assert (progress.mean_return, progress.group_returns) == (15.0, {"a": 10.0, "b": 20.0})
    assert (progress.mean_length, progress.episodes, progress.env) == (3.0, 3, {})


def test_a_target_is_reached_by_a_hundred_episodes():
    window = MetricWindow()
    window.add({"return": (990.0, 99)})
    assert not window.reached(5.0)
    window.add({"return": (10.0, 1)})
    assert window.reached(5.0)
    assert window.reached(10.0)
    assert not window.reached(10.1)
    assert not window.reached(math.inf)


def test_what_is_not_finite_or_of_no_episode_is_left_out():
    window = MetricWindow()
    window.add({"a": (math.inf, 1), "b": (math.nan, 1), "c": (1.0, 0), "d": (-1.0, -1)})
    assert window.means() == {}


def test_names_are_bounded():
    window = MetricWindow()
    window.add({f"n{i}": (1.0, 1) for i in range(2 * MOST_NAMES)})
    assert len(window.means()) == MOST_NAMES
    window.add({"n0": (3.0, 1)})
    assert window.means()["n0"] == 2.0


def test_a_checkpoint_has_all_of_it():
    window, other = MetricWindow(), MetricWindow()
    for value in range(150):
        window.add({"return": (float(value), 1), "speed": (1.0, 1)})
    saved = window.saved()
    other.add({"speed": (100.0, 1), "gone": (1.0, 1)})
    other.load(saved["env_sums"], saved["env_episodes"])
    assert other.means() == window.means()
    assert other.reached(99.0)
    assert other.apply(SEEN).episodes == 0  # they were counted before
