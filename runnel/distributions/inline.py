"""The whole loop in one process: the reference for all others."""

from dataclasses import dataclass
from typing import ClassVar

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Inline(Distribution):
    """One process runs everything, on host or JAX environments."""

    default_for: ClassVar = "host"
    one_process: ClassVar = True

    def layout(self, graph: Graph) -> Layout:
        return Layout((Fragment("process", (REST,), devices="one"),))
