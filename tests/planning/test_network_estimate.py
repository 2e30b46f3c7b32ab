"""What crosses between machines, against counts made by hand."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from custom_distributions import Store
from toys import Corridor, GradientReinforce, Reinforce

from runnel import distributions
from runnel.algorithms.dqn import DQN
from runnel.graph.flow import trace
from runnel.planning.channels import derive_channels
from runnel.planning.machine import Machine
from runnel.planning.network_estimate import HEADER_BYTES, estimate_network, message_bytes
from runnel.planning.plan import build_plan
from runnel.transport.wire import batches_bytes

A, B = Machine(2, ("cpu:0",), "a", "10.0.0.1"), Machine(2, ("cpu:0",), "b", "10.0.0.2")
STEPS = 8

# Of a corridor's environment: an observation of two float32, an action of int32, a reward of float32, flags of a byte.
# An unroll has, for each step, two observations, action, reward, three flags, and return and length of what ended;
# and once, the discounted sum.
OBSERVATION, ACTION, REWARD, FLAG = 8, 4, 4, 1
UNROLL = STEPS * (2 * OBSERVATION + ACTION + REWARD + 3 * FLAG + 4 + 4) + 4
PARAMS = 4 * (2 * 2 + 2)
ACTED = 3 * 8  # of a value: which versions acted in what it was made from


@dataclass(frozen=True)
class Patient(GradientReinforce):
    """Bears that others learn meanwhile."""

    max_staleness: ClassVar[int] = 4


def predicted(distribution, algorithm=None, envs=4, machines=(A, B), hosts=None):
    graph = trace(algorithm or Reinforce(), Corridor.spec, envs)
    plan = build_plan(distribution, graph, Corridor(), machines)
    if hosts is not None:
        plan = replace(plan, hosts={name: hosts.get(name, hosts.get("*")) for name in plan.hosts})
    return plan, estimate_network(plan, graph, derive_channels(plan, graph, host=True))


def flows(crossing):
    return {(flow.kind, flow.source, flow.target): (flow.messages, flow.bytes) for flow in crossing.flows}


def test_coarse_sends_unrolls_up_and_parameters_down():
    plan, crossing = predicted(distributions.load("coarse")(actors=2))
    assert plan.hosts == {"actor-0": "a", "actor-1": "b", "learner": "a"}
    assert flows(crossing) == {
        ("unroll", "b", "a"): (1, 2 * UNROLL + HEADER_BYTES),
        ("parameters", "a", "b"): (1, PARAMS + HEADER_BYTES),
    }
    total = 2 * UNROLL + PARAMS + 2 * HEADER_BYTES
    assert crossing.bytes_per_iteration == total
    assert crossing.bytes_per_step == total / (4 * STEPS)
    assert crossing.by_pair() == {("b", "a"): 2 * UNROLL + HEADER_BYTES, ("a", "b"): PARAMS + HEADER_BYTES}


def test_parameters_cross_once_to_a_machine_however_many_act_there():
    _, crossing = predicted(distributions.load("coarse")(actors=8), envs=8)
    found = flows(crossing)
    assert found["parameters", "a", "b"] == (1, PARAMS + HEADER_BYTES)
    assert found["unroll", "b", "a"][0] > 1


def test_fine_sends_what_a_step_returned_and_gets_an_action_each_step():
    plan, crossing = predicted(distributions.load("fine")(actors=2))
    assert plan.host("environment-1") == "b"
    request = 2 * (2 * OBSERVATION + REWARD + 3 * FLAG)
    assert flows(crossing) == {
        ("request", "b", "a"): (STEPS, STEPS * (request + HEADER_BYTES)),
        ("reply", "a", "b"): (STEPS, STEPS * (2 * ACTION + HEADER_BYTES)),
    }


def test_who_is_acted_for_in_step_is_answered_together():
    plan, crossing = predicted(distributions.load("fine")(actors=8), envs=8)
    there = sum(plan.host(f"environment-{i}") == "b" for i in range(8))
    messages, size = flows(crossing)["reply", "a", "b"]
    assert messages == there * STEPS
    assert size == pytest.approx(STEPS * (there * (ACTION + HEADER_BYTES) - (there - 1) * batches_bytes()))


def test_decoupled_asks_over_the_network_only_where_no_worker_of_the_machine_acts():
    plan, crossing = predicted(distributions.load("decoupled")(actors=2, inference=1, env_splits=2), Patient())
    assert plan.hosts == {"environment-0": "a", "environment-1": "b", "inference": "b", "learner": "a"}
    assert flows(crossing) == {  # a worker's two environments are two blocks
        ("request", "a", "b"): (2 * STEPS, 2 * STEPS * (OBSERVATION + FLAG + HEADER_BYTES)),
        ("reply", "b", "a"): (2 * STEPS, 2 * STEPS * (ACTION + HEADER_BYTES)),
        ("unroll", "b", "a"): (2, 2 * (UNROLL + HEADER_BYTES)),
        ("parameters", "a", "b"): (1, PARAMS + HEADER_BYTES),
    }
    _, crossing = predicted(distributions.load("decoupled")(actors=2, inference=2))
    assert {*crossing.by_kind()} == {"unroll", "parameters"}


def test_central_sends_gradients_up_and_the_whole_state_down():
    state = PARAMS + 4 + 2 * PARAMS  # Adam's count and two moments
    plan, crossing = predicted(distributions.load("central")(actors=2), GradientReinforce())
    assert plan.hosts == {"worker-0": "a", "worker-1": "b", "server": "a"}
    assert flows(crossing) == {  # no staleness: the mean of both
        ("value", "b", "a"): (1, ACTED + PARAMS + HEADER_BYTES),
        ("parameters", "a", "b"): (1, state + HEADER_BYTES),
    }
    _, crossing = predicted(distributions.load("central")(actors=2), Patient())
    assert flows(crossing)["parameters", "a", "b"] == (2, 2 * (state + HEADER_BYTES))  # after each worker's


def test_learners_exchange_gradients_by_themselves():
    _, crossing = predicted(distributions.load("replicated")(learners=2))
    assert not crossing.flows
    assert crossing.gradient_bytes == PARAMS
    assert crossing.text() == "across machines: gradients of 24 B each gradient step, by JAX itself"


def test_a_replay_elsewhere_sends_as_many_batches_as_it_may():
    hosts = {"*": "a", "learner": "b"}
    plan, crossing = predicted(Store(actors=2, inference=1), DQN(), 16, hosts=hosts)
    graph = trace(DQN(), Corridor.spec, 16)
    (rate,) = {edge.per_iteration for edge in graph.edges if edge.what == "batch"}
    batches = next(flow for flow in crossing.flows if flow.kind == "value" and flow.source == "a")
    assert batches.messages == max(rate, 1)
    streams = [
        stream
        for stream in derive_channels(plan, graph, host=True).streams
        if stream.kind == "value" and stream.target == "learner"
    ]
    assert batches.bytes == sum(batches.messages * message_bytes(stream.schema) for stream in streams)


@pytest.mark.parametrize("name", distributions.names())
def test_on_one_machine_nothing_crosses(name):
    _, crossing = predicted(distributions.load(name)(), GradientReinforce(), machines=A)
    assert not crossing.flows
    assert not crossing.gradient_bytes
    assert crossing.bytes_per_step == 0
    assert crossing.text() == "across machines: nothing"


def test_it_can_be_read_by_people_and_machines():
    _, crossing = predicted(distributions.load("coarse")(actors=2))
    told = crossing.json()
    assert told["by_kind"] == {"unroll": 2 * UNROLL + HEADER_BYTES, "parameters": PARAMS + HEADER_BYTES}
    assert told["by_pair"] == [["b", "a", 2 * UNROLL + HEADER_BYTES], ["a", "b", PARAMS + HEADER_BYTES]]
    assert crossing.text() == "across machines: 31 B per environment step (unroll 24 B, parameters 7.2 B)"
