"""Replicas of the whole loop, each with its share of the environments; gradients are all-reduced."""

from dataclasses import dataclass

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Barrier, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Replicated(Distribution):
    """N replicas of the whole loop; only gradients cross between them."""

    learners: int = 2

    def layout(self, graph: Graph) -> Layout:
        return Layout((Fragment("replica", (REST,), replicas=self.learners, devices="one"),), Barrier(every="unroll"))
