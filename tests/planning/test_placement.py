"""Which machine runs what: every worker once, learners spread, stepping workers in proportion, steps at home."""

from collections import Counter
from itertools import groupby

import pytest
from custom_distributions import Maps, Store
from hypothesis import given
from hypothesis import strategies as st
from toys import Corridor, Drift, GradientReinforce, Reinforce, Tag

from runnel import distributions
from runnel.graph.flow import trace
from runnel.planning.channels import derive_channels, server_of
from runnel.planning.machine import Machine, in_order
from runnel.planning.placement import ReplicaRequest, place, served_by, shares, standalone_hosts
from runnel.planning.plan import build_plan

CPU = ("cpu:0",)


def machine(name, cpus, accelerators=0):
    return Machine(cpus, tuple(f"cuda:{i}" for i in range(accelerators)) or CPU, name, f"10.0.0.{ord(name[0])}")


def clusters(accelerators=4):
    sizes = st.tuples(st.integers(1, 64), st.integers(0, accelerators))
    return st.lists(sizes, min_size=1, max_size=6).map(
        lambda found: [machine("abcdef"[i], *size) for i, size in enumerate(found)]
    )


def stepping(count, **more):
    return ReplicaRequest(count, "cpu", steps_envs=True, acts=True, **more)


def learners(count):
    return ReplicaRequest(count, "one", learns=True)


actors_and_learners = st.builds(lambda n, k: [stepping(n), learners(k)], st.integers(1, 40), st.integers(1, 8))


@st.composite
def with_servers(draw):
    count = draw(st.integers(1, 40))
    servers = draw(st.integers(1, count))
    devices = draw(st.sampled_from(["cpu", "one"]))
    return [
        ReplicaRequest(count, "cpu", steps_envs=True),
        ReplicaRequest(servers, devices, acts=True),
        ReplicaRequest(draw(st.integers(1, 3)), "cpu"),
        learners(draw(st.integers(1, 4))),
    ]


layouts = st.one_of(
    actors_and_learners,
    with_servers(),
    st.builds(lambda n: [ReplicaRequest(n, "one", learns=True, steps_envs=True, acts=True)], st.integers(1, 16)),
    st.builds(lambda n, g: [ReplicaRequest(n, "cpu", steps_envs=True)]
              + [ReplicaRequest(1, "one", learns=True, acts=True)] * g,
              st.integers(1, 20), st.integers(1, 4)),
    st.builds(lambda n, m: [ReplicaRequest(n, "cpu", steps_envs=True),
                            ReplicaRequest(min(m, n), "one", learns=True, acts=True)],
              st.integers(1, 20), st.integers(1, 4)),
)  # fmt: skip


def hosts(seats):
    return [seat.machine for seat in seats]


# What holds for all


@given(layouts, clusters())
def test_every_worker_has_one_seat_on_a_machine_that_has_its_devices(wanted, machines):
    placed = place(wanted, machines)
    assert [len(seats) for seats in placed] == [each.replicas for each in wanted]
    for each, seats in zip(wanted, placed, strict=True):
        for seat in seats:
            there = machines[seat.machine].devices
            assert set(seat.devices) <= {*there, "cpu:0"}
            if each.devices == "one" and any(m.accelerators for m in machines) and sum(map(len, placed)) > 1:
                assert seat.devices[0].startswith("cuda")


@given(layouts, clusters(), st.randoms(use_true_random=False))
def test_the_same_machines_in_another_order_give_the_same_placement(wanted, machines, random):
    others = machines[1:]
    random.shuffle(others)
    assert place(wanted, in_order(machines)) == place(wanted, in_order([machines[0], *others]))


@given(layouts, clusters())
def test_accelerators_of_a_machine_are_taken_in_turn(wanted, machines):
    placed = place(wanted, machines)
    for number, each in enumerate(machines):
        held = [seat.devices[0] for want, seats in zip(wanted, placed, strict=True) for seat in seats
                if seat.machine == number and want.devices == "one"]  # fmt: skip
        counts = [held.count(device) for device in each.devices]
        assert max(counts) - min(counts) <= 1


