"""Every node after the rollout, as traced functions over one explicit `Carry`.

A stage holds the nodes of one fragment. Where that is all of them, `iterate` runs an iteration in one go; where
the graph is cut, a worker calls the parts in between (`runnel.runtime.workers.trainer`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from runnel.algorithm import algorithm_name, asks_for
from runnel.graph.nodes import Graph, Node
from runnel.ops import episodes as ops_episodes
from runnel.ops import random
from runnel.ops.episodes import Finished
from runnel.replay import PrioritisedReplay
from runnel.runtime.programs import finite
from runnel.runtime.programs.carry import Carry, IterationMetrics, ReplayState, noted, update
from runnel.runtime.programs.loop import group_key
from runnel.types import Array, PyTree, Trajectory

Values = dict[str, PyTree]
"""What nodes returned, by name."""


@dataclass(frozen=True)
class Component:
    """Replays and the nodes that run once for each of their batches."""

    replays: tuple[Node, ...]
    nodes: tuple[Node, ...]  # without the replays, in the loop's order

    @property
    def names(self) -> frozenset[str]:
        return frozenset(node.name for node in (*self.replays, *self.nodes))


def components(graph: Graph) -> list[Component]:
    """Replays that feed common nodes belong together."""
    groups: list[set[str]] = []
    for node in graph.after_rollout():
        if node.replays:
            touched = [group for group in groups if group & node.replays]
            merged = set(node.replays).union(*touched)
            groups = [group for group in groups if group not in touched] + [merged]
    found = []
    for group in groups:
        members = [node for node in graph.after_rollout() if node.replays and node.replays <= group]
        replays = tuple(node for node in members if node.traits.draws_batches)
        found.append(Component(replays, tuple(node for node in members if not node.traits.draws_batches)))
    return found


class Stage:
    """A fragment's nodes after the rollout, ready to be traced."""

    def __init__(self, graph: Graph, names: Iterable[str] | None = None, key_offset: int = 0):
        self.graph = graph
        held = set(graph.nodes) if names is None else set(names)
        self.nodes = [node for node in graph.after_rollout() if node.name in held]
        self.components = components(graph)
        self.key_offset = key_offset  # workers that learn from a share each draw numbers of their own

    def iterate(
        self, carry: Carry, trajectories: dict[str, Trajectory], finished: Finished
    ) -> tuple[Carry, IterationMetrics]:
        """One iteration of a stage that holds all nodes."""
        rollouts = {node.group: node.name for node in self.graph.of_kind("rollout")}
        values: Values = {rollouts[group]: trajectory for group, trajectory in trajectories.items()}
        carry, metrics = self.count(carry, finished)
        carry, values, metrics = self.run(
            carry, [n for n in self.nodes if not n.replays or n.traits.draws_batches], values, metrics
        )
        for component in self.components:
            carry, metrics = self.replayed(carry, component, values, metrics)
        return carry._replace(iteration=carry.iteration + 1), metrics

    def count(self, carry: Carry, finished: Finished) -> tuple[Carry, IterationMetrics]:
        """Takes note of the episodes that ended."""
        window, ended = ops_episodes.push(carry.window, finished)  # type: ignore[arg-type]
        return carry._replace(window=window), IterationMetrics(ended, {}, {}, env=finished.env)

    def run(
        self, carry: Carry, nodes: Sequence[Node], values: Values, metrics: IterationMetrics
    ) -> tuple[Carry, Values, IterationMetrics]:
        """Runs nodes once, in order; a replay takes in what is inserted."""
        values = dict(values)
        for node in nodes:
            if node.traits.draws_batches:
                carry = self._insert(carry, node, node.inputs[0].take(values[node.inputs[0].node]))
            else:
                carry, values[node.name], learnt = self._run(carry, node, values)
                metrics = noted(metrics, learnt)
        return carry, values, metrics

    def _run(self, carry: Carry, node: Node, values: Values) -> tuple[Carry, PyTree, IterationMetrics]:
        """Runs one node once: the carry after it, its value and, where it learns, its metrics."""
        group, inputs = node.group, [ref.take(values[ref.node]) for ref in node.inputs]
        state, version = carry.states[group], carry.updates[group]
        assert node.function is not None
        if node.kind == "map":
            position = list(self.graph.nodes).index(node.name)
            key = jax.random.fold_in(self._key(carry.seed, random.MAP, group), carry.iteration)
            given = {"params": state.params, "key": jax.random.fold_in(jax.random.fold_in(key, position), version)}
            named = {name: value for name, value in given.items() if asks_for(node.function, name)}
            return carry, node.function(*inputs, **named), _nothing()
        key = jax.random.fold_in(self._key(carry.seed, random.LEARN, group), version)
        if node.kind == "gradient":
            value, learnt = self._gradient(node, state, inputs, key)
            return carry, value, learnt
        if node.kind == "apply":
            state, learnt = self._apply(node, state, inputs)
            value = ()
        else:
            state, value, learnt = self._learn(node, state, inputs, key)
        states = {**carry.states, group: state}
        # Refused or not: the next update draws other numbers.
        return carry._replace(states=states, updates={**carry.updates, group: version + 1}), value, learnt

    def _learn(
        self, node: Node, state: PyTree, inputs: list[PyTree], key: Array
    ) -> tuple[PyTree, PyTree, IterationMetrics]:
        """An update; the state stays as it is where anything that the update returns is not finite."""
        assert node.function is not None
        new, out = node.function(state, *inputs, key)
        made = [*finite.leaves(out, "", scalars_only=True), *finite.leaves(new, "", before=state)]
        seen = finite.inputs(self.graph, node, inputs)
        state, fine, tally = finite.guard(self._called(node), seen, made, new, instead=state)
        return state, out, update(node.name, out, fine, tally)

    def _gradient(self, node: Node, state: PyTree, inputs: list[PyTree], key: Array) -> tuple[PyTree, IterationMetrics]:
        """The first half of an update; where it is not finite, all gradients become NaN, and `apply` refuses them."""
        assert node.function is not None
        grads, out = node.function(state, *inputs, key)
        made = [*finite.leaves(out, "", scalars_only=True), *finite.leaves(grads, "gradients")]
        seen = finite.inputs(self.graph, node, inputs)
        grads, fine, tally = finite.guard(self._called(node), seen, made, grads, instead=finite.spoilt(grads))
        return {"grads": grads, "out": out}, update(node.name, out, fine, tally)

    def _apply(self, node: Node, state: PyTree, inputs: list[PyTree]) -> tuple[PyTree, IterationMetrics]:
        """The second half; gradients that are not finite were counted where they were made."""
        assert node.function is not None
        new = node.function(state, *inputs)
        made, seen = finite.leaves(new, "", before=state), finite.inputs(self.graph, node, inputs)
        state, _, tally = finite.guard(self._called(node), seen, made, new, instead=state, blame_seen=False)
        return state, _nothing()._replace(broken={node.name: tally})

    def _called(self, node: Node) -> str:
        return f"{algorithm_name(self.graph.algorithm.for_group(node.group)).lower()}'s {node.name}"

    def _key(self, seed: Array, purpose: int, group: str) -> Array:
        key = group_key(self.graph, seed, purpose, group)
        return jax.random.fold_in(key, self.key_offset) if self.key_offset else key

    # Replays

    def _insert(self, carry: Carry, node: Node, items: PyTree) -> Carry:
        """Adds items to a replay, and the right to sample them `samples_per_insert` times each."""
        settings, buffer = node.sampling, carry.replays[node.name]
        inserted = jnp.minimum(buffer.inserted + settings.replay.count(items), 2 * settings.min_size + 2**20)
        fresh = inserted - jnp.maximum(buffer.inserted, settings.min_size)
        buffer = ReplayState(
            items=settings.replay.add(buffer.items, items, settings.batch),
            inserted=jnp.minimum(inserted, settings.min_size),
            credit=buffer.credit + jnp.maximum(fresh, 0) * jnp.float32(settings.samples_per_insert),
        )
        return carry._replace(replays={**carry.replays, node.name: buffer})

    def sample(self, carry: Carry, component: Component) -> tuple[Carry, Values]:
        """A batch of each replay."""
        values = {}
        for node in component.replays:
            settings, buffer = node.sampling, carry.replays[node.name]
            key = jax.random.fold_in(self._key(carry.seed, random.SAMPLE, node.group), carry.updates[node.group])
            values[node.name] = settings.replay.sample(buffer.items, key, settings.batch)
            buffer = buffer._replace(credit=buffer.credit - settings.replay.cost(settings.batch))
            carry = carry._replace(replays={**carry.replays, node.name: buffer})
        return carry, values

    def prioritise(self, carry: Carry, component: Component, values: Values) -> Carry:
        """Sets the priorities of the batches just learnt from."""
        for node in component.replays:
            if node.priorities is not None:
                settings, buffer = node.sampling, carry.replays[node.name]
                assert isinstance(settings.replay, PrioritisedReplay)
                priorities = node.priorities.take(values[node.priorities.node])
                items = settings.replay.update(buffer.items, values[node.name], priorities, settings.batch)
                carry = carry._replace(replays={**carry.replays, node.name: buffer._replace(items=items)})
        return carry

    def replayed(
        self, carry: Carry, component: Component, outside: Values, metrics: IterationMetrics
    ) -> tuple[Carry, IterationMetrics]:
        """Runs a component once for each batch that its replays may yield."""

        def may_sample(now: tuple[Carry, Any]) -> Array:
            carry, _ = now
            costs = {node.name: node.sampling.replay.cost(node.sampling.batch) for node in component.replays}
            return jnp.stack([carry.replays[name].credit >= cost for name, cost in costs.items()]).all()

        def once(carry: Carry) -> tuple[Carry, IterationMetrics]:
            carry, sampled = self.sample(carry, component)
            values, learnt = {**outside, **sampled}, _nothing()
            for node in component.nodes:
                carry, values[node.name], more = self._run(carry, node, values)
                learnt = noted(learnt, more)
            return self.prioritise(carry, component, values), learnt

        def body(now: tuple[Carry, IterationMetrics]) -> tuple[Carry, IterationMetrics]:
            carry, sums = now
            carry, learnt = once(carry)
            return carry, jax.tree.map(jnp.add, sums, learnt)

        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(once, carry)[1])
        carry, sums = jax.lax.while_loop(may_sample, body, (carry, empty))
        return carry, noted(metrics, sums)


def _nothing() -> IterationMetrics:
    """The metrics of a node that does not learn."""
    return IterationMetrics(jnp.zeros((), jnp.int32), {}, {})
