"""Stepping environments and acting as traced functions over one explicit `Carry`.

    carry = loop.init(seed)
    carry, trajectories, finished = loop.unroll(carry)      # only where the environment can be traced
    carry, metrics = stage.iterate(carry, trajectories, finished)      # every other node: see `stage.py`

A loop steps a `share` of the environments: all of them, or one worker's. Programs compose these functions; nothing
here knows of processes, devices or distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runnel.algorithm import act_one, first_state
from runnel.environment import JaxEnvironment
from runnel.graph.kinds import NodeKind
from runnel.graph.nodes import Graph, Node
from runnel.ops import env_metrics, random
from runnel.ops import episodes as ops_episodes
from runnel.ops.autoreset import autoreset_step, reset_of
from runnel.ops.episodes import Finished
from runnel.ops.scatters import suited_to_device
from runnel.runtime.programs.carry import ActorStates, Carry, EnvStates, ReplayState
from runnel.types import Act, Array, PyTree, Trajectory


def group_key(graph: Graph, seed: Array, purpose: int, group: str) -> Array:
    """The root of one purpose's keys for one group of agents."""
    return jax.random.fold_in(random.base_key(seed, purpose), list(graph.spec.groups).index(group))


@dataclass(frozen=True)
class Loop:
    """A graph's environments and actors, ready to be traced.

    It is one class because its functions share a graph and a share of its environments, by which columns are counted
    and keys are drawn; it has no state.
    """

    graph: Graph
    environment: JaxEnvironment | None = None  # None where the environment lives on the host
    share: Sequence[int] | None = None  # the environments it steps, in order; None: all

    # Names and indices

    @property
    def groups(self) -> list[str]:
        return list(self.graph.spec.groups)

    @property
    def envs(self) -> Sequence[int]:
        return self.share if self.share is not None else range(self.graph.envs)

    def columns(self, group: str) -> int:
        """B: how many columns of the group this loop steps."""
        return len(self.envs) * self.graph.spec.groups[group].agents

    def indices(self, group: str) -> Array:
        """[B] the columns' indices in the whole run."""
        agents = self.graph.spec.groups[group].agents
        return (self._numbers()[:, None] * agents + jnp.arange(agents, dtype=jnp.int32)).reshape(-1)

    def node(self, kind: NodeKind, group: str) -> Node:
        return self.graph.only(kind, group)

    # The first carry

    def init(self, seed: Array) -> Carry:
        """Everything as it is before the first step."""
        return self.init_but_replays(seed)._replace(replays=self.empty_replays())

    def init_but_replays(self, seed: Array) -> Carry:
        return Carry(
            seed=seed,
            iteration=jnp.zeros((), jnp.int32),
            updates={group: jnp.zeros((), jnp.int32) for group in self.groups},
            states={group: self.init_state(seed, group) for group in self.groups},
            replays={},
            window=ops_episodes.empty_window(self.graph.learning_groups),
            actors=ActorStates(
                memory={group: self.initial_memory(group) for group in self.groups},
                discounted_sum={group: jnp.zeros(self.columns(group)) for group in self.groups},
            ),
            running=ops_episodes.begin(len(self.envs), self.groups),
            environments=self.reset(seed) if self.environment is not None else (),
        )

    def init_state(self, seed: Array, group: str) -> PyTree:
        """The learner's first state."""
        key = group_key(self.graph, seed, random.INIT, group)
        return first_state(self.graph.algorithm.for_group(group), key, self.graph.spec.groups[group], group)

    def initial_memory(self, group: str) -> PyTree:
        """[B, ...] the memory of every column at the start of an episode."""
        one = self.graph.algorithm.for_group(group).initial_memory(self.graph.spec.groups[group])
        columns = self.columns(group)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (columns, *jnp.shape(x))), one)

    def empty_replays(self) -> dict[str, ReplayState]:
        replays = [node for node in self.graph.nodes.values() if node.traits.draws_batches]
        return {node.name: self.empty_replay(node) for node in replays}

    def empty_replay(self, node: Node) -> ReplayState:
        settings = node.sampling
        items = settings.replay.init(node.inputs[0].type, settings.batch)
        return ReplayState(items, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def reset(self, seed: Array) -> EnvStates:
        assert self.environment is not None
        numbers = self._numbers()
        keys = random.reset_keys(random.base_key(seed, random.ENVIRONMENT), numbers)
        state, observation = jax.vmap(reset_of(self.environment))(keys, numbers)
        return EnvStates(state, self.by_column(observation), jnp.ones(len(self.envs), jnp.bool_))

    def _numbers(self) -> Array:
        """[E] the environments' indices in the whole run."""
        return jnp.asarray(np.asarray(self.envs, np.int32))

    # Between environments and columns

    def by_column(self, value: PyTree) -> dict[str, PyTree]:
        """An environment's values [E, ...] as each group's columns [B, ...]."""
        if len(self.groups) == 1:
            value = {self.groups[0]: value}

        def flatten(group: str) -> PyTree:
            if self.graph.spec.groups[group].agents == 1:
                return value[group]
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), value[group])

        return {group: flatten(group) for group in self.groups}

    def environment_actions(self, value: dict[str, PyTree]) -> PyTree:
        """Each group's actions [B, ...] as the environments take them, [E, ...]."""

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

    def own_returns(self, group: str, returns: Array, envs: Array) -> Array:
        """[T, E] returns of the environments of these indices [E]: NaN where the group does not play."""
        plays = self.graph.spec.groups[group].plays
        return jnp.where(jnp.asarray(plays)[envs % len(plays)], returns, jnp.nan) if not all(plays) else returns

    # Acting

    def act(
        self, group: str, params: PyTree, observation: PyTree, memory: PyTree, first: Array, keys: Array,
        indices: Array, explore: bool = True,
    ) -> Act:  # fmt: skip
        """Acts in the columns of these indices at once, from a fresh memory where an episode begins."""
        function = self.node("act", group).function

        def one(observation: PyTree, memory: PyTree, key: Array, index: Array, environment_key: Array) -> Act:
            return act_one(function, params, observation, memory, key, explore, index, environment_key)

        # Columns are those of whole environments: their first agents' keys stand for the environments.
        agents = self.graph.spec.groups[group].agents
        environment_keys = keys if agents == 1 else keys[jnp.arange(keys.shape[0]) // agents * agents]
        return jax.vmap(one)(observation, self.begun(group, memory, first), keys, indices, environment_keys)

    def begun(self, group: str, memory: PyTree, first: Array) -> PyTree:
        """[B, ...] the memory to act from: that of an episode's start where one begins."""
        fresh = self.graph.algorithm.for_group(group).initial_memory(self.graph.spec.groups[group])

        def pick(new: Array, old: Array) -> Array:
            return jnp.where(first.reshape(-1, *([1] * (old.ndim - 1))), new, old)

        return jax.tree.map(pick, fresh, memory)

    def act_keys(self, seed: Array, group: str, step: Array) -> Array:
        """[B] the keys of acting at one step."""
        return random.column_keys(group_key(self.graph, seed, random.ACT, group), step, self.indices(group))

    def unroll(self, carry: Carry, chunk: int = 1) -> tuple[Carry, dict[str, Trajectory], Finished]:
        """Steps traced environments for one unroll; returns a trajectory for each group, and the episodes that ended.

        `chunk` steps, a divisor of the unroll, are compiled side by side. It is one function because it is one scan:
        the functions inside are what the scan repeats, and see what it begins with.
        """
        environment, environments = self.environment, carry.environments
        assert environment is not None
        assert isinstance(environments, EnvStates)
        assert isinstance(carry.actors, ActorStates)
        environment_key = random.base_key(carry.seed, random.ENVIRONMENT)
        numbers = self._numbers()

        def step(now: tuple[EnvStates, dict[str, PyTree]], given: tuple[Any, Array, Any]) -> tuple[Any, Any]:
            (state, observation, first), memory = now
            act_keys, step_keys, fresh = given
            acts = {}
            for group in self.groups:
                params = carry.states[group].params
                began = self.each_column(first, group)
                acts[group] = self.act(
                    group, params, observation[group], memory[group], began, act_keys[group], self.indices(group)
                )
            actions = self.environment_actions({group: act.action for group, act in acts.items()})
            state, after, timestep = jax.vmap(partial(autoreset_step, environment))(state, actions, step_keys, fresh)
            terminated = timestep.terminated
            truncated = timestep.truncated & ~terminated
            seen = (
                self._kept("observation", observation),
                self._kept("action", {group: act.action for group, act in acts.items()}),
                self._kept("extras", {group: act.extras for group, act in acts.items()}),
                jax.tree.map(lambda r: jnp.asarray(r, jnp.result_type(float)), self.by_column(timestep.reward)),
                (terminated, truncated, first),
                self._kept("last_observation", self.by_column(timestep.observation)),
                env_metrics.named(timestep.metrics),
            )
            after_step = EnvStates(state, self.by_column(after), terminated | truncated)
            return (after_step, {group: act.memory for group, act in acts.items()}), seen

        def chunk_of_steps(now: Any, steps: Array) -> tuple[Any, Any]:
            # Keys and resets wait for nothing: they are made for all steps at once, in few kernels. A loop on a GPU
            # is bound by how many kernels a step launches, not by how much they do.
            act_keys = {group: jax.vmap(partial(self.act_keys, carry.seed, group))(steps) for group in self.groups}
            keys = jax.vmap(lambda t: random.environment_keys(environment_key, t, numbers))(steps)  # [chunk, E, 2]
            begin = jax.vmap(suited_to_device(reset_of(environment)))
            fresh = jax.vmap(begin, in_axes=(0, None))(keys[..., 1], numbers)
            return jax.lax.scan(step, now, (act_keys, keys[..., 0], fresh), unroll=chunk)

        steps = carry.iteration * self.graph.unroll + jnp.arange(self.graph.unroll, dtype=jnp.int32)
        now = (environments, carry.actors.memory)
        (environments, memory), seen = jax.lax.scan(chunk_of_steps, now, steps.reshape(-1, chunk))
        seen = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), seen)
        observation, action, extras, reward, (terminated, truncated, first), last_observation, metrics = seen
        trajectories = {
            group: self.trajectory(
                group, carry.actors.memory[group], carry.actors.discounted_sum[group],
                jnp.broadcast_to(carry.updates[group], (self.columns(group),)), self.indices(group),
                observation[group], action[group], extras[group], reward[group], terminated, truncated,
                last_observation[group], first,
            )
            for group in self.groups
        }  # fmt: skip
        carry = carry._replace(environments=environments, actors=carry.actors._replace(memory=memory))
        ended = terminated | truncated
        carry, finished = self._count(carry, reward, ended)
        return carry, trajectories, finished._replace(env=env_metrics.summed(metrics, ended))

    def trajectory(
        self, group: str, memory: PyTree, discounted_sum: Array, version: Array, index: Array, observation: PyTree,
        action: Array, extras: PyTree, reward: Array, terminated: Array, truncated: Array, last_observation: PyTree,
        first: Array,
    ) -> Trajectory:  # fmt: skip
        """Puts together what an unroll saw; ends and beginnings are [T, E], memory is that before the first step.

        Its parameters are one list because they are the fields of a `Trajectory`, before columns have an index.
        """
        omits = self.node("rollout", group).rollout.omits
        began: Any = () if "first" in omits else self.each_column(first, group)
        whole = Trajectory(
            observation=observation,
            action=action,
            reward=reward,
            terminated=() if "terminated" in omits else self.each_column(terminated, group),
            truncated=() if "truncated" in omits else self.each_column(truncated, group),
            last_observation=last_observation,
            first=began,
            memory=() if "memory" in omits else self.begun(group, memory, began[0]),
            extras=extras,
            discounted_sum=discounted_sum,
            version=version,
            index=index,
        )
        return whole._replace(**dict.fromkeys(omits, ()))

    def _kept(self, field: str, by_group: dict[str, PyTree]) -> dict[str, PyTree]:
        """Without the groups whose trajectories omit a field: `()` there."""
        return {
            group: () if field in self.node("rollout", group).rollout.omits else value
            for group, value in by_group.items()
        }

    def _count(self, carry: Carry, reward: dict[str, Array], done: Array) -> tuple[Carry, Finished]:
        """Episodes and discounted sums, from rewards [T, B] and ends [T, E]."""
        assert isinstance(carry.actors, ActorStates)
        sums, means = dict(carry.actors.discounted_sum), {}
        for group, r_t in reward.items():
            agents = self.graph.spec.groups[group].agents
            means[group] = r_t.astype(jnp.float32).reshape(*done.shape, agents).mean(-1)
            discount = self.node("rollout", group).rollout.discount
            if discount is not None:
                sums[group] = ops_episodes.discounted_sum(sums[group], r_t, self.each_column(done, group), discount)
        running, finished = ops_episodes.count(carry.running, means, done)  # type: ignore[arg-type]
        own = {group: self.own_returns(group, each, self._numbers()) for group, each in finished.returns.items()}
        finished = finished._replace(returns=own)
        return carry._replace(running=running, actors=carry.actors._replace(discounted_sum=sums)), finished
