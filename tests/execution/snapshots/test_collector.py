"""Snapshots of several learners, put together."""

import numpy as np

from runnel.execution.snapshots.collector import SnapshotCollector
from runnel.runtime.control_messages import SnapshotTaken
from runnel.runtime.programs.snapshots import ASKED, BEGINNING, SnapshotSchedule


def add(collector: SnapshotCollector, group: str, mark: int, env_steps: int, version: int = 1) -> None:
    collector.add(SnapshotTaken(group, mark, env_steps, version), {"params/w": np.full(1, float(version))})


def test_a_snapshot_is_whole_once_each_group_has_sent_its_part() -> None:
    collector = SnapshotCollector(["a", "b"])
    add(collector, "a", 64, 70, 3)
    assert collector.fetch() == []
    add(collector, "b", 64, 66, 5)
    (whole,) = collector.fetch()
    assert (whole.mark, whole.env_steps, whole.versions) == (64, 66, {"a": 3, "b": 5})
    assert (whole.arrays["a"]["params/w"], whole.arrays["b"]["params/w"]) == (3.0, 5.0)
    assert collector.fetch() == []


def test_a_mark_that_one_learner_passed_over_is_forgotten() -> None:
    collector = SnapshotCollector(["a", "b"])
    add(collector, "a", 64, 70)
    for group in ("a", "b"):
        add(collector, group, 128, 130)
    add(collector, "b", 192, 200)
    assert [whole.mark for whole in collector.fetch()] == [128]
    add(collector, "a", 192, 200)
    assert [whole.mark for whole in collector.fetch()] == [192]


def test_one_that_was_asked_for_comes_whatever_is_due_meanwhile() -> None:
    collector = SnapshotCollector(["a", "b"])
    add(collector, "a", ASKED, 60)
    for group in ("a", "b"):
        add(collector, group, 64, 64)
    add(collector, "b", ASKED, 62)
    assert [whole.mark for whole in collector.fetch()] == [64, ASKED]


def test_a_mark_that_a_learner_left_out_is_dropped_for_all_groups() -> None:
    collector = SnapshotCollector(["a", "b"])
    add(collector, "a", 64, 70)
    assert collector.leave_out(64)
    assert not collector.leave_out(64)  # the other learner left it out too
    add(collector, "b", 64, 66)
    assert (collector.fetch(), collector._parts) == ([], {})
    for group in ("a", "b"):
        add(collector, group, 128, 130)
    assert [whole.mark for whole in collector.fetch()] == [128]
    assert not collector.leave_out(64)
    assert collector._left_out == set()
    assert collector.leave_out(192)
    collector.clear()
    for group in ("a", "b"):
        add(collector, group, 192, 200)
    assert [whole.mark for whole in collector.fetch()] == [192]


def test_nothing_is_left_of_what_was_before_a_rollback() -> None:
    collector = SnapshotCollector(["a", "b"])
    add(collector, "a", 64, 70, version=9)
    collector.clear()
    add(collector, "b", 64, 66)
    assert collector.fetch() == []


def test_snapshots_are_due_at_every_multiple() -> None:
    schedule = SnapshotSchedule((64, 100))
    assert schedule.mark(BEGINNING, 0) == 0
    assert schedule.mark(0, 63) is None
    assert schedule.mark(0, 64) == 64
    assert schedule.mark(64, 130) == 128  # of several, the latest
    assert schedule.mark(64, 127) == 100
    assert (schedule.next_mark(0), schedule.next_mark(64), schedule.next_mark(128)) == (64, 100, 192)
    assert SnapshotSchedule().mark(BEGINNING, 0) is None
    assert SnapshotSchedule().next_mark(0) is None
