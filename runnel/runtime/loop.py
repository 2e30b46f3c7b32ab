"""The nodes of a graph as traced functions over one explicit `Carry`.

    carry = loop.init(seed)
    carry, trajectories = loop.unroll(carry)             # only where the environment can be traced
    carry, metrics = loop.update(carry, trajectories)    # every other node, in the loop's order

Programs compose these: one compiles `unroll` and `update` together, another drives host environments in
between. Nothing here knows of processes, devices or distributions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from runnel.algorithm import act_one, asks_for
from runnel.environment import JaxEnvironment
from runnel.graph import Graph, Node
from runnel.ops import episodes as ops_episodes
from runnel.ops import random
from runnel.ops.autoreset import autoreset_step
from runnel.ops.episodes import Ended, Episodes
from runnel.types import Act, Array, PyTree, Trajectory


class Environments(NamedTuple):
    """JAX environments between two steps."""

    state: PyTree  # [E, ...]
    observation: dict[str, PyTree]  # by group: [B, ...]
    first: Array  # [E] the observation begins an episode


class Actors(NamedTuple):
    """What acting carries from unroll to unroll, by group."""

    memory: dict[str, PyTree]  # [B, ...]
    discounted_sum: dict[str, Array]  # [B]


class Buffer(NamedTuple):
    """A replay node's state."""

    items: PyTree
    inserted: Array  # [] how many items came in, counted up to `min_size`
    credit: Array  # [] how many items may be sampled before more must come in


class Carry(NamedTuple):
    """Everything that training carries from one iteration to the next."""

    seed: Array  # [] which the program does not know: one compiled program serves all seeds
    iteration: Array  # []
    updates: dict[str, Array]  # by group: []; the parameters' version
    states: dict[str, PyTree]  # by group: the learner's state
    replays: dict[str, Buffer]  # by replay node
    actors: Actors
    episodes: Episodes
    environments: Environments | tuple[()]  # () for host environments, which live outside


class Metrics(NamedTuple):
    """What an iteration has to tell, as sums that can be added up."""

    ended: Ended
    updates: dict[str, Array]  # by learning node: [] how many updates
    out: dict[str, dict[str, Array]]  # by learning node: the sums of `out`'s scalars over its updates


def scalars(out: PyTree) -> dict[str, Array]:
    """The scalar leaves of a node's `out` by name; the others are for other nodes."""
    named = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        if jnp.ndim(leaf) == 0:
            name = "/".join(str(getattr(p, "name", getattr(p, "key", getattr(p, "idx", p)))) for p in path)
            named[name or "loss"] = jnp.asarray(leaf, jnp.float32)
    return named


