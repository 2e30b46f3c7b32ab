"""Environment workers, inference workers and learners, each scaled alone."""

from dataclasses import dataclass

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, BoundedStaleness, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Decoupled(Distribution):
    """N environment workers, M inference workers and L learners."""

    actors: int = 2
    inference: int = 1
    learners: int = 1
    ring: int = 2

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("environment", ("environment", "rollout"), replicas=self.actors, ring=self.ring),
                Fragment("inference", ("act",), replicas=self.inference, devices="one"),
                Fragment("learner", (REST,), replicas=self.learners, devices="one"),
            ),
            BoundedStaleness(graph.algorithm.max_staleness),
        )
