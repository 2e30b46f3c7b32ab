"""Notes on a plan before it runs: whether actors wait, and which machines are crowded, idle, or exchange every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from runnel.algorithm import algorithm_name
from runnel.graph.nodes import Graph
from runnel.planning.cuts import PlacedFragment
from runnel.planning.distribution import Distribution
from runnel.planning.machine import Machine
from runnel.planning.placed import plural, stepping_fragment
from runnel.planning.placement import served_by
from runnel.planning.slacks import Slacks, updates_per_iteration

SHOWN = 4
"""How many machines a note names."""


def notes(
    distribution: Distribution, fragments: Sequence[PlacedFragment], asynchronous: bool, slacks: Slacks,
    graph: Graph, machines: Sequence[Machine], hosts: Mapping[str, str],
) -> tuple[str, ...]:  # fmt: skip
    found = []
    workers = sum(fragment.replicas for fragment in fragments)
    if workers > 1 and asynchronous:
        found.append(_staleness(slacks, graph))
    found += _reuses(slacks, graph)
    if len(machines) == 1:
        if workers > machines[0].cpus and workers > 1:
            found.append(f"{workers} workers share {plural(machines[0].cpus, 'CPU')}: fewer would not be slower")
        return tuple(found)
    return (*found, *_crowded(machines, hosts), *_idle(distribution, machines, hosts),
            *_crossing(distribution, fragments, graph, machines, hosts))  # fmt: skip


def _staleness(slacks: Slacks, graph: Graph) -> str:
    algorithm, declared = algorithm_name(graph.algorithm), graph.algorithm.max_staleness
    said, staleness = f"{algorithm} declares max_staleness {declared}", slacks.staleness_updates
    if len(set(staleness.values())) > 1:
        bounds = ", ".join(f"{group} {bound}" for group, bound in staleness.items())
        return f"{said}, the distribution allows {bounds}: actors wait before they exceed it"
    bound = max(slacks.sums.values())
    less = "" if bound == declared else f", the distribution allows {bound}"
    if bound and not any(staleness.values()):
        updates = max(updates_per_iteration(graph, group) for group in staleness)
        return (
            f"{said}{less}, but an iteration makes up to {updates} updates: actors wait for the learner at every "
            "unroll; a higher staleness would let them run ahead"
        )
    wait = "actors wait before they exceed it" if bound else "actors wait for the learner at every unroll"
    return f"{said}{less}: {wait}"


def _reuses(slacks: Slacks, graph: Graph) -> list[str]:
    """Of groups that ask to learn from unrolls more than once."""
    found = []
    for group in graph.learning_groups:
        asked, bound = graph.algorithm.for_group(group).reuses, slacks.staleness_updates[group]
        if asked > 1 and bound:
            while_ = f"while it is at most {bound} updates old and no newer one has come"
            found.append(f"reuses={asked}: an unroll is learnt from up to {asked} times, {while_}")
        elif asked > 1:
            found.append(f"reuses={asked} has no effect: no sample may be old, so each unroll is learnt from once")
    return list(dict.fromkeys(found))


def _crowded(machines: Sequence[Machine], hosts: Mapping[str, str]) -> list[str]:
    workers = Counter(hosts.values())
    crowded = [f"{m.name} ({workers[m.name]} on {m.cpus})" for m in machines if workers[m.name] > max(m.cpus, 1)]
    return [f"there are more workers than CPUs on {_listed(crowded)}: fewer would not be slower"] if crowded else []


def _idle(distribution: Distribution, machines: Sequence[Machine], hosts: Mapping[str, str]) -> list[str]:
    idle = [machine for machine in machines if machine.name not in hosts.values()]
    if not idle:
        return []
    names = f"{_listed([machine.name for machine in idle])} {'is' if len(idle) == 1 else 'are'} not used"
    name, first = type(distribution).__name__.lower(), machines[0]
    if len(hosts) > 1:
        flag = next((flag for flag in ("actors", "learners") if hasattr(distribution, flag)), None)
        if flag != "actors" and any(m.accelerators for m in machines) and not any(m.accelerators for m in idle):
            return [f"{names}: all workers take accelerators, which other machines have"]
        remedy = f"; --{flag} asks for more" if flag else ""
        return [
            f"{names}: {plural(len(hosts), 'worker')} went to others, which have more free CPUs or accelerators{remedy}"
        ]
    better = next((machine for machine in idle if machine.accelerators > first.accelerators), None)
    there = f"; {better.name} has {plural(better.accelerators, 'accelerator')}: start the run there" if better else ""
    return [f"{names}: {name} is a single process and runs on {first.name}{there}"]


def _crossing(
    distribution: Distribution, fragments: Sequence[PlacedFragment], graph: Graph, machines: Sequence[Machine],
    hosts: Mapping[str, str],
) -> list[str]:  # fmt: skip
    """Notes on steps that are exchanged between machines: each waits for the network twice."""
    found = []
    home = {node: fragment for fragment in fragments for node in fragment.nodes}
    stepping = stepping_fragment(fragments)
    steppers = stepping.workers()
    for acts in {home[node.name].name: home[node.name] for node in graph.of_kind("act")}.values():
        servers = acts.workers()
        own = {worker: servers[served_by(i, len(steppers), len(servers))] for i, worker in enumerate(steppers)}
        away = [worker for worker in steppers if acts is not stepping and hosts[worker] != hosts[own[worker]]]
        if away:
            steps = "steps" if len(steppers) == 1 else "step"
            count = f"{len(away)} of {plural(len(steppers), 'worker')} that {steps} environments"
            remedy = _remedy(distribution, acts, graph, machines, {hosts[worker] for worker in steppers})
            found.append(f"every step of {count} crosses the network to {acts.name}: {remedy}")
    return found


def _remedy(
    distribution: Distribution, acts: PlacedFragment, graph: Graph, machines: Sequence[Machine], used: set[str]
) -> str:
    bare = [machine.name for machine in machines if machine.name in used and not machine.accelerators]
    on_device = any(not device.startswith("cpu") for devices in acts.devices for device in devices)
    only_acts = not any(graph.nodes[node].traits.trains for node in acts.nodes)
    if on_device and bare:
        has = "has" if len(bare) == 1 else "have"
        return f"{_listed(bare)} {has} no accelerator for it; coarse and async act where the environments are"
    if not only_acts:
        return f"coarse and async act where the environments are, and so does decoupled with --inference {len(used)}"
    if hasattr(distribution, "inference"):
        return f"--inference {len(used)} keeps them where they are"
    return f"{len(used)} {acts.name} workers would keep them where they are"


def _listed(words: Sequence[str]) -> str:
    more = [f"{len(words) - SHOWN + 1} more"] if len(words) > SHOWN else []
    shown = [*words[: SHOWN - len(more)], *more]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
