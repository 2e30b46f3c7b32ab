"""Dedicated environment workers; each group of agents acts and learns in a fragment of its own."""

from dataclasses import dataclass

from runnel.graph.nodes import Graph
from runnel.planning.plan import Barrier, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Environments(Distribution):
    """N environment workers, and one worker for each group of agents; an exchange every step."""

    actors: int = 2
    ring: int = 1

    def layout(self, graph: Graph) -> Layout:
        groups = tuple(Fragment(group, (f"{group}/*",), devices="one") for group in graph.spec.groups)
        return Layout(
            (Fragment("environment", ("environment",), replicas=self.actors, ring=self.ring), *groups),
            Barrier(every="step"),
        )
