"""When a block may begin an unroll: with room for it, and with parameters that are not too old."""

from types import SimpleNamespace

import pytest

from runnel.runtime.programs.versions import ParameterStamp
from runnel.runtime.workers.unroll_gate import UnrollGate


class Store:
    """A reader's end of a parameter store."""

    def __init__(self, iteration, version):
        self.at = iteration, version

    def iteration(self):
        return self.at[0]

    def version(self):
        return self.at[1]


class Context:
    """Records the causes of waits; `happens` ends each."""

    def __init__(self, happens=lambda: None):
        self.happens, self.causes, self.pausing = happens, [], False

    def wait(self, ready, cause):
        self.causes.append(cause)
        assert ready() is None
        self.happens()
        assert ready()
        return True


def gate(context, store, lead, early=False, learnt=dict):
    return UnrollGate(context, {"agent": store}, {"agent": lead}, early, learnt)


def test_an_unroll_that_may_begin_waits_for_nothing():
    context = Context()
    held = gate(context, Store(3, 7), 0, learnt=lambda: {"other": 5})
    assert held.wait(lambda: True, 3) == ParameterStamp(3, {"agent": 7, "other": 5})
    assert context.causes == []


def test_an_unroll_waits_for_room_before_parameters():
    room, store = [], Store(2, 2)

    def happens():
        if room:
            store.at = 3, 3
        room.append(1)

    context = Context(happens)
    assert gate(context, store, 0).wait(lambda: bool(room), 3) == ParameterStamp(3, {"agent": 3})
    assert context.causes == ["room for unrolls", "parameters"]


@pytest.mark.parametrize(
    ("lead", "unroll", "causes"),
    [
        (0, 3, ["parameters"]),  # at a barrier
        (2, 5, ["room for unrolls"]),  # ahead of the learner by all of its lead
        (2, 4, []),
        (None, 100, []),
    ],
)
def test_the_lead_decides_which_parameters_an_unroll_needs(lead, unroll, causes):
    store = Store(2, 2)
    context = Context(lambda: setattr(store, "at", (3, 4)))
    gate(context, store, lead).wait_for(SimpleNamespace(ready=lambda: True, unrolls=unroll))
    assert context.causes == causes


MAY = {"early": True, "acting": None, "kept": {"agent": 1}, "pausing": False, "ready": True, "unrolls": 2}


@pytest.mark.parametrize(
    "change",
    [{}, {"early": False}, {"acting": "here"}, {"kept": {}}, {"pausing": True}, {"ready": False}, {"unrolls": 3}],
    ids=str,
)
def test_a_block_begins_early_only_if_it_need_not_wait(change):
    case = SimpleNamespace(**{**MAY, **change})
    context = Context()
    context.pausing = case.pausing
    block = SimpleNamespace(acting=case.acting, kept=case.kept, ready=lambda: case.ready, unrolls=case.unrolls)
    found = gate(context, Store(2, 9), 0, case.early).early_stamp(block)
    assert found == (None if change else ParameterStamp(2, {"agent": 9}))
    assert context.causes == []
