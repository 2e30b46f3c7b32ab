"""The channels of a plan: what `runnel plan` shows is what is opened, and both ends of a channel agree."""

import re
from collections import Counter, defaultdict

import jax
import pytest
from checkpoints import topology_of
from conformance import ALGORITHMS, HOST, PLANS, RANKED, shown
from custom_distributions import Maps, Split, Store
from toys import Drift

from runnel.distributions.asynchronous import Async
from runnel.distributions.central import Central
from runnel.distributions.coarse import Coarse
from runnel.distributions.decoupled import Decoupled
from runnel.distributions.fine import Fine
from runnel.distributions.replicated import Replicated
from runnel.execution.building import build
from runnel.planning.channels import MOST_SLOTS
from runnel.transport.stream import schema_of


def opened(algorithm, environment, distribution, envs):
    """What is built, and its channels."""
    built = build(algorithm, environment, distribution, envs)
    return built, topology_of(built)


# Every plan of the conformance suite

EDGE = re.compile(r"  (\S+) -> (\S+)  .+  (\S+), .+  [\d.]+ \w+ an iteration")


def edges_in_text(plan):
    """The cut edges that `runnel plan` prints, as (source, target), without what JAX exchanges itself."""
    lines = plan.text().splitlines()
    if "no cut edges: everything is one program or one process" in lines:
        return []
    at = lines.index("cut edges") + 1
    found = [EDGE.fullmatch(line) for line in lines[at : at + len(plan.cuts)]]
    return [(line[1], line[2]) for line in found if line[3] != "all-reduce"]


def check_shown(plan, topology):
    """What is shown is what is opened, in the plan and in its text."""
    home = {worker.name: worker.fragment for worker in topology.workers}
    assert list(home) == [name for fragment in plan.fragments for name in fragment.workers()]
    streams = {(s.kind, home[s.source], home[s.target], s.node or s.group) for s in topology.streams}
    stores = {("store", home[s.source], home[target], s.group) for s in topology.stores for target in s.targets}
    assert streams | stores == shown(plan)
    assert {(source, target) for _, source, target, _ in streams | stores} == set(edges_in_text(plan))
    assert len(edges_in_text(plan)) == sum(cut.channel != "collective" for cut in plan.cuts)


def check_ends(plan, topology):
    """Every worker of a fragment has an end of each of its channels; none is opened twice or leads back."""
    workers = {fragment.name: set(fragment.workers()) for fragment in plan.fragments}
    for channel, source, target, whose in shown(plan):
        if channel == "store":
            (store,) = (each for each in topology.stores if each.group == whose)
            assert store.source == plan.fragment(source).workers()[0]
            assert workers[target] <= {*store.targets}
            continue
        ends = [(s.source, s.target) for s in topology.streams if (s.kind, s.node or s.group) == (channel, whose)]
        assert {a for a, _ in ends if a in workers[source]} == workers[source]
        assert {b for _, b in ends if b in workers[target]} == workers[target]
    for names in (
        [stream.name for stream in topology.streams],
        [store.group for store in topology.stores],
        *([store.source, *store.targets] for store in topology.stores),
        *([stream.source, stream.target] for stream in topology.streams),
    ):
        assert len({*names}) == len(names)


def check_blocks(plan, topology):
    """Each environment is in one block, which is answered by the worker that it asks."""
    assert [env for block in topology.blocks for env in block.envs] == list(range(plan.envs))
    owners = {block.number: block.worker for block in topology.blocks}
    asked = {(s.group, s.block): (s.source, s.target) for s in topology.streams if s.kind == "request"}
    answered = {(s.group, s.block): (s.target, s.source) for s in topology.streams if s.kind == "reply"}
    assert asked == answered
    assert all(player == owners[block] for (_, block), (player, _) in asked.items())


def check_messages(plan, topology):
    """The streams of an edge differ by the sizes of their blocks alone, and have no more slots than may be stale."""
    envs = {block.number: len(block.envs) for block in topology.blocks}
    found = defaultdict(set)
    for s in topology.streams:
        found[s.kind, s.group, s.node, envs.get(s.block)].add((s.schema, s.slots))
        assert s.slots >= 1
        if s.kind == "unroll":
            assert s.slots <= min(MOST_SLOTS, 1 + plan.limit_iterations[s.group])
    assert {key: messages for key, messages in found.items() if len(messages) > 1} == {}


