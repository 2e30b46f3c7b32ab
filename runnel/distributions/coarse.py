"""Actors run whole unrolls and send trajectories to one learner; all synchronise after every unroll."""

from dataclasses import dataclass

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Barrier, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Coarse(Distribution):
    """N actors and one learner that wait for each other every unroll."""

    actors: int = 2

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),
                Fragment("learner", (REST,), devices="one"),
            ),
            Barrier(every="unroll"),
        )
