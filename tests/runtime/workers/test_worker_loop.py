"""Every worker runs one loop, of a class that follows from its nodes alone."""

from types import SimpleNamespace

import pytest
from custom_distributions import Maps, Store

from runnel.algorithms.a2c import A2C
from runnel.algorithms.dqn import DQN
from runnel.distributions.central import Central
from runnel.distributions.coarse import Coarse
from runnel.distributions.decoupled import Decoupled
from runnel.distributions.fine import Fine
from runnel.distributions.replicated import Replicated
from runnel.execution.building import build
from runnel.planning.channels import derive_channels
from runnel.runtime.recovery.block_checkpoint import BlockStart
from runnel.runtime.recovery.journal import BlockMemory
from runnel.runtime.workers.assembly import Assignment, StreamEnds
from runnel.runtime.workers.ports import Stopped, WorkerContext
from runnel.runtime.workers.worker import worker_class
from runnel.runtime.workers.worker_loop import Worker, listen, run
from runnel.transport import in_process


class Recorder(Worker):
    """A worker that records what it is asked to do, and is stopped after a number of turns."""

    def __init__(self, context, turns):
        self.context, self.left, self.calls = context, turns, []

    def compile(self):
        self.calls.append(("compile", self.context.phase))

    def boundary(self):
        if not self.left:
            raise Stopped
        self.calls.append(("boundary", self.context.phase))

    def turn(self):
        self.left -= 1
        self.calls.append(("turn", self.context.phase))


@pytest.fixture
def context():
    line = SimpleNamespace(send=lambda value, timeout_s: None, receive=lambda timeout_s=0: None, closed=False)
    return WorkerContext("worker", in_process.InProcessBell(), line)


def test_the_first_turn_of_a_worker_that_compiles_counts_as_compiling(context):
    worker = Recorder(context, turns=2)
    with pytest.raises(Stopped):
        run(context, worker)
    assert worker.calls == [
        ("compile", "compiling"), ("boundary", "compiling"), ("turn", "compiling"),
        ("boundary", "working"), ("turn", "working"),
    ]  # fmt: skip
    assert context.worker is worker


def test_a_worker_that_compiles_nothing_works_from_the_first_turn(context):
    worker = Recorder(context, turns=1)
    with pytest.raises(Stopped):
        run(context, worker, compiles=False)
    assert worker.calls == [("compile", "working"), ("boundary", "working"), ("turn", "working")]


@pytest.mark.parametrize("between", [True, False])
def test_a_worker_pauses_only_between_two_unrolls(context, between, monkeypatch):
    did = []
    monkeypatch.setattr(context, "pause", lambda: did.append("pause"))
    context.pausing = True
    listen(context, between, before_pause=lambda: did.append("before"))
    assert did == (["before", "pause"] if between else [])
    assert context.between == between


A2C_SMALL, DQN_SMALL = A2C(unroll=2, hidden=(4,)), DQN(unroll=2, min_size=8, capacity=64, batch=4, hidden=(4,))

ROLES = {
    "coarse": (A2C_SMALL, Coarse(2), {"actor": "Actor", "learner": "Learner"}),
    "fine": (A2C_SMALL, Fine(2), {"learner": "Learner"}),
    "replicated": (A2C_SMALL, Replicated(2), {"replica": "Learner"}),
    "decoupled": (A2C_SMALL, Decoupled(2), {"inference": "InferenceWorker", "learner": "Learner"}),
    "central": (A2C_SMALL, Central(2), {"worker": "TrainerWorker", "server": "Learner"}),
    "store": (DQN_SMALL, Store(2, 1), {"inference": "InferenceWorker", "store": "TrainerWorker", "learner": "Learner"}),
    "maps": (DQN_SMALL, Maps(2, 1), {"actor": "Actor", "mapper": "TrainerWorker", "learner": "Learner"}),
}


@pytest.mark.parametrize("case", ROLES)
def test_a_worker_follows_from_the_nodes_of_a_fragment(case, context):
    algorithm, distribution, expected = ROLES[case]
    built = build(algorithm, "CartPole-v1", distribution, envs=4)
    topology = derive_channels(built.plan, built.graph, host=True)
    found = {
        spec.fragment: worker_class(
            Assignment(
                context,
                built.graph,
                built.plan,
                topology,
                spec,
                StreamEnds({}, {}, {}),
                0,
                None,
                lambda indices: None,
                BlockMemory.create(),
                BlockStart(),
            )
        ).__name__
        for spec in topology.workers
        if not spec.env_only
    }
    assert found == expected
