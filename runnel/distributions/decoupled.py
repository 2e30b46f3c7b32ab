"""Environment workers, inference workers and learners, each scaled independently."""

from dataclasses import dataclass

from runnel.deprecated import accepts_old_fields
from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, BoundedStaleness, Distribution, Fragment, Layout


@accepts_old_fields
@dataclass(frozen=True)
class Decoupled(Distribution):
    """N environment workers, M inference workers and L learners."""

    actors: int = 2
    inference: int = 1
    learners: int = 1
    env_splits: int = 2
    inference_deadline_us: int | None = None
    prefetch: bool = True

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("environment", ("environment", "rollout"), replicas=self.actors, env_splits=self.env_splits),
                Fragment("inference", ("act",), self.inference, "one", deadline_us=self.inference_deadline_us),
                Fragment("learner", (REST,), replicas=self.learners, devices="one", prefetch=self.prefetch),
            ),
            BoundedStaleness(graph.algorithm.max_staleness),
        )
