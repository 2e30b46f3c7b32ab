"""Which trials a sweep trains next."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.execution.sweeps.schedule import HalvingSchedule, TrialBatch, TrialRecord, best, next_step, rungs


def played(schedule: HalvingSchedule, value, failing=lambda trial, rung: False):
    """The batches of a whole sweep and its record. `value(trial, rung)`: what a trial reaches."""
    recorded: list[TrialRecord] = []
    batches = []
    while (batch := next_step(schedule, recorded).batch) is not None:
        batches.append(batch)
        for trial in batch.trials:
            before = recorded[trial] if trial < len(recorded) else TrialRecord({})
            if failing(trial, batch.rung):
                after = TrialRecord(before.values, failed=True)
            else:
                after = TrialRecord({**before.values, batch.rung: value(trial, batch.rung)})
            recorded[trial:] = [after, *recorded[trial + 1 :]]
    return batches, recorded


def test_without_halving_the_batches_follow_each_other() -> None:
    batches, recorded = played(HalvingSchedule(5, 2, (100,)), lambda trial, rung: float(trial))
    assert batches == [TrialBatch(0, (0, 1)), TrialBatch(0, (2, 3)), TrialBatch(0, (4,))]
    assert best(HalvingSchedule(5, 2, (100,)), recorded) == 4
    assert set(next_step(HalvingSchedule(5, 2, (100,)), recorded).ended.values()) == {"complete"}


def test_the_best_of_several_batches_are_a_batch_of_the_next_rung() -> None:
    schedule = HalvingSchedule(8, 2, (25, 50, 100), eta=2)
    batches, recorded = played(schedule, lambda trial, rung: [3, 9, 1, 8, 5, 5, 5, 7][trial] + 0.1 * rung)
    assert batches == [
        TrialBatch(0, (0, 1)), TrialBatch(0, (2, 3)), TrialBatch(1, (1, 3)),
        TrialBatch(0, (4, 5)), TrialBatch(0, (6, 7)), TrialBatch(1, (4, 7)),  # of equals, the first
        TrialBatch(2, (1, 3)),
    ]  # fmt: skip
    ended = next_step(schedule, recorded).ended
    assert {trial for trial, outcome in ended.items() if outcome == "complete"} == {1, 3}
    assert {trial for trial, outcome in ended.items() if outcome == "pruned"} == {0, 2, 4, 5, 6, 7}
    assert best(schedule, recorded) == 1


def test_those_that_fail_are_never_trained_further() -> None:
    schedule = HalvingSchedule(4, 2, (50, 100), eta=2)
    batches, recorded = played(schedule, lambda trial, rung: float(trial), failing=lambda trial, rung: trial > 0)
    assert batches[-1] == TrialBatch(1, (0,))
    assert next_step(schedule, recorded).ended == {0: "complete", 1: "failed", 2: "failed", 3: "failed"}
    batches, recorded = played(schedule, lambda trial, rung: float(trial), failing=lambda trial, rung: True)
    assert next_step(schedule, recorded).batch is None
    assert best(schedule, recorded) is None


def test_one_that_fails_later_keeps_its_place() -> None:
    """A selection is final: the places of one rung do not depend on the results at the next."""
    schedule = HalvingSchedule(4, 2, (50, 100), eta=2)
    batches, recorded = played(schedule, lambda t, rung: float(t), failing=lambda t, rung: (t, rung) == (3, 1))
    assert batches[-1] == TrialBatch(1, (2, 3))
    assert next_step(schedule, recorded).ended == {0: "pruned", 1: "pruned", 2: "complete", 3: "failed"}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 4), st.integers(2, 4), st.integers(0, 9))
def test_every_schedule_ends_and_gives_each_trial_one_end(trials: int, batch: int, count: int, eta: int, seed: int):
    schedule = HalvingSchedule(trials, min(batch, trials), rungs(10_000, eta, count), eta)
    draw = random.Random(seed)
    values = {(t, r): draw.random() for t in range(trials) for r in range(count)}
    lost = {key for key in values if draw.random() < 0.1}
    batches, recorded = played(schedule, lambda *key: values[key], failing=lambda *key: key in lost)
    assert sorted(t for b in batches if b.rung == 0 for t in b.trials) == list(range(trials))
    assert all(len(b.trials) <= schedule.batch for b in batches)
    assert sorted(next_step(schedule, recorded).ended) == list(range(trials))


@pytest.mark.parametrize(("steps", "eta", "count", "expected"), [(9000, 3, 3, (1000, 3000, 9000)), (10, 2, 1, (10,))])
def test_each_rung_has_a_share_of_the_steps(steps: int, eta: int, count: int, expected: tuple[int, ...]) -> None:
    assert rungs(steps, eta, count) == expected
