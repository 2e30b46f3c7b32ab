"""Tracing: an algorithm's `loop` is called once with a `Flow`, and each call on it adds a node to the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from runnel.algorithm import Algorithm
from runnel.config.run_config import Precision
from runnel.errors import UserError, nearest
from runnel.graph.builder import Builder
from runnel.graph.nodes import Graph, Ref, Rollout, Sampling
from runnel.ops.precision import check_precision, computing
from runnel.replay import PrioritisedReplay, Replay
from runnel.types import OMISSIBLE, Act, AgentSpec, EnvSpec, PyTree


class Value:
    """What a call on `flow` returns, to be passed to the next: one `Ref` for each group."""

    def __init__(self, refs: dict[str, Ref]):
        self._refs = refs

    def __getattr__(self, name: str) -> Value:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, key: str | int) -> Value:
        try:
            return Value({group: ref[key] for group, ref in self._refs.items()})
        except AttributeError as error:
            raise UserError(str(error)) from None

    def of(self, group: str) -> Value:
        """The value of one group, for the stages of every group: `trajectory.of("hunters")`."""
        if group not in self._refs:
            raise UserError(
                f"value.of('{group}'): found a value of group {', '.join(self._refs)}{nearest(group, self._refs)}; "
                "expected one of a call that was made for that group"
            )
        return _ValueOf(self._refs[group])

    def ref(self, group: str) -> Ref:
        if group not in self._refs:
            first = next(iter(self._refs))
            raise UserError(
                f"a value of group {', '.join(self._refs)} is used by group '{group}'; "
                f"use values of the same flow.agents(group), or say whose it is by value.of('{first}')"
            )
        return self._refs[group]


class _ValueOf(Value):
    """One group's value, whichever group's stages take it."""

    def __init__(self, ref: Ref):
        super().__init__({})
        self._ref = ref

    def __getitem__(self, key: str | int) -> Value:
        try:
            return _ValueOf(self._ref[key])
        except AttributeError as error:
            raise UserError(str(error)) from None

    def of(self, group: str) -> Value:
        raise UserError(f"value.of(...).of('{group}'): the value is of one group already; leave out one of the two")

    def ref(self, group: str) -> Ref:
        return self._ref


class Flow:
    """The training loop while it is traced. A call applies to every group of agents, or to the one of `agents`."""

    def __init__(self, builder: Builder, groups: tuple[str, ...]):
        self._builder = builder
        self.groups = groups

    def agents(self, group: str) -> Flow:
        """The same loop for one group of agents, which has its own policy and its own learner."""
        if group not in self.groups:
            raise UserError(f"the environment has no group '{group}'{nearest(group, self.groups)}")
        return Flow(self._builder, (group,))

    @property
    def spec(self) -> AgentSpec:
        """What the group's agents see and do; of several groups, take one by `agents` first."""
        group, *others = self.groups
        if others:
            raise UserError(f"flow.spec is that of one group; take one of {', '.join(self.groups)} by flow.agents")
        return self._builder.spec.groups[group]

    @property
    def unroll(self) -> int | None:
        """Steps of the rollouts of other groups so far; None before the first."""
        rollouts = [node for node in self._builder.nodes.values() if node.kind == "rollout"]
        return rollouts[0].rollout.steps if rollouts else None

    def rollout(
        self, act: Callable[..., Act], steps: int, discount: float | None = None, omits: Collection[str] = ()
    ) -> Value:
        """Acts for `steps` steps in every environment; returns a `Trajectory` of those in which the group plays.

        With a `discount`, the trajectory carries each column's discounted sum of rewards of the episode so
        far, for scaling by returns. `omits`: names of the trajectory's fields that learning does not use. They are
        `()`, and are not sent to learners.
        """
        for name in omits:
            if name not in OMISSIBLE:
                raise UserError(f"flow.rollout(omits=): found '{name}', expected a field{nearest(name, OMISSIBLE)}")
        if "first" in omits and "memory" not in omits:
            raise UserError("flow.rollout(omits=): found 'first' without 'memory', expected both: it begins there")
        settings = Rollout(steps, discount, tuple(name for name in OMISSIBLE if name in omits))
        return self._each(
            lambda group: self._builder.played_columns(group, self._builder.rollout(group, act, settings))
        )

    def map(self, function: Callable[..., PyTree], *inputs: Value) -> Value:
        """Any stage of the user's own: relabel, reanalyse, reward model, labels of an expert.

        A function that names `params` or `key` among its parameters is given them.
        """
        return self._each(lambda group: self._builder.map(group, function, _refs(inputs, group)))

    def learn(self, learn: Callable[..., tuple[Any, PyTree]], *batch: Value) -> Value:
        """One update; returns `out`. With `gradient` and `apply` instead of `learn` it becomes two nodes."""
        return self._each(lambda group: self._builder.learn(group, learn, _refs(batch, group)))

    def replay(self, replay: Replay) -> ReplayFlow:
        """Memory between iterations: `insert` into it, `sample` from it."""
        return ReplayFlow(self, replay)

    def _each(self, add: Callable[[str], Ref]) -> Value:
        return Value({group: add(group) for group in self.groups})


