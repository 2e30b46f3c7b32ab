"""The processes of a plan's workers and the channels between them, on one machine or on several."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from runnel.config import run_config
from runnel.execution.building import BuiltRun
from runnel.execution.supervision.fault_policy import replaceable
from runnel.graph.nodes import Graph
from runnel.launch.host import HostChannels, HostParameters, HostStream, WorkerOrder
from runnel.launch.site import Site, StreamFill, WorkerProcess
from runnel.planning.channels import ParameterChannel, StreamSpec, Topology, WorkerSpec, group_types
from runnel.planning.pace import paces
from runnel.planning.plan import Machine, Plan, learns
from runnel.runtime.worker_jobs import (
    BlockJob,
    BuildJob,
    EnvironmentChoice,
    EnvJob,
    GroupJob,
    PeersJob,
    RunJob,
    StoreJob,
    StreamJob,
    WorkerJob,
)
from runnel.transport import bell

LONG_SPIN_S = 5e-3
"""How long a worker that has a core of its own spins before it sleeps: waking up takes long, and its caches are cold
afterwards."""


class WorkerGroup:
    """All workers of a topology, each on its host."""

    def __init__(
        self, built: BuiltRun, topology: Topology, config: dict[str, Any], run_dir: Path, site: Site,
        machines: Sequence[Machine],
    ):  # fmt: skip
        self.built, self.topology, self.config, self.run_dir = built, topology, config, run_dir
        self.site, self.machines = site, {machine.name: machine for machine in machines}
        self.graph, self.plan = built.graph, built.plan
        self.specs = {spec.name: spec for spec in topology.workers}
        self.learners = {n for f in self.plan.fragments if learns(f, self.graph) for n in f.workers()}
        first = next(iter(self.machines))
        self.hosts = {name: self.plan.hosts.get(name, first) for name in self.specs}
        self._crowds = Counter(self.hosts.values())
        self._beside = Counter((self.hosts[name], spec.fragment) for name, spec in self.specs.items())
        self._sharing = Counter((self.hosts[n], device) for n, spec in self.specs.items() for device in spec.devices)
        self._blocks: dict[str, list[BlockJob]] = defaultdict(list)
        for b in topology.blocks:
            self._blocks[b.worker].append(BlockJob(b.number, b.start, b.stop))
        self._streams = _ends((stream.source, stream.target) for stream in topology.streams)
        self._stores = _ends((store.source, *store.targets) for store in topology.stores)
        try:
            site.open({host: self._layout(host) for host in dict.fromkeys(self.hosts.values())})
        except BaseException:
            self.close(0.0)
            raise

    @property
    def processes(self) -> Mapping[str, WorkerProcess]:
        return self.site.processes

    def _layout(self, host: str) -> HostChannels:
        """The channels of a host: all that have an end there."""
        stores = dict(enumerate(self.topology.stores))
        readers = {number: set(store.targets) for number, store in stores.items()}

        def here(*names: str) -> bool:
            return any(self.hosts[name] == host for name in names)

        def bounds(stream: StreamSpec) -> tuple[int, ...]:
            bounded = not self.plan.synchronous and stream.kind in ("unroll", "value")
            return tuple(n for n in stores if bounded and stream.source in readers[n])

        return HostChannels(
            tuple(name for name in self.specs if here(name)),
            tuple(
                HostStream(number, s.kind, s.source, s.target, s.schema, s.slots, bounds(s))
                for number, s in enumerate(self.topology.streams)
                if here(s.source, s.target)
            ),
            tuple(
                HostParameters(number, store.source, store.targets, store.schema)
                for number, store in stores.items()
                if here(store.source, *store.targets)
            ),
            self._balanced(host),
            self.site.transport,
        )  # fmt: skip

    def _balanced(self, host: str) -> tuple[str, ...]:
        """The workers that the host moves between cores. With fewer cores than workers, some sleep anyway."""
        here = tuple(name for name in barrier_workers(self.plan, self.graph) if self.hosts[name] == host)
        return here if 1 < len(here) <= self.machines[host].cpus else ()

    def streams(self) -> list[tuple[StreamSpec, StreamFill]]:
        """Every stream, as its reader's host sees it."""
        return [
            (stream, self.site.fill(self.hosts[stream.target], number))
            for number, stream in enumerate(self.topology.streams)
        ]

    # Starting

    def start(self, names: Iterable[str] | None = None) -> None:
        """Starts workers, all or those named."""
        specs = [self.specs[name] for name in names] if names is not None else list(self.topology.workers)
        run = self._run_job()
        if names is None and not all(spec.env_only for spec in specs):
            self.site.prepare("runnel.execution.supervision.worker_main:prepare", run.to_json())
        peers = self._peers(specs)
        orders: dict[str, list[WorkerOrder]] = defaultdict(list)
        for spec in specs:
            orders[self.hosts[spec.name]].append(self._order(spec, run, peers.get(spec.name)))
        self.site.start(orders)

    def _run_job(self) -> RunJob:
        asked = run_config.from_json(self.config)
        return RunJob(
            BuildJob(
                self.config["algorithm"],
                EnvironmentChoice(**self.config["environment"]),
                self.config["distribution"],
                self.config["envs"],
                tuple(sorted(self.graph.frozen)),
                self.graph.precision,
                tuple(asdict(machine) for machine in self.machines.values()),
            ),
            self.config["seed"],
            bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
            asked.snapshot_periods,
            asked.optional_snapshots,
        )

    def _order(self, spec: WorkerSpec, run: RunJob, peers: PeersJob | None) -> WorkerOrder:
        streams = [self.topology.streams[number] for number in self._streams[spec.name]]
        stores = [self.topology.stores[number] for number in self._stores[spec.name]]
        bells = _rung(spec.name, streams, stores)
        host = self.hosts[spec.name]
        crowd = self._crowds[host]
        job = WorkerJob(
            spec.name,
            run,
            LONG_SPIN_S if crowd <= self.machines[host].cpus else bell.SPIN_S,
            self.site.transport,
            bells,
            tuple(_stream_job(stream) for stream in streams),
            tuple(StoreJob(store.group, store.schema) for store in stores),
            peers,
            self._env_job(spec) if spec.env_only else None,
        )
        return WorkerOrder(
            spec.name,
            f"runnel.execution.supervision.worker_main:{'step_environments' if spec.env_only else 'work'}",
            job.to_json(),
            spec.env_only,
            self._environ(spec),
            tuple(name.partition(":")[2] for name in spec.devices if not name.startswith("cpu")),
            bells,
            tuple(self._streams[spec.name]),
            tuple(self._stores[spec.name]),
        )

    def _env_job(self, spec: WorkerSpec) -> EnvJob:
        fragment = self.plan.fragment(spec.fragment)
        rollouts = self.graph.of_kind("rollout")
        return EnvJob(
            EnvironmentChoice(**self.config["environment"]),
            self.graph.unroll,
            not self.plan.step_synchronous,
            {group: pace.lead for group, pace in paces(self.plan, self.graph).items()},
            tuple(node.group for node in rollouts if node.name in fragment.nodes),
            {node.group: node.rollout.discount for node in rollouts},
            tuple(self._blocks[spec.name]),
            {
                group: GroupJob(types.action, types.extras, types.memory, types.real, types.omits)
                for group, types in group_types(self.graph).items()
            },
        )

    def _environ(self, spec: WorkerSpec) -> dict[str, str]:
        host = self.hosts[spec.name]
        platform = spec.devices[0].partition(":")[0]
        environ = {"JAX_ENABLE_X64": "1" if jax.config.jax_enable_x64 else "0"}  # type: ignore[attr-defined]
        if platform == "cpu":
            fragment = self.plan.fragment(spec.fragment)
            own = 1
            if learns(fragment, self.graph):
                replicas = self._beside[host, spec.fragment]
                own = max(1, (self.machines[host].cpus - (self._crowds[host] - replicas)) // replicas)
            return environ | {"JAX_PLATFORMS": "cpu", "NPROC": str(own), "PJRT_NPROC": str(own)}
        return environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / self._sharing[host, spec.devices[0]]:.2f}"}

    def _peers(self, specs: Iterable[WorkerSpec]) -> dict[str, PeersJob]:
        """By learner of several processes that are one program: how they find each other."""
        found = {}
        for fragment in {spec.fragment: self.plan.fragment(spec.fragment) for spec in specs}.values():
            if fragment.replicas > 1 and learns(fragment, self.graph):
                workers = fragment.workers()
                address = self.site.port(self.hosts[workers[0]])
                for rank, name in enumerate(workers):
                    found[name] = PeersJob(address, fragment.replicas, rank, len(self.specs[name].devices))
        return found

    # Messages and heartbeats

    def poll(self, seconds: float) -> set[str]:
        """The workers that have sent a message, or have ended."""
        return self.site.poll(seconds)

    def beats(self, name: str) -> int | None:
        """A worker's heartbeats so far; None if they cannot be read now."""
        return self.site.beats(name)

    def ring(self, name: str) -> None:
        """Wakes a worker."""
        self.site.ring(name)

    def oom_kills(self) -> int | None:
        return self.site.oom_kills()

    # Replacing

    def unit(self, name: str) -> set[str]:
        """The workers that can only be started and lost together: several learners are one program."""
        fragment = self.plan.fragment(self.specs[name].fragment)
        joined = fragment.replicas > 1 and learns(fragment, self.graph)
        return set(fragment.workers()) if joined else {name}

    def replaceable(self, name: str) -> bool:
        """Whether a worker can be replaced while the others continue."""
        return replaceable(self.plan.fragment(self.specs[name].fragment), self.plan, self.graph)

    def reap(self, name: str) -> None:
        """Ends a worker that is lost, and prepares its ends of streams for its replacement."""
        self.site.reap(name)

    def clear(self) -> None:
        """Empties all channels. No worker may be at work."""
        self.site.clear()

    def close(self, seconds: float) -> None:
        """Ends every worker and frees the channels."""
        self.site.close(seconds)


