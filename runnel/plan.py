"""Plans: a distribution applied to one graph and one set of machines. Data, with checks; nothing runs here.

A distribution says which nodes form which fragment, how many replicas of it there are, on what devices, and
how the edges that are cut by that synchronise. Everything else follows from the graph.
"""

from __future__ import annotations

import abc
import os
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from runnel.environment import Environment, is_traceable
from runnel.errors import UserError, nearest
from runnel.graph import Edge, Graph, Kind, Node, tree_bytes

REST = "*"
"""Among a fragment's nodes: every node that no fragment names."""

Devices = Literal["cpu", "one", "all"]
Pattern = Literal["send", "gather", "scatter", "route", "broadcast", "all-reduce"]


# What a distribution writes


@dataclass(frozen=True)
class Barrier:
    """Both ends wait for each other, every step or every unroll."""

    every: Literal["step", "unroll"] = "unroll"

    def __post_init__(self) -> None:
        if self.every not in ("step", "unroll"):
            raise UserError(f"found Barrier(every={self.every!r}), wanted 'step' or 'unroll'")

    def __str__(self) -> str:
        return f"barrier every {self.every}"


@dataclass(frozen=True)
class Free:
    """The source runs ahead of the target, by at most `max_staleness` versions."""

    max_staleness: int

    def __str__(self) -> str:
        if not self.max_staleness:
            return "free, but waits every unroll (the algorithm bears no staleness)"
        return f"free, staleness at most {self.max_staleness}"


Synchronisation = Barrier | Free


@dataclass(frozen=True)
class Fragment:
    """Nodes that run as one program, and how often.

    `nodes` names kinds (`act`), nodes (`hunters/act`), groups (`hunters/*`) or `REST`. A `compiled` fragment is
    one XLA program or an error; others are loops of a process around compiled parts. A worker whose environments
    ask others for their actions holds them in `ring` blocks: while one waits, another steps.

    Replicas that play share the environments; replicas that learn are one program over all their devices; other
    replicas take whole iterations in turn.
    """

    name: str
    nodes: tuple[str, ...]
    replicas: int = 1
    devices: Devices = "cpu"
    compiled: bool = False
    ring: int = 1


@dataclass(frozen=True)
class Layout:
    """What a distribution makes of a graph."""

    fragments: tuple[Fragment, ...]
    synchronisation: Synchronisation = field(default_factory=Barrier)
    needs: tuple[str, ...] = ()  # kinds of node without which the layout makes no sense


class Distribution(abc.ABC):
    """Base of all distributions: a frozen dataclass of numbers that gives a layout."""

    @abc.abstractmethod
    def layout(self, graph: Graph) -> Layout: ...


# What comes of it


@dataclass(frozen=True)
class Machine:
    """What there is to run on."""

    cpus: int
    devices: tuple[str, ...]  # accelerators, or the CPU where there are none: "cpu:0", "cuda:1"

    @classmethod
    def here(cls) -> Machine:
        """This machine. GPUs are counted without starting on them: that would take their memory from the workers."""
        import jax

        cpus = len(os.sched_getaffinity(0))
        gpus = _gpus()
        if gpus and not _started():
            return cls(cpus, tuple(f"cuda:{i}" for i in range(gpus)))
        return cls(cpus, tuple(f"{device.platform}:{device.id}" for device in jax.devices()))


def _started() -> bool:
    """Whether JAX has started on its devices already."""
    from jax._src import xla_bridge  # there is no public way to ask

    return xla_bridge.backends_are_initialized()


def _gpus() -> int:
    """How many NVIDIA GPUs JAX would find."""
    import importlib.util

    import jax

    wanted = jax.config.values.get("jax_platforms") or ""
    plugins = ("jax_cuda12_plugin", "jax_cuda13_plugin")
    if wanted.split(",")[0] not in ("", "cuda", "gpu") or not any(importlib.util.find_spec(name) for name in plugins):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() and part.strip() != "-1"])
    return len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])


@dataclass(frozen=True)
class Placed:
    """A fragment with its nodes found and its replicas placed."""

    name: str
    nodes: tuple[str, ...]
    replicas: int
    devices: tuple[tuple[str, ...], ...]  # of each replica
    compiled: bool
    environments: tuple[tuple[int, int], ...] = ()  # of each replica: the indices it plays, from and to
    ring: int = 1  # blocks that each replica's environments form

    def workers(self) -> list[str]:
        """Their names."""
        return [f"{self.name}-{i}" for i in range(self.replicas)] if self.replicas > 1 else [self.name]


@dataclass(frozen=True)
class Cut:
    """An edge between fragments, or between replicas of one: what a stream will carry."""

    source: str
    target: str
    what: tuple[str, ...]
    pattern: Pattern
    synchronisation: str
    bytes_per_iteration: int