@given(st.integers(0, 100), st.lists(st.integers(0, 50), min_size=1, max_size=6), st.sets(st.integers(0, 5)))
def test_shares_are_within_one_of_what_is_due(count, weights, near):
    found = shares(count, weights, near)
    assert sum(found) == count
    due = weights if sum(weights) else [1] * len(weights)
    assert all(abs(n - count * weight / sum(due)) < 1 for n, weight in zip(found, due, strict=True))


# Learning and playing


@given(layouts, clusters())
def test_learners_are_spread_evenly_over_accelerators_or_machines(wanted, machines):
    placed = place(wanted, machines)
    if sum(map(len, placed)) == 1:
        return
    found = Counter(h for each, seats in zip(wanted, placed, strict=True) if each.learns for h in hosts(seats))
    weights = [m.accelerators for m in machines] if any(m.accelerators for m in machines) else [1] * len(machines)
    for number, weight in enumerate(weights):
        assert abs(found[number] - found.total() * weight / sum(weights)) < 1


@given(actors_and_learners, clusters())
def test_stepping_workers_are_in_proportion_to_the_cpus_that_are_left_and_neighbours_share_a_machine(wanted, machines):
    at, learning = map(hosts, place(wanted, machines))
    free = [max(0, m.cpus - learning.count(i)) for i, m in enumerate(machines)]
    free = free if any(free) else [m.cpus for m in machines]
    for number, cpus in enumerate(free):
        assert abs(at.count(number) - len(at) * cpus / sum(free)) < 1
    assert len([host for host, _ in groupby(at)]) == len(set(at))


def test_stepping_workers_are_near_the_learners_that_they_feed():
    cluster = [machine("a", 9), machine("b", 9), machine("c", 8)]
    at, learning = map(hosts, place([stepping(12), learners(2)], cluster))
    assert learning == [0, 1]
    assert at == [0] * 4 + [2] * 4 + [1] * 4  # those of c, which has no learner, are in between


def test_what_runs_after_the_rollout_is_with_the_learner():
    _, mapping, learning = map(hosts, place([stepping(4), ReplicaRequest(3, "cpu"), learners(1)],
                                            [machine("a", 4), machine("b", 16, 1)]))  # fmt: skip
    assert learning == [1]
    assert mapping == [1, 1, 1]


def test_a_single_worker_runs_where_the_driver_does():
    (seats,) = place(
        [ReplicaRequest(1, "one", learns=True, steps_envs=True, acts=True)],
        [machine("a", 2), machine("b", 64, 8)],
    )
    assert seats == [(0, CPU)]


# Acting for others


@given(with_servers(), clusters(accelerators=0))
def test_no_step_crosses_where_there_are_as_many_servers_as_machines(wanted, machines):
    at, serving, *_ = map(hosts, place(wanted, machines))
    crossing = [i for i, host in enumerate(at) if host != serving[served_by(i, len(at), len(serving))]]
    assert not crossing or len(serving) < len(machines)
    assert len([host for host, _ in groupby(at)]) == len(set(at))


@given(with_servers(), clusters())
def test_a_server_is_where_most_of_its_workers_are_that_could_be(wanted, machines):
    at, serving, *_ = map(hosts, place(wanted, machines))
    able = {i for i, m in enumerate(machines) if m.accelerators} if wanted[1].devices == "one" else set()
    able = able or set(range(len(machines)))
    for server, host in enumerate(serving):
        own = Counter(h for i, h in enumerate(at) if served_by(i, len(at), len(serving)) == server)
        assert host in able
        assert own[host] == max(own[i] for i in able)


def test_servers_that_need_accelerators_leave_fewer_cpus_to_workers_that_step():
    wanted = [ReplicaRequest(7, "cpu", steps_envs=True), ReplicaRequest(4, "one", acts=True), learners(1)]
    at, serving, learning = map(hosts, place(wanted, [machine("a", 6, 2), machine("b", 6)]))
    assert (serving, learning) == ([0] * 4, [0])
    assert at == [0] + [1] * 6


