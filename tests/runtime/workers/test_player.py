"""Stepping host environments in a worker that dies and is replaced: what it sends and reports is as if it had not."""

from functools import partial

import numpy as np
import pytest
from reporters import Darts

from runnel.envs.ale import AleEnvironment
from runnel.envs.gymnasium import GymnasiumEnvironment
from runnel.planning.schemas import GroupTypes, parts, schema, unroll_fields
from runnel.runtime.programs import episode_sums
from runnel.runtime.programs.versions import NO_STAMP
from runnel.runtime.recovery import checkpoint_names as names
from runnel.runtime.recovery.block_checkpoint import entry, load_host, open_journal, rejoin, save_host
from runnel.runtime.recovery.journal import BlockMemory
from runnel.runtime.workers.lanes import LocalPolicyLane
from runnel.runtime.workers.player import BlockState, Player
from runnel.runtime.workers.ports import InPort, OutPort, WorkerContext
from runnel.transport import in_process
from runnel.transport.stream import Field

STEPS, ENVS = 4, 3


class Died(BaseException):
    """The worker's end, in the midst of a step."""


class Dice:
    """Actions that follow from the step of the run alone."""

    stamp = NO_STAMP

    def __init__(self, actions, dies_at):
        self.actions, self.dies_at, self.unroll = actions, dies_at, 0

    def begin(self, unroll):
        self.unroll = unroll

    def memory(self):
        return {"agent": []}

    def adopt(self, observation):
        return observation

    def act(self, t, observation, first):
        step = self.unroll * STEPS + t
        if step == self.dies_at:
            raise Died
        return [np.random.default_rng(step).integers(0, self.actions, ENVS)]


class Room:
    """What outlives a worker: its stream and its journal. Workers step the same environments, one after another."""

    def __init__(self, environment):
        self.environment = environment
        agents = environment.spec.groups["agent"]
        self.types = GroupTypes(agents, Field((), "<i4"), (), (), "<f4")
        bell = in_process.InProcessBell()
        self.context = WorkerContext("actor", bell, None)
        self.ring = in_process.create(schema(unroll_fields(self.types, STEPS, ENVS)), 2)
        self.inbox = InPort(self.context, self.ring.reader(bell, bell), "unrolls")
        self.memory, self.bell = BlockMemory.create(), bell
        self.sent, self.reported = [], {}

    def work(self, unrolls, dies_at=-1, rejoins=False, saved=None):
        """A worker, until so many unrolls are made or it dies; gives its part of a checkpoint."""
        self.memory.rewind()
        out = OutPort(self.context, self.ring.writer(self.bell, self.bell), "unrolls")
        lane = LocalPolicyLane(self.types, "agent", STEPS, ENVS, [out])
        acting = Dice(self.types.agents.action.n, dies_at)
        vector = self.environment.open(range(ENVS), 5)
        block = BlockState(vector, range(ENVS), STEPS, {"agent": lane}, acting, {"agent": None})
        journal = open_journal(block, self.memory, partial(entry, block), new=not rejoins)
        if rejoins:
            rejoin(block, 0, False, partial(load_host, 0, block))
        else:
            load_host(0, block, saved or {})
            journal.write(block.entry())
        player = Player([block], lambda block: NO_STAMP)
        try:
            while block.unrolls < unrolls:
                player.unroll()
                episode_sums.add(self.reported, player.episode_sums())
                message = self.inbox.receive()
                self.sent.append([array.copy() for array in message.arrays])
                self.inbox.release(message)
        except Died:
            episode_sums.add(self.reported, player.episode_sums())  # a report that was just sent
        kept = {**save_host(0, block), names.ITERATION: np.asarray(block.unrolls)}
        vector.close()
        return kept

    def ended_last(self, arrays):
        """Whether an episode ended with the last step of an unroll."""
        named = parts(unroll_fields(self.types, STEPS, ENVS), arrays)
        return bool((named["terminated"][0] | named["truncated"][0])[-1].any())


ENVIRONMENTS = {
    "metrics": GymnasiumEnvironment(Darts),
    "lives": AleEnvironment("Breakout-v5", life_loss=True, no_ops=4),
}


def assert_same_unrolls(calm, other):
    assert len(calm.sent) == len(other.sent)
    for one, another in zip(calm.sent, other.sent, strict=True):
        for wanted, found in zip(one, another, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_replaced_worker_sends_and_reports_what_it_would_have(name):
    unrolls = 60
    calm, killed = Room(ENVIRONMENTS[name]), Room(ENVIRONMENTS[name])
    calm.work(unrolls)
    killed.work(unrolls, dies_at=47)
    killed.work(unrolls, dies_at=130, rejoins=True)
    killed.work(unrolls, dies_at=131, rejoins=True)
    killed.work(unrolls, rejoins=True)
    assert_same_unrolls(calm, killed)
    assert killed.reported.keys() == calm.reported.keys()
    for metric, wanted in calm.reported.items():  # no two episodes have the same `mark`: each was reported once
        assert killed.reported[metric] == pytest.approx(wanted), metric
    assert next(iter(calm.reported.values()))[1] > 2


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_worker_goes_on_from_a_checkpoint(name):
    """Also where what learning saw last was the loss of a life, and the game goes on."""
    calm, resumed = Room(ENVIRONMENTS[name]), Room(ENVIRONMENTS[name])
    calm.work(40)
    stops = [k + 1 for k, ended in enumerate(map(calm.ended_last, calm.sent)) if ended][:2]
    assert len(stops) == 2
    saved = {}
    for unrolls in (*stops, 40):
        saved = resumed.work(unrolls, saved=saved)
    assert_same_unrolls(calm, resumed)
    assert calm.reported.keys() == resumed.reported.keys()
    for metric, wanted in calm.reported.items():
        assert resumed.reported[metric] == pytest.approx(wanted), metric
