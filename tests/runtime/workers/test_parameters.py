"""Parameters that learners elsewhere publish are read once, not before they are new enough, and never after a claim."""

from types import SimpleNamespace
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from runnel.runtime.programs.versions import ParameterStamp
from runnel.runtime.workers.assembly import PublishedParameters
from runnel.runtime.workers.parameters import ParameterPublisher, ParameterReader, RemoteStates


class Store:
    """A reader's end; the parameters of iteration i are i, after 2 * i updates."""

    def __init__(self, did, iteration):
        self.did, self.at = did, iteration

    def iteration(self):
        return self.at

    def read(self):
        self.did.append(("read", self.at))
        return SimpleNamespace(iteration=self.at, version=2 * self.at, arrays=[np.full(3, self.at, np.float32)])


class Worker(SimpleNamespace):
    """An assignment whose context, asked to wait, has the learner publish iteration after iteration."""

    def __init__(self, iteration=0, lead=0, whole=False, free=False, gathered=False):
        did = []
        store = Store(did, iteration)

        def wait(ready, cause):
            did.append(("wait", cause))
            while not ready():
                store.at += 1

        channel = SimpleNamespace(whole=whole)
        super().__init__(
            did=did, store=store, context=SimpleNamespace(wait=wait), leads={"agent": lead}, free=free,
            gathered=gathered, remote_groups=["agent"],
            ends=SimpleNamespace(readers={"agent": (channel, store)}, writers={}),
            published_state=lambda group: PublishedParameters({"w": np.zeros(3, np.float32)}),
        )  # fmt: skip


def test_parameters_are_read_once_and_kept_until_newer_ones_are_published():
    a = Worker(iteration=2)
    reader = ParameterReader(a)
    stamp, params = reader.for_acting(2)
    assert stamp == ParameterStamp(2, {"agent": 4})
    np.testing.assert_array_equal(params["agent"]["w"], [2, 2, 2])
    assert reader.for_acting(1)[1] is params
    assert a.did == [("read", 2)]
    a.store.at = 3
    np.testing.assert_array_equal(reader.for_acting(1)[1]["agent"]["w"], [3, 3, 3])


@pytest.mark.parametrize(("lead", "waits_until"), [(0, 5), (2, 3), (None, 1)])
def test_an_unroll_waits_for_the_oldest_parameters_that_it_may_use(lead, waits_until):
    a = Worker(iteration=1, lead=lead)
    stamp, _ = ParameterReader(a).for_acting(5)
    assert stamp.iteration == waits_until
    assert a.did == [*([("wait", "parameters")] if waits_until > 1 else []), ("read", waits_until)]


def carry():
    return SimpleNamespace(states={}, updates={})


@pytest.mark.parametrize(
    ("whole", "free", "waits_until"),
    [(False, False, 4), (True, False, 6), (True, True, 4)],
)
def test_a_trainer_at_a_barrier_waits_for_a_state_per_gradient(whole, free, waits_until):
    a, kept = Worker(whole=whole, free=free), carry()
    assert RemoteStates(a, ParameterReader(a)).refresh(kept, iteration=4, messages=6, outgoing=[]) == waits_until
    assert kept.updates == {"agent": 2 * waits_until}


@pytest.mark.parametrize(("whole", "gathered"), [(True, False), (False, True), (False, False)])
def test_room_for_a_gradient_is_claimed_before_the_state_is_read(whole, gathered):
    a, kept = Worker(iteration=4, whole=whole, gathered=gathered), carry()
    port = SimpleNamespace(claim=lambda iteration: a.did.append(("claim", iteration)))
    states = RemoteStates(a, ParameterReader(a))
    states.refresh(kept, 4, 4, [port])
    claims = [("claim", 4)] if whole or gathered else []
    assert a.did == [*claims, ("read", 4)]
    before = kept.states["agent"]
    states.refresh(kept, 4, 4, [])
    assert kept.states["agent"] is before  # it is in the carry, and is not read again


class State(NamedTuple):
    params: dict
    optimiser: jnp.ndarray


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("replica", [None, 0, 1])
def test_the_first_learner_of_a_program_publishes_the_parameters_or_the_whole_state(whole, replica):
    published = []
    writer = SimpleNamespace(publish=lambda leaves, version, iteration: published.append((leaves, version, iteration)))
    a = SimpleNamespace(
        spmd=None if replica is None else "spmd", spec=SimpleNamespace(replica=replica or 0),
        ends=SimpleNamespace(writers={"agent": (SimpleNamespace(whole=whole), writer)}),
    )  # fmt: skip
    state = State({"w": jnp.ones(2)}, jnp.zeros(1))
    ParameterPublisher(a).publish(SimpleNamespace(states={"agent": state}, updates={"agent": jnp.int32(8)}), 4)
    if replica == 1:
        assert published == []
        return
    ((leaves, version, iteration),) = published
    assert (len(leaves), version, iteration) == (2 if whole else 1, 8, 4)
