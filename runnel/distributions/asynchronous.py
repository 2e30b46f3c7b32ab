"""Actors run free; learners take what has come."""

from dataclasses import dataclass

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, BoundedStaleness, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Async(Distribution):
    """N actors that never wait but for the staleness limit, and one or more learners."""

    actors: int = 2
    learners: int = 1

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),
                Fragment("learner", (REST,), replicas=self.learners, devices="one"),
            ),
            BoundedStaleness(graph.algorithm.max_staleness),
        )
