"""Actors do not wait for the learner; staleness is bounded."""

from dataclasses import dataclass

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, BoundedStaleness, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Async(Distribution):
    """N actors that wait only where a sample would be too old, and one or more learners."""

    actors: int = 2
    learners: int = 1
    prefetch: bool = True

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),
                Fragment("learner", (REST,), replicas=self.learners, devices="one", prefetch=self.prefetch),
            ),
            BoundedStaleness(graph.algorithm.max_staleness),
        )
