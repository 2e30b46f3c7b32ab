"""Dedicated environment workers; each group of agents acts and learns in a fragment of its own."""

from dataclasses import dataclass

from runnel.deprecated import accepts_old_fields
from runnel.graph.nodes import Graph
from runnel.planning.plan import Barrier, Distribution, Fragment, Layout


@accepts_old_fields
@dataclass(frozen=True)
class Environments(Distribution):
    """N environment workers, and one worker for each group of agents; an exchange every step."""

    actors: int = 2
    env_splits: int = 1

    def layout(self, graph: Graph) -> Layout:
        groups = tuple(Fragment(group, (f"{group}/*",), devices="one") for group in graph.spec.groups)
        return Layout(
            (Fragment("environment", ("environment",), replicas=self.actors, env_splits=self.env_splits), *groups),
            Barrier(every="step"),
        )
