"""Two distributions whose cut edges synchronise differently."""

from dataclasses import dataclass

from runnel import REST, Barrier, BoundedStaleness, Distribution, Fragment, Layout


@dataclass(frozen=True)
class InStepInference(Distribution):
    """One batch of all environments at every step, as SEED RL's inference has it; the learner runs beside it."""

    actors: int = 2

    def layout(self, graph):
        return Layout(
            (
                Fragment("environment", ("environment", "rollout"), replicas=self.actors),
                Fragment("inference", ("act",), devices="one"),
                Fragment("learner", (REST,), devices="one"),
            ),
            BoundedStaleness(graph.algorithm.max_staleness),
            edges={("environment", "act"): Barrier("step"), ("act", "environment"): Barrier("step")},
        )


@dataclass(frozen=True)
class OneGroupFree(Distribution):
    """A learner for each group. Actors wait for all but one: the group `free` learns from samples that are up to
    `staleness` updates old, so no actor waits for its learner."""

    free: str = "runners"
    staleness: int = 4
    actors: int = 2

    def layout(self, graph):
        trained = {
            group: [node.name for node in graph.after_rollout() if node.group == group] for group in graph.states
        }
        return Layout(
            (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),
                *(Fragment(f"{group}-learner", tuple(nodes), devices="one") for group, nodes in trained.items()),
            ),
            Barrier(),
            edges={(f"{self.free}/rollout", f"{self.free}/*"): BoundedStaleness(self.staleness)},
        )