@dataclass
class ReplayFlow:
    """A replay buffer in the loop."""

    flow: Flow
    replay: Replay
    inserted: Value | None = None
    sampled: Value | None = None

    def insert(self, items: Value) -> None:
        """Adds what this iteration made."""
        if self.inserted is not None:
            raise UserError("a replay takes one insert in a loop; join the items with flow.map first")
        self.inserted = items

    def sample(self, batch: int, min_size: int = 1, samples_per_insert: float = 1.0) -> Value:
        """Batches for the nodes that follow, as often as `samples_per_insert` asks.

        Each inserted item is drawn that many times on average, counted from the `min_size`-th on; until
        then nothing is sampled.
        """
        inserted = self.inserted
        if inserted is None:
            raise UserError("replay.sample before replay.insert: insert this iteration's items first")
        settings = Sampling(self.replay, batch, max(min_size, batch), samples_per_insert)
        builder = self.flow._builder
        self.sampled = self.flow._each(lambda group: builder.replay(group, inserted.ref(group), settings))
        return self.sampled

    def update(self, priorities: Value) -> None:
        """Sets the priorities of the batch just learnt from."""
        if self.sampled is None or not isinstance(self.replay, PrioritisedReplay):
            raise UserError("replay.update needs a PrioritisedReplay that has been sampled")
        for group in self.flow.groups:
            self.flow._builder.priorities(self.sampled.ref(group).node, priorities.ref(group))


def trace(
    algorithm: Algorithm, spec: EnvSpec, envs: int, frozen: Collection[str] = (), precision: Precision = "float32"
) -> Graph:
    """The dataflow graph of `algorithm.loop` on `envs` environments of this kind.

    Groups in `frozen` act and do not learn: what the loop does with their trajectories is left out. The functions of
    the graph's nodes compute networks with `precision`, in whatever program they are traced.
    """
    check_precision(precision)
    with computing(precision):
        builder = Builder(algorithm, spec, envs, precision)
        algorithm.loop(Flow(builder, tuple(spec.groups)))
    for group in frozen:
        if group not in spec.groups:
            raise UserError(f"frozen=: there is no group '{group}'{nearest(group, spec.groups)}", keywords=("frozen",))
        builder.freeze(group)
    if frozen and set(frozen) == set(spec.groups):
        raise UserError("frozen=: all groups are frozen, expected one that learns", keywords=("frozen",))
    return builder.graph()


def _refs(values: tuple[Value, ...], group: str) -> tuple[Ref, ...]:
    for value in values:
        if not isinstance(value, Value):
            raise UserError(
                f"flow was given a {type(value).__name__}; it takes values that other calls on flow returned, "
                "such as the trajectory of flow.rollout"
            )
    return tuple(value.ref(group) for value in values)
