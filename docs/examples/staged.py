"""Two custom distributions."""

from dataclasses import dataclass
from typing import ClassVar

from runnel import REST, Barrier, Distribution, Fragment, Layout


@dataclass(frozen=True)
class Staged(Distribution):
    """Actors, one worker that prepares and replays their trajectories, and learners."""

    needs: ClassVar = ("replay",)

    actors: int = 2
    learners: int = 1

    def layout(self, graph):
        return Layout(
            (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),
                Fragment("store", ("map", "replay")),
                Fragment("learner", (REST,), replicas=self.learners, devices="one"),
            ),
            Barrier(every="unroll"),
        )


@dataclass(frozen=True)
class FusedOnOne(Distribution):
    """One XLA program, on one device only."""

    def layout(self, graph):
        return Layout((Fragment("program", (REST,), devices="one", compiled=True),))
