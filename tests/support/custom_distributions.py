"""Distributions that nobody shipped, and environments for them: named by import path, as a user's own are."""

from dataclasses import dataclass

import gymnasium
from toys import Tag

from runnel.envs.stepped import Stepped
from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Barrier, BoundedStaleness, Distribution, Fragment, Layout, Synchronisation


def _synchronisation(graph: Graph, sync: bool) -> Synchronisation:
    return Barrier() if sync else BoundedStaleness(graph.algorithm.max_staleness)


@dataclass(frozen=True)
class Store(Distribution):
    """Environment workers share inference workers; the replay and what feeds it have a process of their own."""

    actors: int = 5
    inference: int = 2
    sync: bool = False

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("environment", ("environment",), replicas=self.actors),
                Fragment("inference", ("act",), replicas=self.inference),
                Fragment("store", ("map", "replay")),
                Fragment("learner", (REST,)),
            ),
            _synchronisation(graph, self.sync),
        )


@dataclass(frozen=True)
class Maps(Distribution):
    """A custom stage on workers of its own, which take iterations in rotation."""

    actors: int = 2
    mappers: int = 3
    sync: bool = True

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),
                Fragment("mapper", ("map",), replicas=self.mappers),
                Fragment("learner", (REST,)),
            ),
            _synchronisation(graph, self.sync),
        )


@dataclass(frozen=True)
class Stages(Distribution):
    """Two custom stages one after the other, of other numbers of workers, which take iterations in rotation."""

    actors: int = 2
    first: int = 2
    second: int = 3

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),
                Fragment("first", (REST,), replicas=self.first),
                Fragment("second", ("map3", "map4"), replicas=self.second),
                Fragment("learner", ("learn",)),
            ),
            _synchronisation(graph, True),
        )


@dataclass(frozen=True)
class Chain(Distribution):
    """A worker for each thing that is made of a trajectory."""

    actors: int = 2
    sync: bool = False

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),
                Fragment("store", ("replay",)),  # which comes after the next
                Fragment("mapper", ("map",)),
                Fragment("learner", (REST,)),
            ),
            _synchronisation(graph, self.sync),
        )


@dataclass(frozen=True)
class Split(Distribution):
    """Hunters act where their environments are, runners on an inference worker."""

    actors: int = 2
    sync: bool = True

    def layout(self, graph: Graph) -> Layout:
        return Layout(
            (
                Fragment("environment", ("environment", "hunter/act"), replicas=self.actors),
                Fragment("inference", ("runners/act",)),
                Fragment("learner", (REST,)),
            ),
            _synchronisation(graph, self.sync),
        )


@dataclass(frozen=True)
class Lost(Distribution):
    """Forgets the learner."""

    actors: int = 2

    def layout(self, graph: Graph) -> Layout:
        return Layout((Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors),))


def host_tag() -> Stepped:
    """Two groups of agents in a host environment."""
    return Stepped(Tag())


class Fails(gymnasium.Wrapper):
    """Raises in every step."""

    def step(self, action):
        raise ValueError("the pole is broken")


def fails() -> gymnasium.Env:
    return Fails(gymnasium.make("CartPole-v1"))
