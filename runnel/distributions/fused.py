"""Environments, acting and learning in a single XLA program."""

from dataclasses import dataclass
from typing import ClassVar

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Fused(Distribution):
    """One XLA program on one or many devices; the environments must be JAX environments."""

    default_for: ClassVar = "jax"
    one_process: ClassVar = True

    def layout(self, graph: Graph) -> Layout:
        return Layout((Fragment("program", (REST,), devices="all", compiled=True),))
