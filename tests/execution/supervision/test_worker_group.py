"""The channels that a worker group opens, tried out with the ends that its workers get, and shared over machines."""

import os
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from checkpoints import topology_of
from conformance import HOST, PLANS, TRAINS, shown

from runnel.config import run_config
from runnel.config.run_config import RunConfig
from runnel.distributions.decoupled import Decoupled
from runnel.execution.building import build
from runnel.execution.supervision.worker_group import WorkerGroup
from runnel.execution.supervision.worker_main import WorkerBootstrap
from runnel.execution.training import described
from runnel.launch.site import LocalSite
from runnel.planning.machine import Machine
from runnel.runtime.workers.ports import OutPort

SOME = ("impala", "sac", "mappo")
SLOW = {f"{algorithm}, {name}" for algorithm, name in TRAINS if algorithm not in SOME}
"""Other algorithms open as much."""


class Launcher:
    """Records what workers are started with, and starts none."""

    def __init__(self):
        self.commands = []

    def prepare(self, entry, job): ...

    def start_all(self, commands):
        self.commands += commands
        return []

    def close(self, seconds): ...


class Machines:
    """A site of several machines that records what each is to open."""

    transport = "none"

    def open(self, layouts):
        self.layouts = layouts

    def close(self, seconds): ...


def group_of(built, site, run_dir, machines):
    config = run_config.to_json(replace(RunConfig(), envs=built.graph.envs), described(built))
    return WorkerGroup(built, topology_of(built), config, run_dir, site, machines)


@contextmanager
def attached(command):
    """A worker's ends of its channels, as its process would attach to them."""
    worker = WorkerBootstrap(command.job, SimpleNamespace(), [os.dup(fd) for fd in command.fds])
    yield worker
    stores = (store for _, store in worker.stores)
    for each in (worker.bell, *worker.bells.values(), *worker.streams, *stores, worker.memory):
        each.close()


def sent(workers, home, nodes):
    """A message over each stream, from the worker at one end to that at the other: what was delivered."""
    outs, ins = {}, {}
    for worker in workers.values():
        for spec, port in worker.ports(worker.context):
            (outs if isinstance(port, OutPort) else ins)[spec.name] = spec, port
    assert outs.keys() == ins.keys()
    for number, (name, (spec, out)) in enumerate(outs.items()):
        for array in out.slots[out.claim(number)]:
            array[...] = np.asarray(number % 2, array.dtype)
        out.writer.commit((number, 0))
        message = ins[name][1].receive()
        assert (message.iteration, message.header) == (number, (number, 0))
        assert all((array == np.asarray(number % 2, array.dtype)).all() for array in message.arrays)
        yield spec.kind, home[spec.source], home[spec.target], nodes[name] or spec.group


def published(workers, home, store):
    """Parameters in a store, and who has read them."""
    ends = {name: end for name, worker in workers.items() for spec, end in worker.stores if spec.group == store.group}
    assert ends.keys() == {store.source, *store.targets}
    ends[store.source].writer([]).publish([np.ones(shape, dtype) for shape, dtype in store.schema], 3, 4)
    for target in store.targets:
        read = ends[target].reader().read()
        assert (read.version, read.iteration) == (3, 4)
        assert all((array == 1).all() for array in read.arrays)
        yield "store", home[store.source], home[target], store.group


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PLANS])
def test_what_a_plan_shows_can_be_sent_between_its_workers(name, tmp_path):
    algorithm, environment, distribution, envs = PLANS[name]
    built = build(algorithm, environment, distribution, envs)
    launcher = Launcher()
    group = group_of(built, LocalSite(launcher, tmp_path), tmp_path, [Machine.here()])
    try:
        group.start()
        home = {spec.name: spec.fragment for spec in group.topology.workers}
        nodes = {stream.name: stream.node for stream in group.topology.streams}
        assert [command.name for command in launcher.commands] == list(home)
        with ExitStack() as stack:
            workers = {command.name: stack.enter_context(attached(command)) for command in launcher.commands}
            delivered = {*sent(workers, home, nodes)}
            for store in group.topology.stores:
                delivered |= {*published(workers, home, store)}
        assert delivered == shown(built.plan)
    finally:
        group.close(0.0)


def test_a_machine_opens_the_channels_that_have_an_end_there(tmp_path):
    machines = [Machine(4, ("cpu:0",), name, f"10.0.0.{k}") for k, name in enumerate("abc", 1)]
    algorithm = PLANS["decoupled, many of each"].algorithm
    built = build(algorithm, HOST, Decoupled(actors=6, inference=2, learners=2), 24, machine=machines)
    site = Machines()
    group = group_of(built, site, tmp_path, machines)
    streams, stores = group.topology.streams, group.topology.stores
    assert {*group.hosts.values()} == site.layouts.keys() == {"a", "b", "c"}
    for host, layout in site.layouts.items():
        here = {name for name, at in group.hosts.items() if at == host}
        assert {*layout.workers} == here
        assert {stream.id for stream in layout.streams} == {
            number for number, stream in enumerate(streams) if {stream.source, stream.target} & here
        }
        assert {store.id for store in layout.stores} == {
            number for number, store in enumerate(stores) if {store.source, *store.targets} & here
        }
        for stream in layout.streams:
            wanted = streams[stream.id]
            assert (stream.source, stream.target, stream.schema, stream.slots) == (
                wanted.source, wanted.target, wanted.schema, wanted.slots,
            )  # fmt: skip


def test_an_environment_worker_gets_as_many_descriptors_however_many_others_there_are(tmp_path):
    """Every environment worker reads the versions of the parameters; only their source rings the readers."""
    algorithm, found = PLANS["decoupled, many of each"].algorithm, {}
    for actors in (2, 32):
        built = build(algorithm, HOST, Decoupled(actors=actors), 64)
        launcher, run_dir = Launcher(), tmp_path / str(actors)
        group = group_of(built, LocalSite(launcher, run_dir), run_dir, [Machine(64, ("cpu:0",))])
        try:
            group.start()
            (store,) = group.topology.stores
            commands = {command.name: command for command in launcher.commands}
            workers = [command for command in launcher.commands if command.env_only]
            assert len(workers) == actors
            assert {command.name for command in workers} < {*store.targets}
            found[actors] = {len(command.fds) for command in workers}
            assert {*store.targets} <= {*commands[store.source].job["bells"]}
        finally:
            group.close(0.0)
    assert found[2] == found[32]
    assert len(found[2]) == 1
