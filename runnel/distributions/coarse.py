"""Actors unroll alone and ship trajectories to one learner; all meet once an unroll."""

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
