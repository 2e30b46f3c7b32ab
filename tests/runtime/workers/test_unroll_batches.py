"""The batch of an iteration from the streams of other workers, and when its slots are released."""

from types import SimpleNamespace

import numpy as np
import pytest

from runnel.runtime.programs.versions import Acted
from runnel.runtime.workers import unroll_batches
from runnel.runtime.workers.batch_collector import Collected
from runnel.runtime.workers.stream_headers import UnrollHeader
from runnel.runtime.workers.unroll_batches import HeldSlots, UnrollBatches


def message(version, value):
    return SimpleNamespace(header=UnrollHeader(0, version).pack(), arrays=[np.full(2, value)])


class Collector:
    """Of two sources and two groups."""

    def __init__(self):
        self.released = []
        self.taken = [
            Collected(0, 5, [message(5, 0), message(9, 1)]),
            Collected(1, 4, [message(3, 2), message(8, 3)]),
        ]

    def ready(self, iteration):
        return iteration == 6

    def collect(self, iteration):
        assert iteration == 6
        return self.taken

    def release(self, taken):
        self.released.append(taken)


def batches(monkeypatch, collector, held, learns=True):
    blocks = [SimpleNamespace(start=0), SimpleNamespace(start=4)]
    monkeypatch.setattr(unroll_batches, "make_unroll_collector", lambda a: (collector, blocks))
    assignment = SimpleNamespace(consumed_groups=["red", "blue"], learns=learns)
    return UnrollBatches(assignment, None, None, held, copies=False)


def test_held_slots_are_released_once_in_the_order_in_which_they_were_held():
    held, did = HeldSlots(), []
    held.hold(lambda: did.append("first"))
    held.hold(lambda: did.append("second"))
    held.release()
    held.release()
    assert did == ["first", "second"]


def test_a_batch_has_the_unrolls_of_all_sources_and_the_versions_that_acted(monkeypatch):
    collector = Collector()
    made = batches(monkeypatch, collector, HeldSlots())
    assert [made.ready(iteration) for iteration in (5, 6)] == [False, True]
    batch = made.make(6, {})
    assert {group: [int(arrays[0][0]) for arrays in own] for group, own in batch.blocks.items()} == {
        "red": [0, 2], "blue": [1, 3],
    }  # fmt: skip
    assert batch.blocks["red"][0][0] is collector.taken[0].messages[0].arrays[0]  # read in place
    np.testing.assert_array_equal(batch.starts, [0, 4])
    np.testing.assert_array_equal(batch.versions["red"], [5, 3])
    assert batch.acted == {"red": Acted(3, 8, 2), "blue": Acted(8, 17, 2)}
    assert batch.begun == 4


@pytest.mark.parametrize("learns", [True, False])
def test_a_learner_holds_its_slots_until_it_has_published(learns, monkeypatch):
    collector, held = Collector(), HeldSlots()
    batches(monkeypatch, collector, held, learns).make(6, {}).release()
    assert collector.released == ([] if learns else [collector.taken])
    held.release()
    assert collector.released == [collector.taken]


def test_without_unrolls_there_is_no_batch(monkeypatch):
    made = batches(monkeypatch, None, HeldSlots())
    assert not made.ready(6)
    assert made.make(6, {}) is None
