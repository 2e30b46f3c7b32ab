"""A journal records exactly where a replacement continues, whenever its writer was killed."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.errors import StateLost
from runnel.runtime.recovery import journal as journals
from runnel.runtime.recovery.action_history import ActionHistory
from runnel.runtime.recovery.journal import BlockMemory, Journal

STATE = {"unrolls": ((), np.dtype(np.int64)), "length": ((3,), np.dtype(np.int32))}
ACTED = {"agent": ((4, 3), np.dtype(np.int64))}
ROW = {"agent": ((3,), np.dtype(np.int64))}


@pytest.fixture
def memory():
    made = BlockMemory.create()
    yield made
    made.close()


def entry(unrolls: int) -> dict[str, np.ndarray]:
    return {"unrolls": np.asarray(unrolls), "length": np.full(3, unrolls, np.int32)}


def again(memory: BlockMemory) -> Journal:
    """The same journal as another process finds it."""
    return Journal(BlockMemory(os.dup(memory.fileno())), STATE, ACTED, ROW)


def test_what_was_written_last_is_taken_up(memory: BlockMemory):
    first = Journal(memory, STATE, ACTED, ROW)
    for unrolls in range(5):
        first.write(entry(unrolls))
    found = again(memory).resume_entry(lambda unroll: True)
    assert int(found["unrolls"]) == 4
    assert found["length"].tolist() == [4, 4, 4]


def test_an_unroll_that_was_not_handed_over_is_played_again(memory: BlockMemory):
    first = Journal(memory, STATE, ACTED, ROW)
    for unrolls in range(5):
        first.write(entry(unrolls))
    assert int(again(memory).resume_entry(lambda unroll: unroll < 3)["unrolls"]) == 3
    # Who is killed while it plays it finds the same again.
    assert int(again(memory).resume_entry(lambda unroll: unroll < 3)["unrolls"]) == 3
    second = again(memory)
    second.resume_entry(lambda unroll: unroll < 3)
    second.write(entry(4))
    assert int(again(memory).resume_entry(lambda unroll: True)["unrolls"]) == 4


def test_the_first_entry_has_nothing_before_it(memory: BlockMemory):
    first = Journal(memory, STATE, ACTED, ROW)
    first.write(entry(7))
    assert int(again(memory).resume_entry(lambda unroll: False)["unrolls"]) == 7


def test_an_entry_cut_short_does_not_count(memory: BlockMemory):
    first = Journal(memory, STATE, ACTED, ROW)
    first.write(entry(0))
    first.write(entry(1))
    with pytest.raises(KeyError):
        first.write({"unrolls": np.asarray(2)})  # ends in the midst of it, over the older of the two
    found = again(memory).resume_entry(lambda unroll: False)
    assert int(found["unrolls"]) == 1
    assert found["length"].tolist() == [1, 1, 1]


def test_a_journal_without_an_entry_says_so(memory: BlockMemory):
    with pytest.raises(StateLost, match="no entry"):
        Journal(memory, STATE, ACTED, ROW).resume_entry(lambda unroll: True)


def test_actions_of_the_unroll_in_progress_are_there_for_the_next(memory: BlockMemory):
    first = Journal(memory, STATE, ACTED, ROW)
    first.acted["agent"][0] = [5, 6, 7]
    first.note("agent", 40)
    other = again(memory)
    assert other.known("agent") == 41
    assert other.acted["agent"][0].tolist() == [5, 6, 7]


def test_a_cleared_journal_is_like_new(memory: BlockMemory):
    first = Journal(memory, STATE, ACTED, ROW)
    first.write(entry(3))
    first.note("agent", 12)
    first.watch(2, 9)
    first.condemn(2, 9, False)
    assert again(memory).watched() == (2, 9)
    assert again(memory).condemned() == [(2, 9, False)]
    first.clear()
    other = again(memory)
    assert other.known("agent") == 0
    assert other.watched() is None
    assert other.condemned() == []
    with pytest.raises(StateLost, match="no entry"):
        other.resume_entry(lambda unroll: True)


def test_several_journals_share_a_descriptor_without_touching_each_other(memory: BlockMemory):
    one, two = (Journal(memory, STATE, ACTED, ROW) for _ in range(2))
    one.write(entry(1))
    two.write(entry(2))
    memory.rewind()
    found = [Journal(memory, STATE, ACTED, ROW).resume_entry(lambda unroll: True) for _ in range(2)]
    assert [int(each["unrolls"]) for each in found] == [1, 2]


def test_what_is_reserved_takes_no_memory_until_it_is_used(memory: BlockMemory):
    Journal(memory, STATE, ACTED, ROW).write(entry(0))
    assert os.fstat(memory.fileno()).st_size > journals.HISTORY_BYTES
    assert os.fstat(memory.fileno()).st_blocks * 512 < 2**16


@given(st.lists(st.lists(st.booleans(), min_size=12, max_size=12), min_size=1, max_size=40), st.integers(0, 39))
@settings(max_examples=40, deadline=None)
def test_a_history_in_a_journal_survives_its_writer(ends: list[list[bool]], killed_at: int):
    memory = BlockMemory.create()
    try:
        first = Journal(memory, STATE, ACTED, ROW)
        kept, plain = ActionHistory(3, first), [[] for _ in range(3)]
        before = None
        for number, end in enumerate(ends):
            done = np.array(end).reshape(4, 3)
            actions = np.arange(number * 12, number * 12 + 12).reshape(4, 3)
            if number == min(killed_at, len(ends) - 1):
                before = (kept.end, kept.began.copy(), kept.kept_from, [list(p) for p in plain])
            kept.add({"agent": actions}, done)
            for t in range(4):
                for e in range(3):
                    plain[e].append(int(actions[t, e]))
                    if done[t, e]:
                        plain[e].clear()
            if before is not None:
                break
        # Killed after the actions were written and before the entry was: it stands before the unroll.
        assert before is not None
        end, began, kept_from, wanted = before
        second = again(memory)
        other = ActionHistory(3, second, second.buffer_number())
        other.resume_at(end, began, kept_from)
        episodes, cut = other.episodes([0, 0, 0])
        assert not cut.any()
        assert [e.actions["agent"].tolist() for e in episodes] == wanted
    finally:
        memory.close()
