"""A learner's boundary: it stops where it must, then publishes, and only then releases the slots that it read."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from runnel.runtime.control_messages import Go
from runnel.runtime.workers import learner
from runnel.runtime.workers.learner import Learner


class Trainer:
    """A `TrainerWorker` whose parts record their calls."""

    def __init__(self, a):
        did = a.did
        self.trainer, self.clock = SimpleNamespace(carry="carry"), 7
        self.held = SimpleNamespace(release=lambda: did.append("release"))
        self.progress = SimpleNamespace(
            env_steps=0, complete=lambda: a.ended.pop(0) if a.ended else False, on_go=lambda go: did.append(go),
            report=lambda: did.append("report"), report_if_due=lambda: did.append("report if due"),
            iteration=lambda: 4,
        )  # fmt: skip
        self.work = SimpleNamespace(before_pause=lambda: did.append("before pause"), collector=a.collector)

    def drain(self):
        return "of the trainer"

    def episode_sums(self):
        return {"return": (1.0, 2)}

    def save(self):
        return {"saved": 1}


class Assignment(SimpleNamespace):
    """Of a learner that is alone; `ended`: whether training has, each time that it is asked."""

    def __init__(self, **given):
        did = []
        context = SimpleNamespace(
            poll=lambda: did.append("poll"), pause=lambda: did.append("pause"), pausing=False, asked=False,
            too_early=lambda: False, snapshot_wanted=False, between=False,
        )  # fmt: skip
        base = {
            "did": did, "context": context, "ended": [], "collector": None, "plan": SimpleNamespace(fragments=[]),
            "run_graph": None, "snapshots": None, "free": False, "pauses": False, "spmd": None, "catches_up": False,
            "fragment": SimpleNamespace(replicas=1), "ends": SimpleNamespace(streams={}),
        }  # fmt: skip
        super().__init__(**{**base, **given})


@pytest.fixture(autouse=True)
def _parts_record_their_calls(monkeypatch):
    monkeypatch.setattr(learner, "TrainerWorker", Trainer)
    monkeypatch.setattr(
        learner, "ParameterPublisher",
        lambda a: SimpleNamespace(publish=lambda carry, iteration: a.did.append(("publish", carry, iteration))),
    )  # fmt: skip
    monkeypatch.setattr(
        learner, "SnapshotSender",
        lambda a, schedule, env_steps: SimpleNamespace(
            boundary=lambda carry, env_steps, wanted: a.did.append("asked snapshot" if wanted else "snapshot"),
            flush=lambda: a.did.append("flush"),
        ),
    )  # fmt: skip


PUBLISHED = [("publish", "carry", 7), "release", "report if due"]


def test_an_unroll_that_finds_room_finds_what_was_just_published():
    a = Assignment()
    Learner(a).boundary()
    assert a.did == ["poll", "snapshot", *PUBLISHED]


def test_a_learner_pauses_before_it_publishes():
    a = Assignment()
    a.context.pausing = True

    def pause():
        a.did.append("pause")
        a.context.pausing = False

    a.context.pause = pause
    Learner(a).boundary()
    assert a.did == ["poll", "snapshot", "pause", *PUBLISHED]


def test_a_learner_pauses_by_itself_while_training_has_ended():
    a = Assignment(ended=[True, True, False])
    Learner(a).boundary()
    assert a.did == ["poll", "snapshot", "pause", "pause", *PUBLISHED]


def test_a_learner_that_is_to_catch_up_does_not_pause_yet():
    a = Assignment(ended=[True])
    a.context.pausing, a.context.too_early = True, lambda: True
    Learner(a).boundary()
    assert "pause" not in a.did


def test_learners_of_one_program_pause_where_one_of_them_does():
    others = [True, False]
    spmd = SimpleNamespace(flags=lambda own: jnp.asarray([own, others.pop(0)]))
    a = Assignment(spmd=spmd)
    Learner(a).boundary()
    assert a.did.count("pause") == 1
    assert others == []


@pytest.mark.parametrize(
    ("given", "between"),
    [
        ({}, False),
        ({"free": True}, True),
        ({"free": True, "spmd": SimpleNamespace(flags=jnp.asarray), "fragment": SimpleNamespace(replicas=2)}, False),
    ],
)
def test_only_an_asynchronous_learner_alone_may_pause_while_it_waits(given, between):
    a = Assignment(**given)
    Learner(a).boundary()
    assert a.context.between is between


def test_all_that_was_done_is_reported_before_a_pause():
    a = Assignment()
    Learner(a).on_pause()
    assert a.did == ["before pause", "flush", "report"]


def test_a_snapshot_that_is_asked_for_in_a_pause_is_sent_in_it():
    a = Assignment()
    a.context.snapshot_wanted = True
    made = Learner(a)
    made.on_snapshot()
    assert a.did == ["asked snapshot", "flush"]
    made.on_snapshot()
    assert a.did[2:] == ["snapshot", "flush"]  # once


def test_the_supervisor_hears_of_the_trainers_part():
    a = Assignment()
    made = Learner(a)
    made.on_go(Go(100, None))
    assert a.did == [Go(100, None)]
    assert (made.iteration(), made.episode_sums(), made.save()) == (4, {"return": (1.0, 2)}, {"saved": 1})


@pytest.mark.parametrize(
    ("free", "pauses", "asked", "found"),
    [
        (False, False, True, "of the trainer"),
        (True, True, True, "of the trainer"),  # unrolls that are taken in order are not dropped
        (True, False, True, True),
        (True, False, False, True),  # there are other learners, which may need unrolls
    ],
)
def test_a_paused_learner_empties_its_streams_if_unrolls_may_be_dropped(free, pauses, asked, found):
    a = Assignment(free=free, pauses=pauses, collector=SimpleNamespace(drain=lambda: True))
    a.context.asked = asked
    assert Learner(a).drain() == found
    assert a.did == (["release"] if found is True else [])


def test_a_learner_that_rests_at_the_end_of_training_keeps_unrolls_if_it_is_the_only_one(monkeypatch):
    monkeypatch.setattr(learner, "learns", lambda fragment, graph: True)
    plan = SimpleNamespace(fragments=[SimpleNamespace(replicas=1)])
    a = Assignment(free=True, plan=plan, collector=SimpleNamespace(drain=lambda: True))
    assert Learner(a).drain() is False
    a.context.asked = True
    assert Learner(a).drain() is True
