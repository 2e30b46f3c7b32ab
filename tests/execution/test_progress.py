"""What workers report, added up over a run."""

from runnel.execution.progress import ProgressAggregator
from runnel.runtime.control_messages import ProgressReport, StalenessSums


def report(env_steps: int, staleness: StalenessSums) -> ProgressReport:
    return ProgressReport(env_steps // 8, env_steps, 0, False, env_steps // 8, {}, {}, {}, 0, None, staleness)


def test_staleness_is_that_of_the_whole_run_though_learners_count_anew_from_a_checkpoint():
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