def check_rotation(plan, topology):
    """In each iteration, each unroll and each value has one taker: replicas that do not share one are in rotation."""
    home = {worker.name: worker.fragment for worker in topology.workers}
    stepping = plan.stepping
    taken = defaultdict(list)
    for s in topology.streams:
        for iteration in range(12):
            if (
                s.kind in ("unroll", "value")
                and s.source_rotation.takes(iteration)
                and s.target_rotation.takes(iteration)
            ):
                taken[s.kind, home[s.source], home[s.target], s.group or s.node, iteration].append(s)
    for (kind, source, *_), streams in taken.items():
        if kind == "unroll":
            made = [stream.block for stream in streams]
            assert sorted(made) == [block.number for block in topology.blocks]
        elif source == stepping.name:  # each has values of its own environments
            assert sorted(stream.source for stream in streams) == sorted(stepping.workers())
        else:
            assert len(streams) == 1


def check_stores(built, topology):
    """A store holds parameters, or the whole state where its readers compute gradients."""
    gradients = {fragment.name for fragment in built.plan.fragments if "gradient" in fragment.nodes}
    home = {worker.name: worker.fragment for worker in topology.workers}
    for store in topology.stores:
        state = built.graph.states[store.group]
        assert store.whole == any(home[target] in gradients for target in store.targets)
        assert store.schema == schema_of(jax.tree.leaves(state if store.whole else state.params))


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_shows_what_is_opened_and_both_ends_agree(name):
    built, topology = opened(*PLANS[name])
    check_shown(built.plan, topology)
    check_ends(built.plan, topology)
    check_blocks(built.plan, topology)
    check_messages(built.plan, topology)
    check_rotation(built.plan, topology)
    check_stores(built, topology)


# How many there are, counted by hand


@pytest.mark.parametrize(
    ("algorithm", "environment", "distribution", "streams", "stores"),
    [
        ("ppo", HOST, Coarse(3), {"unroll": 3}, {"agent": 3}),
        ("ppo", HOST, Fine(3, env_splits=2), {"request": 6, "reply": 6}, {}),
        ("a2c", HOST, Replicated(4), {}, {}),
        ("impala", HOST, Async(actors=4, learners=2), {"unroll": 4}, {"agent": 4}),
        # Two blocks a worker; versions go to the environments, parameters to inference.
        (
            "impala",
            HOST,
            Decoupled(actors=4, inference=2, learners=2),
            {"request": 8, "reply": 8, "unroll": 8},
            {"agent": 6},
        ),
        ("a2c", HOST, Central(actors=4), {"value": 4}, {"agent": 4}),
        # Each actor's unroll may be any mapper's, and each mapper gives to the learner.
        ("dqn", HOST, Maps(actors=2, mappers=3), {"unroll": 6, "value": 3}, {"agent": 2}),
        # Batches from the store, priorities back.
        (
            RANKED,
            HOST,
            Store(actors=4, inference=2),
            {"request": 4, "reply": 4, "unroll": 4, "value": 2},
            {"agent": 6},
        ),
        # Runners act elsewhere, hunters where the environments are, which all need to know the newest version.
        (
            Drift(),
            "toys:Tag",
            Split(actors=2),
            {"request": 2, "reply": 2, "unroll": 4},
            {"hunter": 2, "runners": 3},
        ),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str | dict) else None,
)
def test_the_number_of_channels(algorithm, environment, distribution, streams, stores):
    _, topology = opened(ALGORITHMS.get(algorithm, algorithm) if isinstance(algorithm, str) else algorithm,
                         environment, distribution, 24)  # fmt: skip
    assert Counter(stream.kind for stream in topology.streams) == streams
    assert {store.group: len(store.targets) for store in topology.stores} == stores


@pytest.mark.parametrize(
    ("environment", "light"), [(HOST, {"environment-0", "environment-1"}), ("toys:Corridor", set())]
)
def test_only_workers_of_host_environments_need_no_jax(environment, light):
    _, topology = opened(ALGORITHMS["impala"], environment, Decoupled(actors=2), 8)
    assert {worker.name for worker in topology.workers if worker.env_only} == light


@pytest.mark.parametrize("name", ["decoupled, many of each", "store, ranked, on JAX", "split on a host"])
def test_every_process_derives_the_same_channels(name):
    """A worker derives them from the run's configuration, and takes the descriptors that it gets in their order."""
    (_, one), (_, other) = opened(*PLANS[name]), opened(*PLANS[name])
    assert one == other
    for worker in one.workers:
        streams, stores = one.of(worker.name)
        assert streams == [s for s in other.streams if worker.name in (s.source, s.target)]
        assert stores == [s for s in other.stores if worker.name in (s.source, *s.targets)]