@dataclass(frozen=True)
class Loop:
    """A graph's nodes, ready to be traced."""

    graph: Graph
    environment: JaxEnvironment | None = None  # None where the environment lives on the host

    # Names and indices

    @property
    def groups(self) -> list[str]:
        return list(self.graph.spec.groups)

    def indices(self, group: str) -> Array:
        return jnp.arange(self.graph.columns(group), dtype=jnp.int32)

    def _node(self, kind: str, group: str) -> Node:
        return next(node for node in self.graph.nodes.values() if node.kind == kind and node.group == group)

    def _key(self, seed: Array, purpose: int, group: str) -> Array:
        return jax.random.fold_in(random.base_key(seed, purpose), self.groups.index(group))

    # The first carry

    def init(self, seed: Array) -> Carry:
        """Everything as it is before the first step."""
        algorithm, spec = self.graph.algorithm, self.graph.spec
        states = {
            group: algorithm.init(self._key(seed, random.INIT, group), spec.groups[group]) for group in self.groups
        }
        return Carry(
            seed=seed,
            iteration=jnp.zeros((), jnp.int32),
            updates={group: jnp.zeros((), jnp.int32) for group in self.groups},
            states=states,
            replays={node.name: self._empty(node) for node in self.graph.of_kind("replay")},
            actors=Actors(
                memory={group: self.initial_memory(group) for group in self.groups},
                discounted_sum={g: jnp.zeros(self.graph.columns(g)) for g in self.groups},
            ),
            episodes=ops_episodes.init(self.graph.envs, self.groups),
            environments=self._reset(seed) if self.environment is not None else (),
        )

    def initial_memory(self, group: str) -> PyTree:
        """[B, ...] the memory of every column at the start of an episode."""
        one = self.graph.algorithm.initial_memory(self.graph.spec.groups[group])
        columns = self.graph.columns(group)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (columns, *jnp.shape(x))), one)

    def _empty(self, node: Node) -> Buffer:
        settings = node.sampling
        items = settings.replay.init(node.inputs[0].type, settings.batch)
        return Buffer(items, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def _reset(self, seed: Array) -> Environments:
        assert self.environment is not None
        keys = random.reset_keys(random.base_key(seed, random.ENVIRONMENT), jnp.arange(self.graph.envs))
        state, observation = jax.vmap(self.environment.reset)(keys)
        return Environments(state, self._by_column(observation), jnp.ones(self.graph.envs, jnp.bool_))

    # Between environments and columns

    def _by_column(self, value: PyTree) -> dict[str, PyTree]:
        """An environment's values [E, ...] as each group's columns [B, ...]."""
        if len(self.groups) == 1:
            value = {self.groups[0]: value}

        def flatten(group: str) -> PyTree:
            if self.graph.spec.groups[group].agents == 1:
                return value[group]
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), value[group])

        return {group: flatten(group) for group in self.groups}

    def _by_environment(self, value: dict[str, PyTree]) -> PyTree:
        """Each group's columns [B, ...] as an environment's values [E, ...]."""

        def unflatten(group: str) -> PyTree:
            agents = self.graph.spec.groups[group].agents
            if agents == 1:
                return value[group]
            return jax.tree.map(lambda x: x.reshape(-1, agents, *x.shape[1:]), value[group])

        if len(self.groups) == 1:
            return unflatten(self.groups[0])
        return {group: unflatten(group) for group in self.groups}

    def each_column(self, per_environment: Array, group: str) -> Array:
        """[..., E] as [..., B]: what holds for an environment holds for each of its agents."""
        agents = self.graph.spec.groups[group].agents
        return per_environment if agents == 1 else jnp.repeat(per_environment, agents, axis=-1)

    # Acting

    def act(
        self, group: str, params: PyTree, observation: PyTree, memory: PyTree, first: Array, keys: Array,
        indices: Array, explore: bool = True,
    ) -> Act:  # fmt: skip
        """Acts in the columns of these indices at once, from a fresh memory where an episode begins."""
        function = self._node("act", group).function

        def one(observation: PyTree, memory: PyTree, key: Array, index: Array) -> Act:
            return act_one(function, params, observation, memory, key, explore, index)

        return jax.vmap(one)(observation, self._begun(group, memory, first), keys, indices)

    def _begun(self, group: str, memory: PyTree, first: Array) -> PyTree:
        """[B, ...] the memory to act from: that of an episode's start where one begins."""
        fresh = self.graph.algorithm.initial_memory(self.graph.spec.groups[group])

        def pick(new: Array, old: Array) -> Array:
            return jnp.where(first.reshape(-1, *([1] * (old.ndim - 1))), new, old)

        return jax.tree.map(pick, fresh, memory)

    def act_keys(self, seed: Array, group: str, step: Array) -> Array:
        """[B] the keys of acting at one step."""
        return random.column_keys(self._key(seed, random.ACT, group), step, self.indices(group))

    def unroll(self, carry: Carry, chunk: int = 1) -> tuple[Carry, dict[str, Trajectory]]:
        """Steps traced environments for one unroll; gives a trajectory for each group.

        `chunk` steps, a divisor of the unroll, are compiled side by side.
        """
        environment, environments = self.environment, carry.environments
        assert environment is not None
        assert isinstance(environments, Environments)
        environment_key = random.base_key(carry.seed, random.ENVIRONMENT)
        numbers = jnp.arange(self.graph.envs, dtype=jnp.int32)

        def step(now: tuple[Environments, dict[str, PyTree]], given: tuple[Any, Array, Any]) -> tuple[Any, Any]:
            (state, observation, first), memory = now
            act_keys, step_keys, fresh = given
            acts = {}
            for group in self.groups:
                params = carry.states[group].params
                began = self.each_column(first, group)
                acts[group] = self.act(
                    group, params, observation[group], memory[group], began, act_keys[group], self.indices(group)
                )
            actions = self._by_environment({group: act.action for group, act in acts.items()})
            state, after, timestep = jax.vmap(partial(autoreset_step, environment))(state, actions, step_keys, fresh)
            terminated = timestep.terminated
            truncated = timestep.truncated & ~terminated
            seen = (
                observation,
                {group: act.action for group, act in acts.items()},
                {group: act.extras for group, act in acts.items()},
                jax.tree.map(lambda r: jnp.asarray(r, jnp.result_type(float)), self._by_column(timestep.reward)),
                (terminated, truncated, first),
                self._by_column(timestep.observation),
            )
            after_step = Environments(state, self._by_column(after), terminated | truncated)
            return (after_step, {group: act.memory for group, act in acts.items()}), seen

        def chunk_of_steps(now: Any, steps: Array) -> tuple[Any, Any]:
            # Keys and resets wait for nothing: they are made for all steps at once, in few kernels. A loop on a GPU
            # is bound by how many kernels a step launches, not by how much they do.
            act_keys = {group: jax.vmap(partial(self.act_keys, carry.seed, group))(steps) for group in self.groups}
            keys = jax.vmap(lambda t: random.environment_keys(environment_key, t, numbers))(steps)  # [chunk, E, 2]
            fresh = jax.vmap(jax.vmap(environment.reset))(keys[..., 1])
            return jax.lax.scan(step, now, (act_keys, keys[..., 0], fresh), unroll=chunk)

        steps = carry.iteration * self.graph.unroll + jnp.arange(self.graph.unroll, dtype=jnp.int32)
        now = (environments, carry.actors.memory)
        (environments, memory), seen = jax.lax.scan(chunk_of_steps, now, steps.reshape(-1, chunk))
        seen = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), seen)
        observation, action, extras, reward, (terminated, truncated, first), last_observation = seen
        trajectories = {
            group: self.trajectory(
                carry, group, observation[group], action[group], extras[group], reward[group], terminated,
                truncated, last_observation[group], first,
            )
            for group in self.groups
        }  # fmt: skip
        actors = carry.actors._replace(memory=memory)
        return carry._replace(environments=environments, actors=actors), trajectories

    def trajectory(
        self, carry: Carry, group: str, observation: PyTree, action: Array, extras: PyTree, reward: Array,
        terminated: Array, truncated: Array, last_observation: PyTree, first: Array,
    ) -> Trajectory:  # fmt: skip
        """Puts together what an unroll saw; ends and beginnings are [T, E]."""
        began = self.each_column(first, group)
        columns = self.graph.columns(group)
        return Trajectory(
            observation=observation,
            action=action,
            reward=reward,
            terminated=self.each_column(terminated, group),
            truncated=self.each_column(truncated, group),
            last_observation=last_observation,
            first=began,
            memory=self._begun(group, carry.actors.memory[group], began[0]),
            extras=extras,
            discounted_sum=carry.actors.discounted_sum[group],
            version=jnp.broadcast_to(carry.updates[group], (columns,)),
            index=self.indices(group),
        )

    # Everything after the rollout

    def update(self, carry: Carry, trajectories: dict[str, Trajectory]) -> tuple[Carry, Metrics]:
        """Runs every node but acting and the environment, in order: once, or once for each replayed batch."""
        carry, ended = self._count(carry, trajectories)
        values = {self._node("rollout", group).name: trajectory for group, trajectory in trajectories.items()}
        metrics = Metrics(ended, {}, {})
        after = [n for n in self.graph.nodes.values() if n.kind not in ("environment", "act", "rollout")]
        for node in after:
            if node.kind == "replay":
                carry = self._insert(carry, node, node.inputs[0].take(values[node.inputs[0].node]))
            elif not node.loops:
                carry, values[node.name], learnt = self._run(carry, node, values)
                metrics = _noted(metrics, learnt, 1)
        for loops in dict.fromkeys(node.loops for node in after if node.loops):
            carry, metrics = self._replayed(
                carry, sorted(loops), [n for n in after if n.loops == loops], values, metrics
            )
        return carry._replace(iteration=carry.iteration + 1), metrics

    def _count(self, carry: Carry, trajectories: dict[str, Trajectory]) -> tuple[Carry, Ended]:
        """Episode statistics and discounted sums, from rewards and ends."""
        rewards, sums = {}, dict(carry.actors.discounted_sum)
        done = jnp.zeros((), jnp.bool_)
        for group, trajectory in trajectories.items():
            agents = self.graph.spec.groups[group].agents
            ends = trajectory.terminated | trajectory.truncated
            steps = ends.shape[0]
            reward = trajectory.reward.astype(jnp.float32)
            rewards[group] = reward.reshape(steps, self.graph.envs, agents).mean(-1)
            done = ends.reshape(steps, self.graph.envs, agents)[..., 0]
            discount = self._node("rollout", group).rollout.discount
            if discount is not None:
                before = carry.actors.discounted_sum[group]
                sums[group] = ops_episodes.discounted_sum(before, trajectory.reward, ends, discount)
        counted, ended = ops_episodes.count(carry.episodes, rewards, done)
        return carry._replace(episodes=counted, actors=carry.actors._replace(discounted_sum=sums)), ended

    def _run(self, carry: Carry, node: Node, values: dict[str, PyTree]) -> tuple[Carry, PyTree, dict[str, PyTree]]:
        """One node once: the carry after it, its value and, where it learns, its `out` by name."""
        group, inputs = node.group, [ref.take(values[ref.node]) for ref in node.inputs]
        state, version = carry.states[group], carry.updates[group]
        assert node.function is not None
        if node.kind == "map":
            position = list(self.graph.nodes).index(node.name)
            key = jax.random.fold_in(
                jax.random.fold_in(self._key(carry.seed, random.MAP, group), carry.iteration), position
            )
            given = {"params": state.params, "key": jax.random.fold_in(key, version)}
            named = {name: value for name, value in given.items() if asks_for(node.function, name)}
            return carry, node.function(*inputs, **named), {}
        key = jax.random.fold_in(self._key(carry.seed, random.LEARN, group), version)
        if node.kind == "gradient":
            grads, out = node.function(state, *inputs, key)
            return carry, {"grads": grads, "out": out}, {node.name: out}
        if node.kind == "apply":
            state, value, learnt = node.function(state, *inputs), (), {}
        else:
            state, value = node.function(state, *inputs, key)
            learnt = {node.name: value}
        states = {**carry.states, group: state}
        return carry._replace(states=states, updates={**carry.updates, group: version + 1}), value, learnt

    def _insert(self, carry: Carry, node: Node, items: PyTree) -> Carry:
        """Adds items to a replay, and the right to sample them `samples_per_insert` times each."""
        settings, buffer = node.sampling, carry.replays[node.name]
        inserted = jnp.minimum(buffer.inserted + settings.replay.count(items), 2 * settings.min_size + 2**20)
        fresh = inserted - jnp.maximum(buffer.inserted, settings.min_size)
        buffer = Buffer(
            items=settings.replay.add(buffer.items, items, settings.batch),
            inserted=jnp.minimum(inserted, settings.min_size),
            credit=buffer.credit + jnp.maximum(fresh, 0) * jnp.float32(settings.samples_per_insert),
        )
        return carry._replace(replays={**carry.replays, node.name: buffer})

    def _replayed(
        self,
        carry: Carry,
        replays: list[str],
        nodes: list[Node],
        outside: dict[str, PyTree],
        metrics: Metrics,
    ) -> tuple[Carry, Metrics]:
        """Runs nodes once for each batch that the replays may give."""
        sampled = [node for node in nodes if node.kind == "replay"]
        others = [node for node in nodes if node.kind != "replay"]

        def may_sample(now: tuple[Carry, Any]) -> Array:
            carry, _ = now
            enough = [
                carry.replays[name].credit
                >= self.graph.nodes[name].sampling.replay.cost(self.graph.nodes[name].sampling.batch)
                for name in replays
            ]
            return jnp.stack(enough).all()

        def once(carry: Carry) -> tuple[Carry, dict[str, dict[str, Array]]]:
            values, learnt = dict(outside), {}
            for node in sampled:
                settings, buffer = node.sampling, carry.replays[node.name]
                key = jax.random.fold_in(self._key(carry.seed, random.SAMPLE, node.group), carry.updates[node.group])
                values[node.name] = settings.replay.sample(buffer.items, key, settings.batch)
                buffer = buffer._replace(credit=buffer.credit - settings.replay.cost(settings.batch))
                carry = carry._replace(replays={**carry.replays, node.name: buffer})
            for node in others:
                carry, values[node.name], outs = self._run(carry, node, values)
                learnt.update({name: scalars(out) for name, out in outs.items()})
            for node in sampled:
                if node.priorities is not None:
                    settings, buffer = node.sampling, carry.replays[node.name]
                    priorities = node.priorities.take(values[node.priorities.node])
                    items = settings.replay.update(buffer.items, values[node.name], priorities, settings.batch)  # type: ignore[union-attr]
                    carry = carry._replace(replays={**carry.replays, node.name: buffer._replace(items=items)})
            return carry, learnt

        def body(now: tuple[Carry, Any]) -> tuple[Carry, Any]:
            carry, (times, sums) = now
            carry, learnt = once(carry)
            return carry, (times + 1, jax.tree.map(jnp.add, sums, learnt))

        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(once, carry)[1])
        carry, (times, sums) = jax.lax.while_loop(may_sample, body, (carry, (jnp.zeros((), jnp.int32), empty)))
        updates = {**metrics.updates, **dict.fromkeys(sums, times)}
        return carry, metrics._replace(updates=updates, out={**metrics.out, **sums})


def _noted(metrics: Metrics, learnt: dict[str, PyTree], times: int) -> Metrics:
    """Metrics with the scalars of what was just learnt."""
    updates = {**metrics.updates, **{name: jnp.int32(times) for name in learnt}}
    return metrics._replace(
        updates=updates, out={**metrics.out, **{name: scalars(out) for name, out in learnt.items()}}
    )
