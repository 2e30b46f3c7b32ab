"""Environments, acting and learning in a single XLA program."""

from dataclasses import dataclass

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Fused(Distribution):
    """One XLA program on one or many devices; the environments must be JAX environments."""

    def layout(self, graph: Graph) -> Layout:
        return Layout((Fragment("program", (REST,), devices="all", compiled=True),))
