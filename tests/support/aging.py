"""An algorithm that measures the staleness of what it learns from, where it learns, and layouts to put in between."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from toys import Tag

from runnel.algorithm import Algorithm
from runnel.graph.nodes import Graph
from runnel.planning.plan import REST, Barrier, BoundedStaleness, Distribution, Fragment, Layout
from runnel.replay import PrioritisedReplay, UniformReplay
from runnel.types import Act, AgentSpec, Array, Box, EnvSpec

ITEMS = 4


class State(NamedTuple):
    params: dict[str, Array]
    updates: Array  # [] calls of `learn`
    oldest: Array  # [] the highest staleness of what it learnt from
    total: Array  # [] the sum of the mean staleness of every update


@dataclass(frozen=True)
class Ages(Algorithm):
    """Learns nothing but how old its trajectories are."""

    unroll: int = 2
    bound: int = 4
    maps: int = 0  # stages between the rollout and learning, in a chain
    replayed: int = 0  # updates an iteration from a replay of the newest iteration; 0: without a replay
    work: int = 20_000  # how long an update takes
    learns: int = 1  # calls of `flow.learn`
    reuses: int = 1

    @property
    def max_staleness(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]: a setting decides
        return self.bound

    def init(self, key, spec):
        return State({"x": jnp.zeros(())}, jnp.int32(0), jnp.int32(0), jnp.zeros(()))

    def act(self, params, observation, memory, key, explore):
        return Act(jax.random.bernoulli(key).astype(jnp.int32))

    def stage(self, trajectory):
        return trajectory._replace(reward=trajectory.reward + 1)

    def items(self, trajectory):
        """What a replay keeps of an iteration: how old the oldest unroll is."""
        return trajectory._replace(version=jnp.repeat(trajectory.version.min(), ITEMS)).version

    def learn(self, state, trajectory, key):
        version = trajectory if self.replayed else trajectory.version
        age = state.updates - version
        slow = jax.lax.fori_loop(0, self.work, lambda i, x: jnp.sin(x + 1e-3 * i), state.params["x"])
        oldest = jnp.maximum(state.oldest, age.max())
        return State({"x": slow}, state.updates + 1, oldest, state.total + age.mean()), {"age": age.max()}

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=self.unroll)
        for _ in range(self.maps):
            trajectory = flow.map(self.stage, trajectory)
        if self.replayed:
            replay = flow.replay(UniformReplay(ITEMS))
            replay.insert(flow.map(self.items, trajectory))
            trajectory = replay.sample(ITEMS, samples_per_insert=self.replayed)
        for _ in range(self.learns):
            flow.learn(self.learn, trajectory)


@dataclass(frozen=True)
class TeamAges(Ages):
    """The same for the groups of `toys.Tag` and of `Trio`."""

    def act(self, params, observation, memory, key, explore):
        hunter = observation.shape == (3,)
        drawn = jax.random.bernoulli(key)
        return Act(drawn.astype(jnp.int32) if hunter else drawn.astype(jnp.float32)[None])


@dataclass(frozen=True)
class Between(Distribution):
    """Actors, a fragment for each map with so many replicas, a replay where it is said, and a learner for each group.

    `acts`: where actions are computed and trajectories put together.
    """

    actors: int = 2
    acts: Literal["actor", "inference", "server"] = "actor"
    mappers: tuple[int, ...] = ()
    stores: bool = False  # the replay has a worker of its own
    bound: int = 4
    env_splits: int = 1
    sync: bool = False

    def layout(self, graph: Graph) -> Layout:
        several = len(graph.spec.groups) > 1
        maps = [node.name for node in graph.of_kind("map")][:: len(graph.spec.groups)]
        stages = [
            Fragment(f"mapper{k}", self._nodes(graph, k), replicas=replicas) for k, replicas in enumerate(self.mappers)
        ]
        rest = [name for k in range(len(self.mappers), len(maps)) for name in self._nodes(graph, k)]
        if self.stores:
            stages.append(Fragment("store", (*rest, "replay")))
            rest = []
        learns = graph.of_kind("learn")
        learners = [
            Fragment(f"{group}-learner", tuple(node.name for node in learns if node.group == group))
            for group in (graph.spec.groups if several else ())
        ]
        learner = Fragment("learner", ("learn", *rest) if self.stores else ("learn", "replay", *rest))
        if not self.stores and not graph.of_kind("replay"):
            learner = Fragment("learner", ("learn", *rest))
        synchronisation = Barrier() if self.sync else BoundedStaleness(self.bound)
        return Layout((*self._playing(), *stages, *(learners or [learner])), synchronisation)

    def _nodes(self, graph: Graph, k: int) -> tuple[str, ...]:
        """The k-th map of every group. The first is named as its kind is, so it goes where nothing else is named."""
        groups = graph.spec.groups
        if len(groups) > 1:
            return tuple(f"{group}/map{k + 1 if k else ''}" for group in groups)
        return (f"map{k + 1}",) if k else (REST,)

    def _playing(self) -> tuple[Fragment, ...]:
        if self.acts == "actor":
            return (
                Fragment("actor", ("environment", "act", "rollout"), replicas=self.actors, env_splits=self.env_splits),
            )
        at = ("environment", "rollout") if self.acts == "inference" else ("environment",)
        serves = ("act",) if self.acts == "inference" else ("act", "rollout")
        return (
            Fragment("environment", at, replicas=self.actors, env_splits=self.env_splits),
            Fragment("inference", serves),
        )


# One group that waits for its learner, beside others that do not


class Trio(Tag):
    """`toys.Tag` with a third group, which nothing depends on."""

    spec = EnvSpec(
        "trio", {**Tag.spec.groups, "birds": AgentSpec(Box((4,)), Box((1,), np.dtype(np.float32), -1, 1))}, 10
    )

    def _observe(self, state):
        hunter, runners, clock = state
        birds = jnp.concatenate([hunter[None], runners, clock[None] / 10]).astype(jnp.float32)
        return {**super()._observe(state), "birds": birds}

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(reward={**timestep.reward, "birds": jnp.zeros(())})


@dataclass(frozen=True)
class SlowRunners(TeamAges):
    """Updates of all groups but the hunter take `times` as long: their learners are as far behind as they may be."""

    times: int = 100

    def init(self, key, spec):
        state = super().init(key, spec)
        hunter = spec.observation.shape == (3,)
        return state if hunter else state._replace(params={**state.params, "slow": jnp.zeros(())})

    def learn(self, state, trajectory, key):
        slowed = replace(self, work=self.work * self.times) if "slow" in state.params else self
        after, out = TeamAges.learn(slowed, state, trajectory, key)
        return after._replace(params={**state.params, **after.params}), out


@dataclass(frozen=True)
class SlowPrioritised(SlowRunners):
    """Learns from a prioritised replay: priorities go back from the learner to where the replay is."""

    bound: int = 8
    replayed: int = 2

    def learn(self, state, batch, key):
        state, out = super().learn(state, batch.items, key)
        return state, {**out, "priorities": jnp.ones(ITEMS)}

    def loop(self, flow):
        replay = flow.replay(PrioritisedReplay(ITEMS))
        replay.insert(flow.map(self.items, flow.rollout(self.act, steps=self.unroll)))
        out = flow.learn(self.learn, replay.sample(ITEMS, samples_per_insert=self.replayed))
        replay.update(out["priorities"])


@dataclass(frozen=True)
class OneGroupWaits(Distribution):
    """A learner for each group. Actors wait for the hunter's alone.

    `learners`: of each other group. `stages`: the other groups' maps and replays have workers of their own.
    """

    staleness: int = 3
    learners: int = 1
    stages: bool = False

    def layout(self, graph: Graph) -> Layout:
        fragments = [Fragment("actor", ("environment", "act", "rollout"), replicas=2)]
        for group in graph.states:
            free = group != "hunter"
            own = [node for node in graph.after_rollout() if node.group == group]
            before = [node.name for node in own if node.kind in ("map", "replay")] if free and self.stages else []
            if before:
                fragments.append(Fragment(f"{group}-stage", tuple(before)))
            learns = tuple(node.name for node in own if node.name not in before)
            fragments.append(Fragment(f"{group}-learner", learns, replicas=self.learners if free else 1))
        others = [group for group in graph.states if group != "hunter"]
        edges = {(f"{group}/rollout", f"{group}/*"): BoundedStaleness(self.staleness) for group in others}
        return Layout(tuple(fragments), Barrier(), edges=edges)
