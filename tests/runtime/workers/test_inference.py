"""A server that nobody waits in step for answers every question once, the same whoever asked beside whom."""

import math
import time

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runnel
from runnel.algorithms.impala import IMPALA
from runnel.distributions.decoupled import Decoupled
from runnel.errors import UserError
from runnel.graph.flow import trace
from runnel.planning.channels import EnvBlock, group_types
from runnel.planning.schemas import parts, reply_fields, request_fields, schema
from runnel.runtime.workers.inference import AsyncInferenceServer, InferenceClient
from runnel.runtime.workers.ports import SLICE_S, InPort, OutPort, WorkerContext
from runnel.runtime.workers.stream_headers import StepHeader
from runnel.transport import in_process
from runnel.types import DEFAULT_GROUP, Box, Discrete, EnvSpec

BLOCKS, ENVS, UNROLL = 3, 2, 4
SPEC = EnvSpec.single("toy", Box((3,)), Discrete(5))


class Asker:
    """A block's own ends: asks for one step after the other, each once the last is answered."""

    def __init__(self, graph, number):
        types = group_types(graph)[DEFAULT_GROUP]
        self.fields = request_fields(types, ENVS, results=False), reply_fields(types, ENVS, extras=True)
        context, bell = WorkerContext("environment", in_process.InProcessBell(), None), in_process.InProcessBell()
        asked, told = (in_process.create(schema(fields), 2) for fields in self.fields)
        self.out = OutPort(context, asked.writer(bell, bell), "request")
        self.port = InPort(context, told.reader(bell, bell), "reply")
        block = EnvBlock(number, f"environment-{number}", number * ENVS, (number + 1) * ENVS, 0)
        server_side = (
            InPort(context, asked.reader(bell, bell), "request"),
            OutPort(context, told.writer(bell, bell), "reply"),
        )
        self.client = InferenceClient(graph, DEFAULT_GROUP, block, *server_side, None)
        self.number = number
        self.step, self.waits = 0, False

    def ask(self):
        if not self.waits:
            rng = np.random.default_rng((self.number, self.step))
            self.out.send(StepHeader(self.step), [rng.standard_normal((ENVS, 3)), rng.random(ENVS) < 0.3])
            self.waits = True

    def replies(self):
        while self.port.peek():
            message = self.port.receive()
            named = parts(self.fields[1], message.arrays)
            step = StepHeader.unpack(message.header).step
            told = [*named["action"], *named["extras"], *(named["memory"] if step % UNROLL == 0 else [])]
            yield step, [array.copy() for array in told]
            self.port.release(message)
            assert step == self.step
            self.step, self.waits = self.step + 1, False


class World:
    def __init__(self):
        algorithm = IMPALA(unroll=UNROLL, hidden=(8,), memory="gru", memory_size=4)
        self.graph = trace(algorithm, SPEC, BLOCKS * ENVS)
        params = algorithm.init(jax.random.key(1), SPEC.groups[DEFAULT_GROUP]).params
        self.askers = [Asker(self.graph, number) for number in range(BLOCKS)]
        self.server = AsyncInferenceServer(
            WorkerContext("inference", in_process.InProcessBell(), None), self.graph,
            [asker.client for asker in self.askers],
            lambda unroll: (0, {DEFAULT_GROUP: params}), seed=5,
        )  # fmt: skip
        self.server.compile()
        self.memory = jax.tree.map(np.asarray, self.server.memory)

    def play(self, turns, ahead):
        """What every question was answered, where in each turn some ask whose last question was."""
        self.server.ahead = ahead
        self.server.memory = jax.tree.map(jax.numpy.asarray, self.memory)
        for asker in self.askers:
            asker.step = 0
        answers, asked = {}, set()
        for turn in [*turns, []]:
            for number in turn:
                self.askers[number].ask()
                asked.add((number, self.askers[number].step))
            self.server.serve()
            if not ahead:
                assert self.server.flight is None
            for asker in self.askers:
                answers |= {(asker.number, step): told for step, told in asker.replies()}
        assert self.server.flight is None
        assert answers.keys() == asked
        return answers


@pytest.fixture(scope="module")
def world():
    return World()


