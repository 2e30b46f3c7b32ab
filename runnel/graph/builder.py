"""Builds the dataflow graph while a loop is traced: nodes, edges, and the types of what flows along them.

`jax.eval_shape` finds the type of every edge, so a wrong shape or a missing field is an error here, before
anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp

from runnel.algorithm import Algorithm, act_one, algorithm_name, asks_for, first_state, has_gradient
from runnel.config.run_config import Precision
from runnel.errors import UserError
from runnel.graph.attributes import check_attributes
from runnel.graph.nodes import Edge, Graph, Node, Ref, Rollout, Sampling
from runnel.graph.played_columns import columns_played
from runnel.graph.typecheck import Type, batched, check_takes, describe, same_types, space_type, traced, typed
from runnel.ops.column_blocks import ColumnBlocks
from runnel.ops.minibatches import cuts_of
from runnel.ops.precision import with_precision
from runnel.replay import MOST_ITEMS
from runnel.types import Act, AgentSpec, Box, EnvSpec, PyTree, Trajectory


class Builder:
    """Collects nodes and edges while `loop` is traced.

    It is one class because every call of `Flow` adds to the same nodes and edges, and is checked against those that
    were added before it.
    """

    def __init__(self, algorithm: Algorithm, spec: EnvSpec, envs: int, precision: Precision = "float32"):
        self.algorithm, self.spec, self.envs = algorithm, spec, envs
        self.precision: Precision = precision
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []
        self.frozen: frozenset[str] = frozenset()
        self.key = jax.eval_shape(lambda: jax.random.key(0))
        self.name = algorithm_name(algorithm)
        for group, agents in spec.groups.items():
            own = algorithm.for_group(group)
            check_attributes(own)
            if not isinstance(agents.action, own.actions):
                kinds = " or ".join(kind.__name__ for kind in own.actions)
                raise UserError(
                    f"{algorithm_name(own)}: found {type(agents.action).__name__} actions of '{spec.name}'"
                    f"{self._of(group)}, expected {kinds}; choose another algorithm (`runnel list`)",
                    page="algorithms",
                )
        self.states = {group: self._state(group) for group in spec.groups}
        output = {group: space_type(agents.observation, self._columns(group)) for group, agents in spec.groups.items()}
        self.nodes["environment"] = Node("environment", "environment", "", (), output)

    # The calls of Flow, for one group each

    def rollout(self, group: str, act: Callable[..., Act], settings: Rollout) -> Ref:
        if settings.steps < 1:
            raise UserError(f"flow.rollout(steps={settings.steps}); steps must be 1 or more")
        rollouts = [node for node in self.nodes.values() if node.kind == "rollout"]
        if any(node.group == group for node in rollouts):
            raise UserError(f"flow.rollout is called twice{self._of(group)}; an iteration has one unroll per group")
        if any(node.rollout.steps != settings.steps for node in rollouts):
            raise UserError("groups of one environment step together; give each flow.rollout the same steps")
        agents, columns, steps = self.spec.groups[group], self._columns(group), settings.steps
        given, memory = self._act_type(group, act, agents)
        observation = space_type(agents.observation, columns)
        flag, flags = Type((columns,), jnp.bool_), Type((steps, columns), jnp.bool_)
        actions = batched(given.action, columns)
        trajectory = Trajectory(
            observation=batched(observation, steps),
            action=batched(actions, steps),
            reward=Type((steps, columns), jnp.result_type(float)),
            terminated=flags,
            truncated=flags,
            last_observation=batched(observation, steps),
            first=flags,
            memory=batched(memory, columns),
            extras=batched(given.extras, steps, columns),
            discounted_sum=Type((columns,), jnp.result_type(float)),
            version=Type((columns,), jnp.int32),
            index=Type((columns,), jnp.int32),
        )._replace(**dict.fromkeys(settings.omits, ()))
        act_node = self._add(
            "act", group, (), Act(actions, batched(memory, columns), batched(given.extras, columns)), act
        )
        node = self._add("rollout", group, (), trajectory, settings=settings)
        seen = {"observation": observation, "first": flag}
        rewarded = {"reward": Type((columns,), jnp.result_type(float)), "terminated": flag, "truncated": flag}
        self._edge("environment", act_node, "observation", seen, steps)
        self._edge(act_node, "environment", "action", {"action": actions}, steps, feedback=True)
        step = {**seen, **rewarded, "last_observation": observation}
        self._edge("environment", node, "step", _without(settings.omits, step), steps)
        acted = {"action": actions, "extras": batched(given.extras, columns)}
        self._edge(act_node, node, "act", _without(settings.omits, acted), steps)
        if jax.tree.leaves(memory) and "memory" not in settings.omits:
            self._edge(act_node, node, "memory", {"memory": batched(memory, columns)})
        return Ref(node, trajectory)

    def played_columns(self, group: str, trajectory: Ref) -> Ref:
        """The columns of the environments in which the group plays: by a node of its own, unless it plays in all."""
        agents = self.spec.groups[group]
        if all(agents.plays):
            return trajectory
        pattern = len(agents.plays)
        if self.envs % pattern:
            raise UserError(
                f"envs={self.envs}: {self.spec.name} has {pattern} line-ups, found envs={self.envs}, expected a "
                f"multiple of {pattern}",
                keywords=("envs",),
            )
        return self.map(group, partial(columns_played, agents), (trajectory,))

    def map(self, group: str, function: Callable[..., PyTree], inputs: tuple[Ref, ...]) -> Ref:
        given = self._given(group, function)
        output = typed(
            lambda types, extra: function(*types, **extra),
            [ref.type for ref in inputs],
            given,
            what=_called(function),
        )
        return Ref(self._add("map", group, inputs, output, function), output)

    def learn(self, group: str, learn: Callable[..., Any], inputs: tuple[Ref, ...]) -> Ref:
        if getattr(learn, "__func__", None) is Algorithm.learn:
            return self._gradient_and_apply(group, inputs)
        state, types = self.states[group], [ref.type for ref in inputs]
        program, result = traced(lambda s, xs, k: learn(s, *xs, k), state, types, self.key, what=_called(learn))
        new_state, out = _two(result, _called(learn), "state, out")
        same_types(state, new_state, f"{_called(learn)} returns a state")
        return Ref(self._add("learn", group, inputs, out, learn, cuts=cuts_of(program)), out)

    def _gradient_and_apply(self, group: str, inputs: tuple[Ref, ...]) -> Ref:
        algorithm = self.algorithm.for_group(group)
        if not has_gradient(algorithm):
            raise UserError(
                f"{algorithm_name(algorithm)} has no `learn`; give it `learn`, or both `gradient` and `apply`"
            )
        state, types = self.states[group], [ref.type for ref in inputs]
        program, result = traced(
            lambda s, xs, k: cast(Any, algorithm).gradient(s, *xs, k),
            state,
            types,
            self.key,
            what=_called(algorithm.gradient),
        )
        grads, out = _two(result, _called(algorithm.gradient), "grads, out")
        new_state = typed(algorithm.apply, state, grads, what=_called(algorithm.apply))
        same_types(state, new_state, f"{_called(algorithm.apply)} returns a state")
        value, cuts = {"grads": grads, "out": out}, cuts_of(program)
        gradient = self._add("gradient", group, inputs, value, algorithm.gradient, cuts=cuts)
        grads_ref = Ref(gradient, {"grads": grads, "out": out})["grads"]
        self._add("apply", group, (grads_ref,), new_state, algorithm.apply)
        return Ref(gradient, {"grads": grads, "out": out})["out"]

    def replay(self, group: str, items: Ref, settings: Sampling) -> Ref:
        replay = settings.replay
        self._check_own(group, items, "replay.insert")
        if self.nodes[items.node].replays:
            raise UserError("replay.insert takes what an iteration makes, not what was made from replayed batches")
        if replay.capacity > MOST_ITEMS:
            raise UserError(f"a replay holds at most {MOST_ITEMS:,} items, found capacity={replay.capacity}")
        room = replay.room(items.type)
        for name, wanted in (
            ("min_size", settings.min_size),
            ("an iteration's insert of", replay.count(items.type)),
        ):
            if wanted > room:
                raise UserError(f"a replay with room for {room} can never hold {name} {wanted}; raise its capacity")
        state = typed(lambda x: replay.init(x, settings.batch), items.type, what="replay")
        state = typed(lambda s, x: replay.add(s, x, settings.batch), state, items.type, what="replay.insert")
        output = typed(lambda s, k: replay.sample(s, k, settings.batch), state, self.key, what="replay.sample")
        return Ref(self._add("replay", group, (items,), output, settings=settings, keeps=state), output)

    def priorities(self, replay: str, priorities: Ref) -> None:
        self._check_own(self.nodes[replay].group, priorities, "replay.update")
        wanted = (self.nodes[replay].sampling.batch,)
        if not hasattr(priorities.type, "shape") or priorities.type.shape != wanted:
            raise UserError(f"replay.update: found priorities {describe(priorities.type)}, expected {list(wanted)}")
        self.nodes[replay] = replace(self.nodes[replay], priorities=priorities)
        times = self._times(self.nodes[priorities.node])
        self._edge(priorities.node, replay, "priorities", {"priorities": priorities.type}, times, feedback=True)

    def freeze(self, group: str) -> None:
        """Replaces all that is done with a group's trajectories by a learner that keeps its state.

        It consists of the same kinds of node as before: a distribution that cuts gradients apart finds them here, too.
        """
        by_gradient = any(node.group == group and node.kind == "gradient" for node in self.nodes.values())
        self.nodes = {name: node for name, node in self.nodes.items() if node.group != group or not node.traits.trains}
        self.edges = [edge for edge in self.edges if edge.source in self.nodes and edge.target in self.nodes]
        for name, node in self.nodes.items():
            for ref in node.sources:
                if ref.node not in self.nodes:
                    raise UserError(
                        f"frozen=: found '{group}', whose '{ref.node}' {self.name} gives to '{name}'; expected a group "
                        "from which no other learns: freeze another one, or none",
                        keywords=("frozen",),
                    )
        (rollout,) = (node for node in self.nodes.values() if node.group == group and node.kind == "rollout")
        trajectory = Ref(rollout.name, rollout.output)
        if by_gradient:
            value = {"grads": Type((), jnp.float32), "out": {}}
            gradient = self._add("gradient", group, (trajectory,), value, no_gradient)
            self._add("apply", group, (Ref(gradient, value)["grads"],), self.states[group], no_step)
        else:
            self._add("learn", group, (trajectory,), {}, keep_state)
        self.frozen = self.frozen | {group}

    def graph(self) -> Graph:
        kinds = {node.kind for node in self.nodes.values()}
        learns = any(node.traits.learns for node in self.nodes.values())
        for called, call in (("rollout" in kinds, "flow.rollout"), (learns, "flow.learn")):
            if not called:
                raise UserError(f"{self.name}.loop never calls {call}; nothing would be trained")
        silent = [
            g for g in self.spec.groups if not any(n.group == g and n.kind == "rollout" for n in self.nodes.values())
        ]
        if silent:
            raise UserError(f"{self.name}.loop adds no rollout for group {', '.join(silent)}; call flow.agents for it")
        for group in dict.fromkeys(node.group for node in self.nodes.values() if node.traits.learns):
            self._publish(group)
        return Graph(
            self.algorithm, self.spec, self.envs, self.nodes, tuple(self.edges), self.states, self.frozen,
            self.precision,
        )  # fmt: skip

    # Parts

    def _state(self, group: str) -> PyTree:
        agents, algorithm = self.spec.groups[group], self.algorithm.for_group(group)
        name = algorithm_name(algorithm)
        check_takes(algorithm.init, f"{name}.init", "key", "spec", optional=("group",))
        state = typed(lambda key: first_state(algorithm, key, agents, group), self.key, what=f"{name}.init")
        if not hasattr(state, "params"):
            raise UserError(f"{name}.init returns a {type(state).__name__} without `params`; acting needs state.params")
        return state

    def _act_type(self, group: str, act: Callable[..., Act], agents: AgentSpec) -> tuple[Act, PyTree]:
        algorithm = self.algorithm.for_group(group)
        memory = typed(lambda: algorithm.initial_memory(agents), what=f"{algorithm_name(algorithm)}.initial_memory")
        params, index = self.states[group].params, Type((), jnp.int32)
        given = typed(
            lambda p, o, m, k, i: act_one(act, p, o, m, k, True, i),
            params, space_type(agents.observation), memory, self.key, index, what=_called(act),
        )  # fmt: skip
        if not isinstance(given, Act):
            raise UserError(f"{_called(act)} returns a {type(given).__name__}, expected an Act(action, memory, extras)")
        wanted = space_type(agents.action)
        real = isinstance(agents.action, Box)
        kind = jnp.floating if real and jnp.issubdtype(agents.action.dtype, jnp.floating) else jnp.integer
        if given.action.shape != wanted.shape or not jnp.issubdtype(given.action.dtype, kind):
            raise UserError(f"{_called(act)} returns actions {describe(given.action)}, expected {describe(wanted)}")
        same_types(memory, given.memory, f"{_called(act)} returns a memory")
        return given, memory

    def _given(self, group: str, function: Callable[..., Any]) -> dict[str, PyTree]:
        """The types of what a `map` function asks for by name."""
        given = {"params": self.states[group].params, "key": self.key}
        return {name: type_ for name, type_ in given.items() if asks_for(function, name)}

    def _add(self, kind: Any, group: str, inputs: tuple[Ref, ...], output: PyTree, function: Any = None,
             settings: Any = None, cuts: tuple[ColumnBlocks, ...] = (), keeps: PyTree = None) -> str:  # fmt: skip
        name = kind if len(self.spec.groups) == 1 else f"{group}/{kind}"
        taken = sum(1 for node in self.nodes if node.rstrip("0123456789") == name)
        name = f"{name}{taken + 1}" if taken else name
        self._check_crossing(group, inputs)
        replays = frozenset[str]().union(*(self.nodes[ref.node].replays for ref in inputs))
        replays = replays | {name} if kind == "replay" else replays
        cuts = () if replays else cuts
        if function is not None and self.precision != "float32":
            function = with_precision(function, self.precision)
        self.nodes[name] = Node(
            name, kind, group, inputs, output, function, settings, replays, column_blocks=cuts, keeps=keeps
        )
        for ref in inputs:
            what = "items" if kind == "replay" else self.nodes[ref.node].traits.output
            times = self._times(self.nodes[ref.node])
            self._edge(ref.node, name, what, {what: ref.type}, times)
        return name

    def _publish(self, group: str) -> None:
        """What a group has learnt goes from the last node that learns to every node that reads it."""
        *_, learner = (node for node in self.nodes.values() if node.group == group and node.traits.learns)
        state = self.states[group]
        carried = {
            "params": ("parameters", {"params": state.params}),
            "state": ("state", {"state": state}),
            "version": ("version", {"version": Type((), jnp.int32)}),
        }
        for node in self.nodes.values():
            if node.group == group and node.reads is not None:
                what, type_ = carried[node.reads]
                times = self._times(learner) if what == "state" else 1.0
                self._edge(learner.name, node.name, what, type_, times, feedback=True)

    def _edge(
        self, source: str, target: str, what: str, type_: PyTree, times: float = 1.0, feedback: bool = False
    ) -> None:
        self.edges.append(Edge(source, target, what, type_, times, feedback))

    def _times(self, node: Node) -> float:
        """How often a node runs in an iteration, on average."""
        if not node.replays:
            return 1.0
        rates = []
        for name in node.replays:
            replay = self.nodes[name]
            settings = replay.sampling
            inserted = settings.replay.count(replay.inputs[0].type) * settings.samples_per_insert
            rates.append(inserted / settings.replay.cost(settings.batch))
        return min(rates)

    def _columns(self, group: str) -> int:
        return self.envs * self.spec.groups[group].agents

    def _check_own(self, group: str, ref: Ref, called: str) -> None:
        """A replay belongs to one group."""
        other = self.nodes[ref.node].group
        if other != group:
            raise UserError(
                f"{called} of group '{group}': found a value of group '{other}', expected one of its own; make one of "
                "both by flow.map first"
            )

    def _check_crossing(self, group: str, inputs: tuple[Ref, ...]) -> None:
        """Another group's batches of a replay come when that group's do."""
        for node in (self.nodes[ref.node] for ref in inputs):
            if node.group not in ("", group) and node.replays:
                raise UserError(
                    f"a stage of group '{group}' takes '{node.name}', found a batch of a replay of group "
                    f"'{node.group}', expected what an iteration makes: join both groups' trajectories by flow.map "
                    "before replay.insert"
                )

    def _of(self, group: str) -> str:
        return "" if len(self.spec.groups) == 1 else f" for group '{group}'"


def _without(omits: Collection[str], value: dict[str, PyTree]) -> dict[str, PyTree]:
    return {name: part for name, part in value.items() if name not in omits}


def keep_state(state: PyTree, trajectory: PyTree, key: Any) -> tuple[PyTree, PyTree]:
    """The `learn` of a group that does not."""
    del trajectory, key
    return state, {}


def no_gradient(state: PyTree, trajectory: PyTree, key: Any) -> tuple[PyTree, PyTree]:
    """The `gradient` of a group that does not learn."""
    del state, trajectory, key
    return jnp.zeros((), jnp.float32), {}


def no_step(state: PyTree, grads: PyTree) -> PyTree:
    """The `apply` of a group that does not learn."""
    del grads
    return state


def _called(function: Callable[..., Any]) -> str:
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return f"{type(owner).__name__}.{name}" if owner is not None else name


def _two(result: Any, what: str, wanted: str) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2 or hasattr(result, "_fields"):
        raise UserError(f"{what} returns a {type(result).__name__}, expected two values: return `{wanted}`")
    return result
