"""A run's share of a cluster's machines, and the error if there is too little. Does not import Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runnel.launch.host_launcher import AGENT


class RayNode(NamedTuple):
    """A machine of the cluster."""

    id: str  # as Ray knows it
    name: str
    address: str
    cpus: int  # that are free
    gpus: int
    all_cpus: int
    all_gpus: int


class RayShare(NamedTuple):
    """A run's share of a machine."""

    cpus: int
    gpus: int


@dataclass(frozen=True)
class RayRequest:
    """The request of a run to a cluster."""

    address: str | None = None
    """The address of the head."""
    cpus: int = 1
    gpus: int = 0
    cpus_per_host: int | None = None
    take_gpus: bool = True
    """Whether the run takes GPUs that are free, needed or not."""
    agent: tuple[str, ...] = AGENT

    def share(self, node: RayNode) -> RayShare:
        """All that is free, or as many of the CPUs as are requested."""
        cpus = min(node.cpus, self.cpus_per_host or node.cpus)
        return RayShare(cpus, node.gpus if cpus and (self.take_gpus or self.gpus) else 0)

    def enough(self, nodes: Sequence[RayNode]) -> bool:
        """Whether enough is free on these machines."""
        shares = [self.share(node) for node in nodes]
        return sum(s.cpus for s in shares) >= max(1, self.cpus) and sum(s.gpus for s in shares) >= self.gpus

    def ever_enough(self, nodes: Sequence[RayNode]) -> bool:
        """Whether it would be enough if everything were free."""
        return self.enough([node._replace(cpus=node.all_cpus, gpus=node.all_gpus) for node in nodes])

    def too_little(self, nodes: Sequence[RayNode]) -> str:
        """The error: what was requested, what there is, what to do."""
        gpus = f" and {count(self.gpus, 'GPU')}" if self.gpus else ""
        most = f", at most {self.cpus_per_host} on each machine" if self.cpus_per_host else ""
        cpus_there = _of(sum(n.cpus for n in nodes), sum(n.all_cpus for n in nodes), "CPU")
        gpus_there = _of(sum(n.gpus for n in nodes), sum(n.all_gpus for n in nodes), "GPU")
        return (
            f"asked for {count(self.cpus, 'CPU')}{gpus}{most}; the cluster has {cpus_there} and {gpus_there} on "
            f"{count(len(nodes), 'machine')}: use fewer workers, add machines (`ray start --address=...` on each), or "
            "wait for what others run there (`ray status`)"
        )


def count(number: int, what: str) -> str:
    """`no GPU`, `1 CPU`, `8 CPUs`."""
    return f"{number or 'no'} {what}" + ("" if number <= 1 else "s")


def _of(free: int, there: int, what: str) -> str:
    return f"{count(free, what)} free of {there}" if there else f"no {what}"