@dataclass(frozen=True)
class Plan:
    """Fragments in their places and the edges cut between them."""

    distribution: str
    algorithm: str
    environment: str
    envs: int
    steps_per_iteration: int
    fragments: tuple[Placed, ...]
    cuts: tuple[Cut, ...]
    synchronisation: Synchronisation
    notes: tuple[str, ...] = ()  # what the user should know before it runs

    def fragment(self, name: str) -> Placed:
        """The fragment of a name."""
        return next(fragment for fragment in self.fragments if fragment.name == name)

    def home(self, node: str) -> Placed:
        """The fragment that holds a node."""
        return next(fragment for fragment in self.fragments if node in fragment.nodes)

    @property
    def workers(self) -> int:
        return sum(fragment.replicas for fragment in self.fragments)

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "workers": self.workers}

    def text(self) -> str:
        """For people."""
        lines = [
            f"{self.algorithm} on {self.environment}, distribution {self.distribution}: {self.envs} environments, "
            f"{self.steps_per_iteration} steps an iteration, {plural(self.workers, 'worker')}",
            "",
            "fragments",
        ]
        for fragment in self.fragments:
            kind = "one XLA program" if fragment.compiled else "process loop"
            devices = ", ".join(dict.fromkeys(device for placed in fragment.devices for device in placed))
            lines.append(f"  {fragment.name} x{fragment.replicas}  [{', '.join(fragment.nodes)}]  {kind} on {devices}")
            if fragment.environments and (fragment.replicas > 1 or fragment.ring > 1):
                shares = ", ".join(f"{start}-{stop - 1}" for start, stop in fragment.environments[:4])
                more = ", ..." if fragment.replicas > 4 else ""
                ring = f"; each worker's in a ring of {fragment.ring} blocks" if fragment.ring > 1 else ""
                lines.append(f"      environments {shares}{more}{ring}")
        lines += ["", "cut edges" if self.cuts else "no cut edges: everything is one program or one process"]
        for cut in self.cuts:
            lines.append(
                f"  {cut.source} -> {cut.target}  {', '.join(cut.what)}  {cut.pattern}, {cut.synchronisation}  "
                f"{human_bytes(cut.bytes_per_iteration)} an iteration"
            )
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


# Building


def build_plan(distribution: Distribution, graph: Graph, environment: Environment, machine: Machine) -> Plan:
    """Applies a distribution to a graph; refuses what cannot work, before anything starts."""
    name = type(distribution).__name__.lower()
    layout = _layout(name, distribution, graph)
    _check_needs(name, layout, graph)
    homes = _assign(name, layout, graph)
    placed: tuple[Placed, ...] = ()
    used = 0
    for fragment in layout.fragments:
        placed += (_place(fragment, homes[fragment.name], graph, environment, machine, used),)
        used += fragment.replicas if fragment.devices == "one" else 0
    placed = tuple(fragment for fragment in placed if fragment.nodes)
    _check_unrolling(name, placed, graph)
    _check_learning(name, placed, layout.synchronisation, graph)
    return Plan(
        distribution=name,
        algorithm=type(graph.algorithm).__name__,
        environment=graph.spec.name,
        envs=graph.envs,
        steps_per_iteration=graph.steps_per_iteration,
        fragments=placed,
        cuts=_cuts(placed, layout.synchronisation, graph),
        synchronisation=layout.synchronisation,
        notes=_notes(placed, layout.synchronisation, graph, machine),
    )


def _layout(name: str, distribution: Distribution, graph: Graph) -> Layout:
    """What a distribution says, which may be the user's own code."""
    try:
        layout = distribution.layout(graph)
    except UserError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}"
        raise UserError(
            f"the layout of distribution {name} fails ({where}): {type(error).__name__}: {error}"
        ) from error
    for fragment in layout.fragments:
        for pattern in fragment.nodes:
            if pattern not in (REST, *get_args(Kind)) and not any(_matches(pattern, n) for n in graph.nodes.values()):
                known = [*get_args(Kind), *graph.nodes, *(f"{group}/*" for group in graph.spec.groups)]
                raise UserError(f"distribution {name}: there is no node '{pattern}'{nearest(pattern, known)}")
    return layout


def _check_needs(name: str, layout: Layout, graph: Graph) -> None:
    kinds = {node.kind for node in graph.nodes.values()}
    missing = [kind for kind in layout.needs if kind not in kinds]
    if missing:
        algorithm = type(graph.algorithm).__name__
        wanted = " and ".join(f"`{kind}`" for kind in missing)
        raise UserError(
            f"distribution {name} needs {wanted}, which {algorithm} does not have "
            f"(it has {', '.join(sorted(kinds))}); choose another distribution or algorithm"
        )