def _ends(channels: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """By worker: the numbers of the channels that it has an end of."""
    found: dict[str, list[int]] = defaultdict(list)
    for number, workers in enumerate(channels):
        for name in dict.fromkeys(workers):
            found[name].append(number)
    return found


def _rung(worker: str, streams: Iterable[StreamSpec], stores: Iterable[ParameterChannel]) -> tuple[str, ...]:
    """The workers whose bells a worker rings: those at the other ends of its streams, and the readers of its stores."""
    others = {name for stream in streams for name in (stream.source, stream.target)}
    others |= {name for store in stores if store.source == worker for name in store.targets}
    return tuple(sorted(others - {worker}))


def _stream_job(stream: StreamSpec) -> StreamJob:
    return StreamJob(
        stream.name, stream.kind, stream.source, stream.target, stream.group, stream.block,
        stream.source_rotation, stream.target_rotation, stream.slots, stream.schema,
    )  # fmt: skip


def barrier_workers(plan: Plan, graph: Graph) -> list[str]:
    """The actors that synchronise at a barrier after each unroll; learners are not among them."""
    fragment = plan.stepping
    acts = any(node.name in fragment.nodes for node in graph.of_kind("act"))
    synchronise = plan.synchronous and fragment.replicas > 1
    return fragment.workers() if acts and synchronise and not learns(fragment, graph) else []
