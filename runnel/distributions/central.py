"""Workers compute gradients on their own environments; a parameter server applies them as they come."""

from dataclasses import dataclass
from typing import ClassVar

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, BoundedStaleness, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Central(Distribution):
    """N workers that compute gradients and one that applies them."""

    actors: int = 2

    needs: ClassVar = ("gradient", "apply")

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("worker", (REST,), replicas=self.actors),
                Fragment("server", ("apply",), devices="one"),
            ),
            BoundedStaleness(graph.algorithm.max_staleness),
        )