def _matches(pattern: str, node: Node) -> bool:
    return pattern in (node.kind, node.name, f"{node.group}/*")


def _assign(name: str, layout: Layout, graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Each fragment's nodes, in the graph's order. Every node has exactly one home."""
    homes: dict[str, str] = {}
    rest = [f.name for f in layout.fragments if REST in f.nodes]
    for node in graph.nodes.values():
        named = [f.name for f in layout.fragments if any(_matches(pattern, node) for pattern in f.nodes)]
        found = named or rest
        if len(found) != 1:
            count = "no fragment" if not found else f"fragments {' and '.join(found)}"
            raise UserError(f"distribution {name} gives node '{node.name}' to {count}; every node needs exactly one")
        homes[node.name] = found[0]
        if node.kind == "rollout" and not named:
            # Trajectories are put together where actions or observations are made: steps then travel once.
            act = next(n.name for n in graph.of_kind("act") if n.group == node.group)
            if found[0] not in (homes[act], homes["environment"]):
                homes[node.name] = homes["environment"]
    return {f.name: tuple(node for node, home in homes.items() if home == f.name) for f in layout.fragments}


def _place(
    fragment: Fragment, nodes: tuple[str, ...], graph: Graph, environment: Environment, machine: Machine, used: int
) -> Placed:
    """`used` accelerators have a replica already: the next one takes the next."""
    if fragment.replicas < 1:
        raise UserError(f"{fragment.name}: {fragment.replicas} replicas asked for; 1 is the least")
    plays = "environment" in nodes
    if fragment.compiled and plays and not is_traceable(environment):
        raise UserError(
            f"'{graph.spec.name}' is a host environment and cannot be compiled into one XLA program; train it with "
            "--distribution inline, or use a JAX version of it (such as gymnax:CartPole-v1)"
        )
    accelerators = machine.devices
    if fragment.devices == "all":
        devices = (accelerators,) * fragment.replicas
    elif fragment.devices == "one":
        devices = tuple((accelerators[(used + i) % len(accelerators)],) for i in range(fragment.replicas))
    else:
        devices = (("cpu:0",),) * fragment.replicas
    parts = fragment.replicas * (len(devices[0]) if fragment.compiled else 1)
    if plays and graph.envs % parts:
        below, above = graph.envs // parts * parts, -(-graph.envs // parts) * parts
        use = f"{below} or {above}" if below else str(above)
        workers = f"{fragment.name} workers" if fragment.name == "environment" else f"{fragment.name}s"
        over = f"{parts} devices" if fragment.replicas == 1 else f"{parts} {workers}"
        raise UserError(f"--envs {graph.envs} does not divide over {over}; use {use}")
    share = graph.envs // fragment.replicas
    shares = tuple((i * share, (i + 1) * share) for i in range(fragment.replicas)) if plays else ()
    ring = max(k for k in range(1, max(fragment.ring, 1) + 1) if share % k == 0) if plays else 1
    return Placed(fragment.name, nodes, fragment.replicas, devices, fragment.compiled, shares, ring)


def _check_unrolling(name: str, fragments: tuple[Placed, ...], graph: Graph) -> None:
    """Steps travel between an environment and its actors, and nowhere else."""
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    plays = home["environment"]
    for rollout in graph.of_kind("rollout"):
        act = next(node for node in graph.of_kind("act") if node.group == rollout.group)
        acts, rolls = home[act.name], home[rollout.name]
        if rolls is not plays and (rolls is not acts or acts is plays):
            where = f"'{plays.name}'" if acts is plays else f"'{plays.name}' or '{acts.name}'"
            raise UserError(
                f"distribution {name} puts '{rollout.name}' into fragment '{rolls.name}'; a rollout is put together "
                f"with the environment or with what acts: put it into {where}"
            )
        if acts.replicas > plays.replicas:
            raise UserError(
                f"{acts.replicas} {acts.name} workers serve {plays.replicas} {plays.name} workers; "
                f"use at most {plays.replicas} of them"
            )
        if rolls is acts and acts is not plays and plays.replicas % acts.replicas:
            raise UserError(
                f"{plays.replicas} {plays.name} workers do not divide over {acts.replicas} {acts.name} workers; "
                f"use a multiple of {acts.replicas}"
            )


def _check_learning(name: str, fragments: tuple[Placed, ...], synchronisation: Synchronisation, graph: Graph) -> None:
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    plays = home["environment"]
    for fragment in fragments:
        kinds = {graph.nodes[node].kind for node in fragment.nodes}
        if learns(fragment, graph) and fragment.replicas > 1:
            blocks = next(count for count in (8, 4, 2, 1) if graph.envs % count == 0)
            if blocks % fragment.replicas:
                wanted = " or ".join(str(k) for k in range(2, blocks + 1) if blocks % k == 0) or "1"
                raise UserError(
                    f"{fragment.replicas} {fragment.name}s: {graph.envs} environments form {blocks} blocks, which "
                    f"learners share evenly; use {wanted} {fragment.name}s, or --envs a multiple of 8"
                )
            if plays is not fragment and plays.replicas * plays.ring % fragment.replicas:
                raise UserError(
                    f"{plays.replicas} {plays.name} workers do not divide over {fragment.replicas} {fragment.name}s; "
                    f"use a multiple of {fragment.replicas}"
                )
            outside = {"replay", "map"} & {graph.nodes[n].kind for n in home if home[n] is not fragment}
            if outside:
                raise UserError(
                    f"distribution {name} has {fragment.replicas} {fragment.name}s and {' and '.join(sorted(outside))} "
                    "elsewhere; several learners take trajectories only: put the node with them, or use 1"
                )
        if "gradient" in kinds and "apply" not in kinds and isinstance(synchronisation, Free):
            stale = fragment.replicas - 1
            if stale > synchronisation.max_staleness > 0:  # with 0, gradients are averaged at a barrier
                raise UserError(
                    f"{fragment.replicas} {fragment.name}s compute gradients side by side: while one is made, {stale} "
                    f"versions may pass; {type(graph.algorithm).__name__} bears {synchronisation.max_staleness}: "
                    f"use at most {synchronisation.max_staleness + 1}, or an algorithm that bears more"
                )
    for node in graph.nodes.values():
        if len({home[replay].name for replay in node.loops}) > 1:
            raise UserError(
                f"distribution {name} spreads the replays that feed '{node.name}' over several fragments; "
                "put them into one"
            )


def learns(fragment: Placed, graph: Graph) -> bool:
    """Whether a fragment changes parameters."""
    return any(graph.nodes[node].kind in ("learn", "apply") for node in fragment.nodes)


def _notes(
    fragments: tuple[Placed, ...], synchronisation: Synchronisation, graph: Graph, machine: Machine
) -> tuple[str, ...]:
    notes = []
    workers = sum(fragment.replicas for fragment in fragments)
    if workers > 1 and isinstance(synchronisation, Free):
        algorithm, limit = type(graph.algorithm).__name__, synchronisation.max_staleness
        wait = "actors wait for the learner at every unroll" if not limit else "actors wait before they exceed it"
        notes.append(f"{algorithm} declares max_staleness {limit}: {wait}")
    if workers > machine.cpus and workers > 1:
        notes.append(f"{workers} workers share {plural(machine.cpus, 'CPU')}: fewer would not be slower")
    return tuple(notes)


def _cuts(fragments: tuple[Placed, ...], synchronisation: Synchronisation, graph: Graph) -> tuple[Cut, ...]:
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    between: dict[tuple[str, str, str, float], list[Edge]] = {}
    for edge in graph.edges:
        source, target = home[edge.source], home[edge.target]
        if source is not target:
            # Values of one node that travel together are sent once: act and rollout share an observation.
            times = 1.0 if edge.what in ("parameters", "state") else edge.per_iteration
            between.setdefault((source.name, target.name, edge.source, times), []).append(edge)
    by_name = {fragment.name: fragment for fragment in fragments}
    cuts = []
    for (source, target, _, times), edges in between.items():
        values = {name: type_ for edge in edges for name, type_ in edge.type.items()}
        if "state" in values:
            values.pop("params", None)  # they are in it
        pattern = _pattern(by_name[source], by_name[target], edges)
        copies = by_name[target].replicas if pattern == "broadcast" else 1
        size = round(tree_bytes(values) * times * copies)
        cuts.append(Cut(source, target, tuple(values), pattern, str(synchronisation), size))
    for fragment in fragments:
        learners = [graph.nodes[node] for node in fragment.nodes if graph.nodes[node].kind in ("learn", "apply")]
        if learners and fragment.replicas > 1:
            size = sum(tree_bytes(graph.states[node.group].params) for node in learners) * fragment.replicas
            cuts.append(
                Cut(
                    fragment.name,
                    fragment.name,
                    ("gradients",),
                    "all-reduce",
                    "barrier every gradient step",
                    size,
                )
            )
    return tuple(cuts)


def _pattern(source: Placed, target: Placed, edges: list[Edge]) -> Pattern:
    if any(edge.what in ("parameters", "state") for edge in edges):
        return "broadcast" if target.replicas > 1 else "send"
    if source.replicas == target.replicas == 1:
        return "send"
    if target.replicas == 1:
        return "gather"
    return "scatter" if source.replicas == 1 else "route"
