"""Which machine every worker runs on, and which of its devices it gets. Data in, data out.

Learners are spread evenly over the accelerators, or over the machines if none has any. Workers that step environments
are spread over the remaining CPUs, neighbours together and near the learner that they feed. Workers that act for them
(servers) are placed with them: with as many servers as machines, no step crosses the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from runnel.planning.distribution import Devices
from runnel.planning.machine import Machine

PlacementRule = Literal["learner", "stepping", "server", "rest"]


@dataclass(frozen=True)
class ReplicaRequest:
    """The facts about a fragment that its placement depends on."""

    replicas: int
    devices: Devices
    learns: bool = False
    steps_envs: bool = False
    acts: bool = False

    @property
    def rule(self) -> PlacementRule:
        """Which rule places it."""
        if self.learns:
            return "learner"
        return "stepping" if self.steps_envs else "server" if self.acts else "rest"


class Placement(NamedTuple):
    """The machine and the devices of a worker."""

    machine: int
    devices: tuple[str, ...]  # as its own machine calls them


def place(wanted: Sequence[ReplicaRequest], machines: Sequence[Machine]) -> list[list[Placement]]:
    """The placements of every fragment's replicas. A single worker runs on the driver's machine, the first."""
    if len(machines) == 1 or sum(each.replicas for each in wanted) == 1:
        hosts = [[0] * each.replicas for each in wanted]
    else:
        hosts = _Placing(wanted, machines).hosts()
    used: Counter[int] = Counter()  # by machine: accelerators that have a worker already; the next one takes the next
    placements = []
    for each, at in zip(wanted, hosts, strict=True):
        placements.append([Placement(host, _devices(each, machines[host], used, host)) for host in at])
    return placements


def _devices(wanted: ReplicaRequest, machine: Machine, used: Counter[int], host: int) -> tuple[str, ...]:
    if wanted.devices == "cpu":
        return ("cpu:0",)
    if wanted.devices == "all":
        return machine.devices
    used[host] += 1
    return (machine.devices[(used[host] - 1) % len(machine.devices)],)


def shares(
    count: int, weights: Sequence[int], near: Collection[int] = (), ranks: Sequence[int] | None = None
) -> list[int]:
    """`count` in proportion to weights, each within one of its exact share.

    The remaining units go first to indices in `near`, then to the largest remainders; ties go to the smallest share,
    then to the lowest rank.
    """
    if not sum(weights):
        weights = [1] * len(weights)
    total = sum(weights)
    found = [count * weight // total for weight in weights]

    def claim(i: int) -> Any:
        remainder = count * weights[i] % total
        return not (remainder and i in near), -remainder, found[i], ranks[i] if ranks else 0, i

    for i in sorted(range(len(weights)), key=claim)[: count - sum(found)]:
        found[i] += 1
    return found


def served_by(worker: int, workers: int, servers: int) -> int:
    """The index of the server that acts for a worker that steps: servers have even shares, in order."""
    return worker * servers // workers


class _Placing:
    """Finds the machines of all workers, by their numbers, one rule after the other."""

    def __init__(self, wanted: Sequence[ReplicaRequest], machines: Sequence[Machine]):
        self.wanted, self.machines = wanted, machines
        self.accelerators = [machine.accelerators for machine in machines]
        self.found: list[list[int]] = [[] for _ in wanted]  # of each fragment: the machine of each replica
        self.workers: Counter[int] = Counter()  # by machine
        self.holders: Counter[int] = Counter()  # by machine: workers that hold an accelerator

    def hosts(self) -> list[list[int]]:
        self._learners()
        for k in self._of("rest"):
            self._put(k, self._beside_learning(self.wanted[k]))
        for k in self._of("stepping"):
            self._put(k, self._stepping(self.wanted[k]))
        for k in self._of("server"):
            self._servers(k)
        return self.found

    def _of(self, rule: PlacementRule) -> list[int]:
        return [k for k, each in enumerate(self.wanted) if each.rule == rule]

    def _put(self, k: int, hosts: Iterable[int]) -> None:
        for host in hosts:
            self.found[k].append(host)
            self.workers[host] += 1
            self.holders[host] += self.wanted[k].devices != "cpu"

    def _able(self, wanted: ReplicaRequest) -> list[int]:
        """The machines that have the devices a worker wants. If none has accelerators, CPUs will do."""
        everywhere = range(len(self.machines))
        if wanted.devices == "cpu" or not any(self.accelerators):
            return list(everywhere)
        return [host for host in everywhere if self.accelerators[host]]

    def _spread(self, count: int, accelerated: bool) -> list[int]:
        """Evenly over accelerators or machines, in order; among equals the larger machine is better."""
        weights = self.accelerators if accelerated and any(self.accelerators) else [1] * len(self.machines)
        counts = shares(count, weights, ranks=[-machine.cpus for machine in self.machines])
        return _filled(counts, range(len(counts)))

    # Learners

    def _learners(self) -> None:
        """All learners are spread together: each group of agents has its own fragment."""
        learners = self._of("learner")
        count = sum(self.wanted[k].replicas for k in learners)
        places = iter(self._spread(count, any(self.wanted[k].devices != "cpu" for k in learners)))
        for k in learners:
            self._put(k, [next(places) for _ in range(self.wanted[k].replicas)])

    @property
    def _homes(self) -> list[int]:
        """The machines of the learners of the fragment that has most of them."""
        return max((self.found[k] for k in self._of("learner")), key=len, default=[0])

    def _beside_learning(self, wanted: ReplicaRequest) -> list[int]:
        """With the first learner, unless it takes more accelerators than there are."""
        home, able = self._homes[0], self._able(wanted)
        enough = wanted.replicas <= max(1, self.accelerators[home] - self.holders[home])
        if home in able and (enough or wanted.devices == "cpu" or not any(self.accelerators)):
            return [home] * wanted.replicas
        return self._spread(wanted.replicas, accelerated=True)

    # Workers that step environments

    def _stepping(self, wanted: ReplicaRequest) -> list[int]:
        free, count = self._free(wanted), wanted.replicas
        split = shares(count, free, near=self._homes)
        for k in self._of("learner"):  # a fragment that acts and learns is placed already
            if self.wanted[k].acts and _used(split) <= set(self.found[k]):
                return [self.found[k][served_by(i, count, self.wanted[k].replicas)] for i in range(count)]
        # The workers of one server stay together, so that steps stay on the machine, unless a machine is left out.
        units = self._units(split, free)
        split = shares(units, free) if units else split
        units = units or count
        feeds = [self._homes[served_by(unit, units, len(self._homes))] for unit in range(units)]
        at = _filled(split, _near(split, feeds))
        return [at[served_by(i, count, units)] for i in range(count)]

    def _free(self, wanted: ReplicaRequest) -> list[int]:
        """By machine: CPUs that no other worker takes.

        Servers are placed with the workers that they serve and do not count, unless they need accelerators that only
        some machines have.
        """
        workers = Counter(self.workers)
        for k in self._of("server"):
            if len(self._able(self.wanted[k])) < len(self.machines):
                workers.update(self._spread(self.wanted[k].replicas, accelerated=True))
        able = self._able(wanted)
        cpus = [machine.cpus if host in able else 0 for host, machine in enumerate(self.machines)]
        free = [max(0, count - workers[host]) for host, count in enumerate(cpus)]
        return free if any(free) else cpus

    def _units(self, split: Sequence[int], free: Sequence[int]) -> int:
        """The number of servers whose workers can be kept together; 0 if steps must cross the network anyway."""
        servers = [self.wanted[k] for k in self._of("server")]
        fewest = min((each.replicas for each in servers), default=0)
        used = _used(split) | _used(shares(fewest, free))
        able = all(used <= set(self._able(each)) for each in servers)
        return fewest if able and len(_used(split)) <= fewest else 0

    # Servers: workers that act for those that step

    def _servers(self, k: int) -> None:
        """Each is placed with most of the workers that it serves, among the machines that have the devices it needs."""
        wanted = self.wanted[k]
        stepping = next(self.found[p] for p, each in enumerate(self.wanted) if each.steps_envs)
        crowds = [Counter[int]() for _ in range(wanted.replicas)]
        for i, host in enumerate(stepping):
            crowds[served_by(i, len(stepping), wanted.replicas)][host] += 1
        for crowd in crowds:

            def merit(host: int, crowd: Counter[int] = crowd) -> tuple[int, int, int]:
                spare = self.accelerators[host] - self.holders[host]
                return crowd[host], spare, self.machines[host].cpus - self.workers[host]

            self._put(k, [max(self._able(wanted), key=merit)])


def standalone_hosts(count: int, cpus: Mapping[str, int], workers: Mapping[str, int]) -> list[str | None]:
    """The machines of workers beside the plan: each goes to the one with most free CPUs, the first of equals.

    `cpus` and `workers` are by machine. None: no machine has a free CPU, and the worker runs beside the driver.
    """
    free = {name: number - workers.get(name, 0) for name, number in cpus.items()}
    found: list[str | None] = []
    for _ in range(count):
        most = max(free, key=lambda name: free[name], default=None)
        found.append(most if most is not None and free[most] > 0 else None)
        if most is not None:
            free[most] -= 1
    return found


def _used(counts: Sequence[int]) -> set[int]:
    return {host for host, count in enumerate(counts) if count}


def _filled(counts: Sequence[int], order: Iterable[int]) -> list[int]:
    """Each machine, repeated as often as its count."""
    return [host for host in order for _ in range(counts[host])]


def _near(counts: Sequence[int], feeds: Sequence[int]) -> list[int]:
    """The order of machines that keeps most workers with what they feed; `feeds` has that machine of each worker."""
    left = [host for host, count in enumerate(counts) if count]
    order, at = [], 0
    while left:
        later = set(feeds[at:])
        others = [host for host in left if host not in later]
        order.append(feeds[at] if feeds[at] in left else (others or left)[0])
        left.remove(order[-1])
        at += counts[order[-1]]
    return order
