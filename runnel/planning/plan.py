"""Plans: a distribution applied to one graph and one set of machines. Data, with checks; nothing runs here.

A distribution says which nodes form which fragment, how many replicas of it there are, on what devices, and
how the edges that are cut by that synchronise. Everything else follows from the graph.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

from runnel.algorithm import algorithm_name
from runnel.environment import Environment, is_traceable
from runnel.errors import UserError, nearest
from runnel.graph.kinds import NodeKind
from runnel.graph.nodes import Graph
from runnel.ops.column_blocks import learners_in_words
from runnel.planning.advisories import notes
from runnel.planning.cuts import cut_edges, learns
from runnel.planning.distribution import (
    REST,
    Barrier,
    BoundedStaleness,
    Devices,
    Distribution,
    Fragment,
    Layout,
    Synchronisation,
)
from runnel.planning.machine import DRIVER, HERE, Machine, in_order
from runnel.planning.placed import CutEdge, Pattern, PlacedFragment, human_bytes, plural, stepping_fragment
from runnel.planning.placement import Placement, ReplicaRequest, place, standalone_hosts
from runnel.planning.reuse import reuses
from runnel.planning.slacks import matches, slacks
from runnel.planning.validate import (
    check_compiled,
    check_joined,
    check_learning,
    check_needs,
    check_parts,
    check_synchronisation,
    check_unrolling,
    learner_counts,
)

if TYPE_CHECKING:
    from runnel.planning.network_estimate import NetworkEstimate

__all__ = [
    "EVALUATOR",
    "REST",
    "Barrier",
    "BoundedStaleness",
    "CutEdge",
    "Devices",
    "Distribution",
    "Fragment",
    "Layout",
    "Machine",
    "Pattern",
    "PlacedFragment",
    "Plan",
    "Synchronisation",
    "build_plan",
    "human_bytes",
    "learns",
    "plural",
    "with_evaluation",
]  # fmt: skip


MOST_NAMED = 4
"""How many devices a plan names one by one."""

EVALUATOR = "evaluator"
"""Evaluation workers are named `evaluator-0` and so on."""


JSON_KEYS = {"staleness_updates": "staleness", "limit_iterations": "limits", "step_synchronous": "in_step"}
"""The keys of fields that `runnel plan --format json` calls otherwise."""


@dataclass(frozen=True)
class Plan:
    """Fragments in their places and the edges cut between them.

    Its fields are one list because a plan is printed, compared and written down as a whole.
    """

    distribution: str
    algorithm: str
    environment: str
    envs: int
    steps_per_iteration: int
    fragments: tuple[PlacedFragment, ...]
    cuts: tuple[CutEdge, ...]
    synchronisation: Synchronisation  # of the cut edges that the layout does not name
    staleness_updates: Mapping[str, int]  # by group: how old what is learnt from may be; 0: it is synchronous
    limit_iterations: Mapping[str, int]  # by group: the same in iterations
    step_synchronous: frozenset[str]  # the groups whose environments and actions wait for each other at every step
    reuses: Mapping[str, int]  # by group: how often an unroll may be learnt from
    learners: Mapping[str, tuple[int, ...]]  # by fragment that learns: how many learners, or devices, could share it
    notes: tuple[str, ...] = ()  # advisories for the user
    hosts: Mapping[str, str] = field(default_factory=dict)  # of each worker: its machine; empty where there is one
    machines: tuple[Machine, ...] = ()  # those given; empty where it is this one
    across: NetworkEstimate | None = None  # the traffic between machines, if it was estimated
    evaluation: Mapping[str, str] = field(default_factory=dict)  # of each evaluation worker: its machine, like `hosts`

    def host(self, worker: str) -> str:
        """The machine that a worker runs on."""
        if worker in self.hosts:
            return self.hosts[worker]
        return next((machine.name for machine in self.machines), HERE)

    def fragment(self, name: str) -> PlacedFragment:
        """The fragment of a name."""
        return next(fragment for fragment in self.fragments if fragment.name == name)

    def home(self, node: str) -> PlacedFragment:
        """The fragment that holds a node."""
        return next(fragment for fragment in self.fragments if node in fragment.nodes)

    @property
    def stepping(self) -> PlacedFragment:
        """The fragment whose workers step the environments."""
        return stepping_fragment(self.fragments)

    @property
    def synchronous(self) -> bool:
        """Whether every group waits for its learner: training is then the same as in one process."""
        return not any(self.staleness_updates.values())

    @property
    def mixed(self) -> bool:
        """Whether some groups wait for their learner at every unroll, and others do not."""
        return any(self.limit_iterations.values()) and not all(self.limit_iterations.values())

    @property
    def on_cpus(self) -> bool:
        """Whether nothing runs on an accelerator."""
        placed = (name for fragment in self.fragments for replica in fragment.devices for name in replica)
        return all(name.startswith("cpu") for name in placed)

    @property
    def workers(self) -> int:
        return sum(fragment.replicas for fragment in self.fragments)

    def json(self) -> dict[str, Any]:
        across = None if self.across is None else self.across.json()
        changed = {"step_synchronous": sorted(self.step_synchronous), "across": across}
        fields = {JSON_KEYS.get(name, name): value for name, value in (asdict(self) | changed).items()}
        return {**fields, "workers": self.workers}

    def text(self) -> str:
        """For the user."""
        lines = [
            f"{self.algorithm} on {self.environment}, distribution {self.distribution}: {self.envs} environments, "
            f"{self.steps_per_iteration} steps an iteration, {plural(self.workers, 'worker')}",
            "",
            "fragments",
        ]
        for fragment in self.fragments:
            kind = "one XLA program" if fragment.compiled else "process loop"
            devices = _in_words([*dict.fromkeys(device for placed in fragment.devices for device in placed)])
            lines.append(f"  {fragment.name} x{fragment.replicas}  [{', '.join(fragment.nodes)}]  {kind} on {devices}")
            if fragment.environments and (fragment.replicas > 1 or fragment.env_splits > 1):
                shares = ", ".join(f"{start}-{stop - 1}" for start, stop in fragment.environments[:4])
                more = ", ..." if fragment.replicas > 4 else ""
                splits = f"; each worker's in {fragment.env_splits} splits" if fragment.env_splits > 1 else ""
                lines.append(f"      environments {shares}{more}{splits}")
            if fragment.name in self.learners:
                share = "devices" if fragment.compiled else "learners"
                lines.append(f"      {share} that could share it: {learners_in_words(self.learners[fragment.name])}")
        lines += ["", "cut edges" if self.cuts else "no cut edges: everything is one program or one process"]
        for cut in self.cuts:
            lines.append(
                f"  {cut.source} -> {cut.target}  {', '.join(cut.what)}  {cut.pattern}, {cut.synchronisation}  "
                f"{human_bytes(cut.bytes_per_iteration)} an iteration"
            )
        lines += self._machines_text() if self.hosts else []
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)

    def _machines_text(self) -> list[str]:
        lines = ["", "machines"]
        for machine in self.machines:
            runs = [name for fragment in self.fragments for name in self._runs(fragment, machine.name)]
            runs += [name for name, host in self.evaluation.items() if host == machine.name]
            has = f"{plural(machine.cpus, 'CPU')}, {', '.join(machine.devices)}"
            lines.append(f"  {machine.name} ({machine.address})  {has}  {', '.join(runs) or 'nothing'}")
        beside = [name for name, host in self.evaluation.items() if host == DRIVER]
        lines += [f"  {DRIVER}  {', '.join(beside)}"] if beside else []
        return [*lines, self.across.text()] if self.across is not None else lines

    def _runs(self, fragment: PlacedFragment, machine: str) -> list[str]:
        """The workers of a fragment on a machine, neighbours as one: actor-0..3."""
        if fragment.replicas == 1:
            return fragment.workers() if self.hosts[fragment.name] == machine else []
        here = [i for i, name in enumerate(fragment.workers()) if self.hosts[name] == machine]
        firsts = [i for i in here if i - 1 not in here]
        lasts = [i for i in here if i + 1 not in here]
        return [
            f"{fragment.name}-{first}" if first == last else f"{fragment.name}-{first}..{last}"
            for first, last in zip(firsts, lasts, strict=True)
        ]


def _in_words(devices: Sequence[str]) -> str:
    """Devices by name; many in a row as one: cuda:0..63."""
    platform = devices[0].partition(":")[0]
    first, last = (int(device.partition(":")[2]) for device in (devices[0], devices[-1]))
    in_a_row = [f"{platform}:{i}" for i in range(first, last + 1)] == [*devices]
    return f"{devices[0]}..{last}" if in_a_row and len(devices) > MOST_NAMED else ", ".join(devices)


def with_evaluation(plan: Plan, workers: int) -> Plan:
    """The plan with this number of evaluation workers, which it shows where there are several machines."""
    if not plan.hosts:
        return plan
    cpus = {machine.name: machine.cpus for machine in plan.machines}
    hosts = standalone_hosts(workers, cpus, Counter(plan.hosts.values()))
    return replace(plan, evaluation={f"{EVALUATOR}-{i}": host or DRIVER for i, host in enumerate(hosts)})


# Building


def build_plan(
    distribution: Distribution, graph: Graph, environment: Environment, machines: Machine | Sequence[Machine]
) -> Plan:
    """Applies a distribution to a graph and one or more machines, the first of them the driver's.

    Refuses what cannot work, before anything starts.
    """
    name = type(distribution).__name__.lower()
    check_needs(name, distribution.needs, graph)
    layout = _layout(name, distribution, graph)
    homes = _assign(name, layout, graph)
    for fragment in layout.fragments:
        _check_fragment(fragment, homes[fragment.name], graph, environment)
    ordered = in_order(machines)
    fragments = [fragment for fragment in layout.fragments if homes[fragment.name]]
    check_compiled(name, fragments)
    seats = place([_wanted(fragment, homes[fragment.name], graph) for fragment in fragments], ordered)
    placed = tuple(
        _placed(fragment, homes[fragment.name], graph, at) for fragment, at in zip(fragments, seats, strict=True)
    )
    found = slacks(name, layout, {node: each.name for each in placed for node in each.nodes}, graph)
    check_unrolling(name, placed, graph)
    check_parts(name, placed, found.staleness_updates, graph)
    check_joined(name, placed, graph)
    check_learning(name, placed, found.staleness_updates, graph)
    check_synchronisation(name, placed, found, graph)
    hosts = {
        worker: ordered[seat.machine].name
        for fragment, at in zip(placed, seats, strict=True)
        for worker, seat in zip(fragment.workers(), at, strict=True)
    }
    return Plan(
        distribution=name,
        algorithm=algorithm_name(graph.algorithm),
        environment=graph.spec.name,
        envs=graph.envs,
        steps_per_iteration=graph.steps_per_iteration,
        fragments=placed,
        cuts=cut_edges(placed, found, graph),
        synchronisation=layout.synchronisation,
        staleness_updates=found.staleness_updates,
        limit_iterations=found.limit_iterations,
        step_synchronous=found.step_synchronous,
        reuses=reuses(name, placed, found, graph),
        learners=learner_counts(placed, graph),
        notes=notes(distribution, placed, layout.asynchronous, found, graph, ordered, hosts),
        hosts=hosts if len(ordered) > 1 else {},
        machines=() if [machine.name for machine in ordered] == [HERE] else ordered,
    )


def _layout(name: str, distribution: Distribution, graph: Graph) -> Layout:
    """The layout that a distribution returns, which may be the user's own code."""
    try:
        layout = distribution.layout(graph)
    except UserError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        raise UserError(
            f"the layout of distribution {name} fails ({where}): {type(error).__name__}: {error}",
            page="write-a-distribution",
        ) from error
    if not isinstance(layout, Layout):
        raise UserError(f"the layout of distribution {name}: found a {type(layout).__name__}, expected a runnel.Layout")
    names = [fragment.name for fragment in layout.fragments]
    for twice in {each for each in names if names.count(each) > 1}:
        raise UserError(
            f"distribution {name} has {names.count(twice)} fragments named '{twice}'; each needs its own name"
        )
    for taken in (each for each in names if str(each).partition("-")[0] == EVALUATOR):
        raise UserError(
            f"distribution {name} has a fragment named '{taken}', as workers that evaluate are; expected another name"
        )
    if not isinstance(layout.synchronisation, Synchronisation):
        raise UserError(
            f"the layout of distribution {name}: found synchronisation={layout.synchronisation!r}, expected "
            "Barrier(...) or BoundedStaleness(...)"
        )
    for fragment in layout.fragments:
        for pattern in fragment.nodes:
            if pattern not in (REST, *get_args(NodeKind)) and not any(
                matches(pattern, n) for n in graph.nodes.values()
            ):
                kinds = (node.kind for node in graph.nodes.values())
                known = dict.fromkeys([*kinds, *graph.nodes, *(f"{group}/*" for group in graph.spec.groups)])
                raise UserError(
                    f"distribution {name}: there is no node '{pattern}'{nearest(pattern, known)}",
                    page="write-a-distribution",
                )
    return layout


