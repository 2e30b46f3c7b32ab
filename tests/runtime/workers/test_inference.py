"""A server that nobody waits in step for answers every question once, the same whoever asked beside whom."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.algorithms.impala import IMPALA
from runnel.graph.flow import trace
from runnel.planning.channels import EnvBlock, group_types
from runnel.planning.schemas import parts, reply_fields, request_fields, schema
from runnel.runtime.workers.inference import AsyncInferenceServer, InferenceClient
from runnel.runtime.workers.ports import InPort, OutPort, WorkerContext
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
