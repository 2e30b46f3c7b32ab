"""A synchronisation that Runnel does not have, and a distribution that uses it, as a user would write them."""

from dataclasses import dataclass

from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Distribution, Fragment, Layout
from runnel.planning.synchronisation import Synchronisation


@dataclass(frozen=True)
class Lag(Synchronisation):
    """Actors run ahead of the learner by at most so many updates."""

    updates: int

    @property
    def slack(self) -> int:
        return self.updates

    def __str__(self) -> str:
        return f"lag of {self.updates}"


@dataclass(frozen=True)
class Lagging(Distribution):
    """Actors, and a learner that they run ahead of."""

    actors: int = 2
    updates: int = 2

    def layout(self, graph: Graph) -> Layout:
        actor = Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors)
        return Layout((actor, Fragment("learner", (REST,))), Lag(self.updates))
