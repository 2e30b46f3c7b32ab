"""A learner's intake bounds staleness, however unequal its sources are, and never waits for ever."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import Source

from runnel.runtime.workers.batch_collector import BatchCollector
from runnel.runtime.workers.ports import WorkerContext
from runnel.transport import in_process


def sources(limit, slowness, seed):
    rng = np.random.default_rng(seed)
    context = WorkerContext("learner", in_process.InProcessBell(), None)
    return context, [Source(context, min(limit + 1, 4), rng, slow) for slow in slowness]


@given(st.integers(1, 6), st.lists(st.sampled_from([1, 2, 5, 40]), min_size=1, max_size=5), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_nothing_is_older_than_the_limit_and_every_wait_ends(limit, slowness, seed):
    context, made = sources(limit, slowness, seed)
    intake = BatchCollector(context, [[source.port] for source in made], len(made), limit, "unrolls")
    iteration, idle, busy, taken = 0, 0, 0, []
    while iteration < 30:
        for source in made:
            source.tick(iteration)
        if busy:  # an update takes a few ticks; what it read is released when its result is published
            busy -= 1
            if not busy:
                iteration += 1
                intake.release(taken)
        elif intake.ready(iteration):
            taken = intake.collect(iteration)
            assert len(taken) == len(made)
            assert max(iteration - each.iteration for each in taken) <= limit
            busy, idle = 3, 0
        idle += 1
        assert idle < 1000, "everybody waits"


@given(st.lists(st.sampled_from([1, 3, 20]), min_size=2, max_size=4), st.integers(0, 2**31))
@settings(max_examples=30, deadline=None)
def test_gradients_taken_one_by_one_are_not_older_than_the_limit(slowness, seed):
    limit = len(slowness) - 1  # the least that so many workers can do with
    rng = np.random.default_rng(seed)
    context = WorkerContext("server", in_process.InProcessBell(), None)
    made = [Source(context, 1, rng, slow) for slow in slowness]
    intake = BatchCollector(context, [[source.port] for source in made], 1, limit, "gradients")
    iteration, idle = 0, 0
    while iteration < 50:
        for source in made:
            source.tick(iteration)
        if intake.ready(iteration):
            (taken,) = intake.collect(iteration)
            assert iteration - taken.iteration <= limit
            iteration, idle = iteration + 1, 0
            intake.release([taken])
        idle += 1
        assert idle < 1000, "everybody waits"


def test_in_order_every_source_gives_once():
    context, made = sources(0, [1, 1, 1], 0)
    intake = BatchCollector(context, [[source.port] for source in made], 3, 0, "unrolls", in_order=True)
    for source in reversed(made):
        source.tick(0)
        source.tick(0)
    assert intake.ready(0)
    assert [taken.source for taken in intake.collect(0)] == [0, 1, 2]