@given(turns=st.lists(st.lists(st.integers(0, BLOCKS - 1), unique=True), max_size=12))
@settings(max_examples=40, deadline=None)
def test_who_asks_is_answered_once_and_the_same_however_batches_are_made(world, turns):
    at_once, later = world.play(turns, ahead=False), world.play(turns, ahead=True)
    one_by_one = world.play([[number] for turn in turns for number in turn], ahead=False)
    for key, told in later.items():
        others = [at_once.get(key), one_by_one.get(key)]
        for other in [each for each in others if each is not None]:
            for found, wanted in zip(told, other, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_batch_that_is_under_way_is_answered_before_a_pause(world):
    world.play([], ahead=True)
    world.askers[0].ask()
    world.server.serve()
    assert world.server.flight is not None
    assert not world.askers[0].port.peek()
    world.server.land()
    assert [step for step, _ in world.askers[0].replies()] == [0]


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def patient(world):
    """A server that waits 500 microseconds for full batches, whose time a test sets."""
    server, clock = world.server, Clock()
    world.play([], ahead=False)
    server._deadline_s, server._clock = 500e-6, clock
    server.context.counts.clear()
    yield server, clock
    server._deadline_s, server._clock, server._asked_at = None, time.monotonic, None


def answered(world):
    return [asker.number for asker in world.askers for _ in asker.replies()]


def counted(server):
    return {name: n for name, n in server.context.counts.items() if name.endswith("_batches")}


def test_an_incomplete_batch_departs_at_its_deadline(world, patient):
    server, clock = patient
    world.askers[1].ask()
    server.serve()
    assert answered(world) == []
    assert server.left_s() == pytest.approx(500e-6)
    clock.now_s += 300e-6
    world.askers[0].ask()  # a later request does not move the deadline of the first
    server.serve()
    assert answered(world) == []
    assert server.left_s() == pytest.approx(200e-6)
    clock.now_s += 201e-6
    assert server.due()
    server.serve()
    assert answered(world) == [0, 1]
    assert counted(server) == {"partial_batches": 1}
    assert server.left_s() == math.inf


def test_a_full_batch_waits_for_nothing_and_the_next_has_a_deadline_of_its_own(world, patient):
    server, clock = patient
    for asker in world.askers:
        asker.ask()
    server.serve()
    assert answered(world) == [0, 1, 2]
    assert counted(server) == {"full_batches": 1}
    clock.now_s += 1
    world.askers[2].ask()
    server.serve()
    assert answered(world) == []
    clock.now_s += 501e-6
    server.serve()
    assert answered(world) == [2]
    assert counted(server) == {"full_batches": 1, "partial_batches": 1}


def test_blocks_that_wait_for_an_answer_are_not_waited_for(world, patient):
    """Two are under way on the device: the third is all that can ask."""
    server, clock = patient
    server.ahead = True
    world.askers[0].ask()
    world.askers[1].ask()
    server.serve()
    clock.now_s += 501e-6
    server.serve()
    assert len(server.flight.clients) == 2
    world.askers[2].ask()
    server.serve()  # departs at once, and lands those before
    assert answered(world) == [0, 1]
    server.land()
    assert answered(world) == [2]
    assert counted(server) == {"partial_batches": 1, "full_batches": 1}


def test_without_a_deadline_a_batch_departs_at_once(world):
    world.play([], ahead=False)
    world.server.context.counts.clear()
    world.askers[1].ask()
    world.server.serve()
    assert answered(world) == [1]
    assert counted(world.server) == {"partial_batches": 1}


class Bell(in_process.InProcessBell):
    """Notes for how long it was to sleep, and sleeps not at all."""

    def __init__(self):
        super().__init__()
        self.slept = []

    def wait(self, ready, timeout_s):
        self.slept.append(timeout_s)
        return ready() if len(self.slept) == 3 else None


class Silent:
    closed = False

    def receive(self, timeout_s=0):
        return None

    def send(self, value, *, timeout_s):
        pass


def test_a_wait_sleeps_no_longer_than_it_may():
    """No bell rings at a deadline."""
    bell, left, found = Bell(), iter([0.5, 0.03, -0.001]), iter([None, "found"])
    context = WorkerContext("inference", bell, Silent())
    assert context.wait(lambda: next(found), "observations", lambda: next(left)) == "found"
    assert bell.slept == [SLICE_S, 0.03, 0.0]


def test_the_plan_gives_a_distributions_deadline_to_its_inference():
    graph = trace(IMPALA(unroll=UNROLL, hidden=(8,)), SPEC, 8)
    fragments = Decoupled(inference_deadline_us=300).layout(graph).fragments
    assert [fragment.deadline_us for fragment in fragments] == [None, 300, None]
    with pytest.raises(UserError, match="fragment inference: found deadline_us=-1, expected a whole number of"):
        Decoupled(inference_deadline_us=-1).layout(graph)


@pytest.mark.slow
def test_a_run_counts_full_and_partial_batches(tmp_path):
    run = runnel.train(
        IMPALA(unroll=8, hidden=(8,)), "CartPole-v1", Decoupled(actors=2, inference_deadline_us=2000), envs=8,
        steps=4096, run_dir=tmp_path / "run", quiet=True,
    )  # fmt: skip
    (inference,) = [worker for worker in run.result["workers"] if worker["fragment"] == "inference"]
    assert inference["full_batches"] > 0
    assert {*inference} >= {"full_batches", "env_steps"}
