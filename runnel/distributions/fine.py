"""Environment workers step, one learner acts for all of them; all synchronise every step."""

from dataclasses import dataclass

from runnel.deprecated import accepts_old_fields
from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Barrier, Distribution, Fragment, Layout


@accepts_old_fields
@dataclass(frozen=True)
class Fine(Distribution):
    """N environment workers and one learner that also acts; an exchange every step."""

    actors: int = 2
    env_splits: int = 1

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("environment", ("environment",), replicas=self.actors, env_splits=self.env_splits),
                Fragment("learner", (REST,), devices="one"),
            ),
            Barrier(every="step"),
        )