def _assign(name: str, layout: Layout, graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Each fragment's nodes, in the graph's order. Every node has exactly one home."""
    homes: dict[str, str] = {}
    rest = [f.name for f in layout.fragments if REST in f.nodes]
    for node in graph.nodes.values():
        named = [f.name for f in layout.fragments if any(matches(pattern, node) for pattern in f.nodes)]
        if node.kind == "rollout" and not named:
            # Trajectories are built where actions or observations are made: each step is then sent once.
            act = graph.only("act", node.group).name
            near = [home for home in rest if home in (homes[act], homes["environment"])]
            homes[node.name] = near[0] if near else homes["environment"]
            continue
        found = named or rest
        if len(found) != 1:
            count = "no fragment" if not found else f"fragments {' and '.join(found)}"
            remedy = "; REST among a fragment's nodes takes what no other names" if not found else ""
            raise UserError(
                f"distribution {name} assigns node '{node.name}' to {count}; every node needs exactly one{remedy}",
                page="write-a-distribution",
            )
        homes[node.name] = found[0]
    return {f.name: tuple(node for node, home in homes.items() if home == f.name) for f in layout.fragments}


class NotCompiled(UserError):
    """A host environment is in a fragment that is compiled into an XLA program."""


def _check_fragment(fragment: Fragment, nodes: tuple[str, ...], graph: Graph, environment: Environment) -> None:
    if fragment.replicas < 1:
        raise UserError(f"{fragment.name}: found replicas={fragment.replicas}, expected 1 or more")
    if fragment.compiled and "environment" in nodes and not is_traceable(environment):
        raise NotCompiled(
            f"'{graph.spec.name}' is a host environment and cannot be compiled into one XLA program; train it with "
            "distribution='inline'",
            keywords=("distribution",),
            page="concepts#one-program",
        )


def _wanted(fragment: Fragment, nodes: tuple[str, ...], graph: Graph) -> ReplicaRequest:
    kinds = {graph.nodes[node].kind for node in nodes}
    learning = any(graph.nodes[node].traits.learns for node in nodes)
    return ReplicaRequest(fragment.replicas, fragment.devices, learning, "environment" in kinds, "act" in kinds)


def _placed(fragment: Fragment, nodes: tuple[str, ...], graph: Graph, seats: Sequence[Placement]) -> PlacedFragment:
    steps, devices = "environment" in nodes, tuple(seat.devices for seat in seats)
    parts = fragment.replicas * (math.lcm(*map(len, devices)) if fragment.compiled else 1)
    if steps and graph.envs % parts:
        below, above = graph.envs // parts * parts, -(-graph.envs // parts) * parts
        use = f"{below} or {above}" if below else str(above)
        workers = f"{fragment.name} workers" if fragment.name == "environment" else f"{fragment.name}s"
        over = f"{parts} devices" if fragment.replicas == 1 else f"{parts} {workers}"
        raise UserError(
            f"envs={graph.envs} does not divide over {over}; use envs={use}",
            keywords=("envs",),
            page="performance#what-the-distributions-do",
        )
    share = graph.envs // fragment.replicas
    shares = tuple((i * share, (i + 1) * share) for i in range(fragment.replicas)) if steps else ()
    splits = max(k for k in range(1, max(fragment.env_splits, 1) + 1) if share % k == 0) if steps else 1
    return PlacedFragment(
        fragment.name, nodes, fragment.replicas, devices, fragment.compiled, shares, splits, fragment.deadline_us,
        fragment.prefetch,
    )  # fmt: skip