def test_learners_that_act_keep_the_workers_that_they_serve_with_them():
    at, learning = map(
        hosts,
        place([ReplicaRequest(8, "cpu", steps_envs=True), ReplicaRequest(2, "one", learns=True, acts=True)],
              [machine("a", 16), machine("b", 8)]),
    )  # fmt: skip
    assert learning == [0, 1]
    assert at == [0] * 4 + [1] * 4


# Plans


HOMES = [machine("a", 8), machine("b", 8)]
MIXED = [machine("a", 4), machine("b", 16, 2), machine("c", 32)]
NAMES = [name for name in distributions.names() if name not in ("inline", "fused")]


@pytest.mark.parametrize("cluster", [HOMES, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("distribution", [*(distributions.load(name)() for name in NAMES), Maps()],
                         ids=[*NAMES, "maps"])  # fmt: skip
def test_every_distribution_has_a_place_for_every_worker(distribution, cluster):
    plan = build_plan(distribution, trace(GradientReinforce(), Corridor.spec, 16), Corridor(), cluster)
    workers = [name for fragment in plan.fragments for name in fragment.workers()]
    assert list(plan.hosts) == workers
    assert {*plan.hosts.values()} <= {each.name for each in cluster}
    assert plan.host(workers[0]) == plan.hosts[workers[0]]


def test_groups_of_agents_learn_on_machines_of_their_own():
    plan = build_plan(distributions.load("environments")(actors=4), trace(Drift(), Tag.spec, 8), Tag(), HOMES)
    assert plan.host("hunter") != plan.host("runners")


@pytest.mark.parametrize("inference", [1, 2, 3])
@pytest.mark.parametrize("distribution", [distributions.load("decoupled"), Store])
def test_a_plan_serves_as_the_topology_does(distribution, inference):
    graph = trace(Reinforce(), Corridor.spec, 30)
    plan = build_plan(distribution(actors=5, inference=inference), graph, Corridor(), HOMES)
    topology = derive_channels(plan, graph, host=True)
    stepping, acts = plan.stepping, plan.home("act")
    for block in topology.blocks:
        number = stepping.workers().index(block.worker)
        assert server_of(acts, stepping, block) == acts.workers()[served_by(number, 5, inference)]
    steps = [stream for stream in topology.streams if stream.kind == "request"]
    crossing = [stream for stream in steps if plan.host(stream.source) != plan.host(stream.target)]
    assert bool(crossing) == (inference == 1)
    assert any("crosses the network" in note for note in plan.notes) == bool(crossing)


def test_workers_beside_the_plan_take_the_free_cpus_of_the_emptiest_machines():
    cpus = {"a": 4, "b": 2, "c": 3}
    assert standalone_hosts(3, cpus, {"a": 3, "b": 0, "c": 2}) == ["b", "a", "b"]
    assert standalone_hosts(6, cpus, {"a": 3, "b": 0, "c": 2}) == ["b", "a", "b", "c", None, None]
    assert standalone_hosts(2, cpus, {"a": 9, "b": 9, "c": 9}) == [None, None]
    assert standalone_hosts(1, {}, {}) == [None]
    assert standalone_hosts(0, cpus, {}) == []


@given(st.integers(0, 20), clusters(), st.lists(st.integers(0, 8), min_size=6, max_size=6))
def test_workers_beside_the_plan_are_beside_the_driver_only_if_no_cpu_is_free(count, machines, taken):
    cpus, workers = {m.name: m.cpus for m in machines}, dict(zip("abcdef", taken, strict=True))
    free = {name: max(0, cpus[name] - workers[name]) for name in cpus}
    found = Counter(standalone_hosts(count, cpus, workers))
    assert found.total() == count
    assert found[None] == max(0, count - sum(free.values()))
    assert all(found[name] <= free[name] for name in cpus)
