"""What workers report, added up over a run."""

import time
from dataclasses import replace

import pytest

from runnel.execution.run_stats import RunStats
from runnel.execution.supervision.progress import ProgressAggregator
from runnel.runtime.control_messages import EpisodeWindow, ProgressReport, StalenessSums
from runnel.runtime.usage import UsageReport


def report(env_steps: int, staleness: StalenessSums) -> ProgressReport:
    return ProgressReport(env_steps // 8, env_steps, 0, False, env_steps // 8, {}, {}, {}, 0, None, staleness, 0, 0)


def test_staleness_is_that_of_the_whole_run_though_learners_count_again_from_a_checkpoint():
    progress = ProgressAggregator({"learner"})
    progress.add("learner", report(80, StalenessSums(total=20, count=10, most=7)))
    progress.add("actor", report(80, StalenessSums(total=99, count=9, most=9)))  # not a learner: nobody asks it
    assert progress.progress().staleness == (2.0, 7)
    progress.begin(40, 5, 5)  # back to a checkpoint
    assert progress.progress().staleness == (2.0, 7)
    progress.add("learner", report(48, StalenessSums(total=0, count=10, most=1)))
    assert progress.progress().staleness == (1.0, 7)


def test_the_slowest_learner_says_how_far_a_run_is():
    progress = ProgressAggregator({"one", "two"})
    progress.add("one", report(80, StalenessSums(0, 0, 0)))
    progress.add("two", report(48, StalenessSums(0, 0, 0)))
    assert progress.reached_env_steps() == 48
    assert progress.progress().env_steps == 48


def test_metrics_of_the_environment_begin_again_where_a_run_goes_back():
    progress = ProgressAggregator({"learner"})
    progress.metric_window.add({"speed": (6.0, 2)})
    assert progress.progress().env == {"speed": 3.0}
    progress.begin(40, 5, 5)
    assert progress.progress().env == {}


def test_learners_do_not_decide_where_the_environment_reports_its_own_score():
    progress = ProgressAggregator({"learner"}, reports_return=True)
    report_of_learner = report(80, StalenessSums(0, 0, 0))
    window = EpisodeWindow(100, 500.0, {"agent": 900.0}, {"agent": 100})
    progress.add("learner", replace(report_of_learner, target_reached=True, episodes=100, window=window))
    before = progress.progress(target=5.0)
    assert (before.reached, before.mean_return, before.learner_return, before.episodes) == (False, None, 9.0, 0)
    progress.metric_window.add({"return": (700.0, 99), "length": (990.0, 99)})
    assert not progress.progress(target=5.0).reached  # of 100 episodes
    progress.metric_window.add({"return": (7.0, 1), "length": (10.0, 1)})
    after = progress.progress(target=5.0)
    assert (after.reached, after.episodes, after.mean_length) == (True, 1, 10.0)
    assert after.mean_return == pytest.approx(7.07)
    assert after.group_returns == {"agent": pytest.approx(7.07)}


def test_the_last_line_has_the_newest_outputs_of_learning_though_it_is_of_no_update():
    progress, stats = ProgressAggregator({"learner"}), RunStats(time.monotonic())
    first = report(80, StalenessSums(0, 0, 0))
    for updates, out in (({"learn": 2}, {"learn": {"loss": 3.0}}), ({}, {})):
        progress.add("learner", replace(first, updates_by_node=updates, out_sums=out))
        newest = progress.progress()
        stats.add(newest, 8)
    assert newest.out == {}
    assert stats.last_metrics(newest, UsageReport())["learn/loss"] == 1.5
    assert "learn/loss" not in stats.metrics(newest, UsageReport())
