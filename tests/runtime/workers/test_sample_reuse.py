"""A learner that learns from unrolls again never learns from one that is too old, nor too often, nor waits for ever."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import Source

from runnel.runtime.workers.batch_collector import BatchCollector
from runnel.runtime.workers.ports import WorkerContext
from runnel.runtime.workers.sample_reuse import SampleReuse
from runnel.runtime.workers.trainer import TrainerBatch
from runnel.transport import in_process


def collector(limit, slowness, seed):
    rng = np.random.default_rng(seed)
    context = WorkerContext("learner", in_process.InProcessBell(), None)  # type: ignore[arg-type]
    sources = [Source(context, min(limit + 1, 4), rng, slow) for slow in slowness]
    return sources, BatchCollector(context, [[source.port] for source in sources], len(sources), limit, "unrolls")


def batch(intake, clock):
    """What is taken, in the form that the learner keeps."""
    taken = intake.collect(clock)
    begun = min(each.iteration for each in taken)
    return TrainerBatch({}, np.zeros(0), {}, lambda: intake.release(taken), {}, begun=begun), taken


@given(
    st.integers(1, 6), st.lists(st.sampled_from([1, 2, 5, 40]), min_size=1, max_size=4), st.integers(2, 6),
    st.integers(1, 4), st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_nothing_is_too_old_or_used_too_often_and_every_wait_ends(limit, slowness, times, work, seed):
    sources, intake = collector(limit, slowness, seed)
    reuse = SampleReuse(intake, times, lambda: None)
    draw = np.random.default_rng(seed)
    clock, fresh, idle, busy, uses = 0, 0, 0, 0, 0
    while fresh < 25:
        for source in sources:
            source.tick(clock)
        if busy:  # what is learnt is published at the end
            busy -= 1
            clock += not busy
        elif draw.random() < 0.05:
            reuse.pause()  # lets go of what is kept, whenever it comes
        elif (again := reuse.again(clock, intake.ready(clock))) is not None:
            assert clock - again.begun <= limit
            assert again.fresh is not None
            assert not again.fresh
            uses, busy, idle = uses + 1, work, 0
            assert uses <= times
        elif intake.ready(clock):
            made, taken = batch(intake, clock)
            assert max(clock - each.iteration for each in taken) <= limit
            assert reuse.keep(made).fresh
            fresh, uses, busy, idle = fresh + 1, 1, work, 0
        idle += 1
        assert idle < 1000, "everybody waits"
    assert clock <= fresh + reuse.repetitions


def test_new_unrolls_go_first_and_a_pause_lets_go_of_what_is_kept():
    (source,), intake = collector(3, [1], 0)

    def unroll(clock):
        source.tick(clock)
        source.tick(clock)

    freed: list[str] = []
    reuse = SampleReuse(intake, 3, lambda: freed.append("free"))
    assert reuse.again(0, ready=False) is None
    unroll(0)
    reuse.keep(batch(intake, 0)[0])
    assert reuse.again(1, ready=False) is not None
    assert (freed, reuse.repetitions) == ([], 1)
    unroll(1)
    assert reuse.again(2, ready=intake.ready(2)) is None  # a new one has come
    assert freed == ["free"]
    reuse.keep(batch(intake, 2)[0])
    reuse.pause()
    assert (freed, reuse.dropped) == (["free"] * 2, 1)
    assert reuse.again(3, ready=False) is None
    unroll(3)
    reuse.keep(batch(intake, 3)[0])
    assert [reuse.again(clock, ready=False) is not None for clock in (4, 5, 6)] == [True, True, False]  # three times
    reuse.pause()
    assert reuse.dropped == 1  # nothing was left of it
    unroll(6)
    reuse.keep(batch(intake, 6)[0])
    assert reuse.again(9, ready=False) is not None
    assert reuse.again(10, ready=False) is None  # four versions old


def test_what_actors_are_at_is_not_made_too_old():
    (quick, slow), intake = collector(2, [1, 9], 0)
    reuse = SampleReuse(intake, 5, lambda: None)
    for source in (quick, slow):
        source.tick(0)
        while source.left:
            source.tick(0)
    reuse.keep(batch(intake, 0)[0])
    slow.tick(0)  # begins an unroll with version 0, and takes long
    assert reuse.again(1, ready=False) is not None
    assert reuse.again(2, ready=False) is None  # at version 3 it would be too old
