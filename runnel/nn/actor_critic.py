"""A policy and its value function, with or without memory.

An `ActorCritic` is a pytree: its parameters are the leaves, and the networks that apply them are part of its structure,
so that `act` and `learn` use it without the spaces.

    actor_critic = ActorCritic.create(key, network, head_for(spec.action), zeros(spec.observation))
    distribution, value, memory = actor_critic.step(observation, memory)

An observation may be parted (`runnel.observations`): the networks receive the part that the agent sees, and actions
that its mask forbids are never drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from runnel.nn import networks
from runnel.nn.cores import Core
from runnel.nn.heads import ActionDistribution, Head
from runnel.nn.networks import dense, widened
from runnel.observations import view
from runnel.ops.hardware import launch_bound, plain
from runnel.types import Array, PyTree


class Prediction(NamedTuple):
    """The output of an `ActorCritic` for one step, or for `[T]` steps."""

    distribution: Any  # over what the policy draws
    value: Array  # [] of the observation
    memory: PyTree  # after the observation


class Trunk(NamedTuple):
    """Parameters between an observation and the two heads."""

    network: PyTree
    core: Any  # of its `Core`; () where there is no memory


class ActorCritic(struct.PyTreeNode):
    """Parameters of a policy and its value, and how to apply them.

    With `towers` the policy and the value each have a trunk of their own, of one kind; their parameters and
    memories are stacked, `[2, ...]`.
    """

    trunk: Trunk
    policy: PyTree
    critic: PyTree
    network: Any = struct.field(pytree_node=False)
    head: Head = struct.field(pytree_node=False)
    core: Core | None = struct.field(pytree_node=False)
    towers: bool = struct.field(pytree_node=False)

    @classmethod
    def create(
        cls, key: Array, network: Any, head: Head, observation: PyTree, core: Core | None = None, towers: bool = True
    ) -> ActorCritic:
        trunk_key, policy_key, critic_key = jax.random.split(key, 3)
        seen = view(observation).seen

        def init_trunk(key: Array) -> tuple[Trunk, Array]:
            network_key, core_key = jax.random.split(key)
            params = network.init(network_key, seen)
            features = network.apply(params, seen)
            if core is None:
                return Trunk(params, ()), features
            return Trunk(params, core.init(core_key, features)), core.output(core.initial_memory())

        if towers:
            trunk, features = jax.vmap(init_trunk)(jax.random.split(trunk_key))
            features = features[0]
        else:
            trunk, features = init_trunk(trunk_key)
        policy, critic = head.init(policy_key, features), dense(1, scale=1.0, last=True).init(critic_key, features)
        return cls(trunk, policy, critic, network, head, core, towers)

    def step(self, observation: PyTree, memory: PyTree) -> Prediction:
        """Evaluates one observation, given the memory of those before it."""
        seen, legal, *_ = view(observation)

        def one(trunk: Trunk, memory: PyTree) -> tuple[Array, PyTree]:
            features = self.network.apply(trunk.network, seen)
            if self.core is None:
                return features, ()
            memory = self.core.step(trunk.core, memory, features)
            return self.core.output(memory), memory

        joint = self.towers and not plain()
        features, memory = self._each(one, memory, joint)
        distribution, value = self._read(features, joint)
        return Prediction(_masked(distribution, legal), value, memory)

    def unroll(self, observation: PyTree, first: Array | tuple[()], memory: PyTree) -> Prediction:
        """[T] Evaluates a sequence; the result is that of `step`, one observation at a time."""
        seen, legal, *_ = view(observation)

        def one(trunk: Trunk, memory: PyTree) -> tuple[Array, PyTree]:
            features = jax.vmap(self.network.apply, (None, 0))(trunk.network, seen)
            if self.core is None:
                return features, ()
            memory = self.core.unroll(trunk.core, memory, features, first)
            return self.core.output(memory), memory

        # The gradient of a batched product takes a CPU 1.2 times as long at batch 256, and 1.5 times at 2,048.
        joint = self.towers and launch_bound()
        features, memory = self._each(one, memory, joint, axis=1)
        read = self._read_jointly if joint else jax.vmap(partial(self._read, joint=False))
        distribution, value = read(features)
        return Prediction(_masked(distribution, legal), value, memory)

    def batch(self, observation: PyTree) -> Prediction:
        """[N] evaluates any N observations; without memory."""
        return self.unroll(observation, (), ())

    def _each(
        self, function: Callable[[Trunk, PyTree], tuple[Array, PyTree]], memory: PyTree, joint: bool, axis: int = 0
    ) -> tuple[Any, PyTree]:
        """Features of the policy and of the value, and the new memory, stacked along `axis` by tower.

        Two towers can be computed jointly, as one batched product, which halves the number of operations to launch.
        """
        if not self.towers:
            features, memory = function(self.trunk, memory)
            return (features, features), memory
        if joint:
            return jax.vmap(function, out_axes=(0, axis), axis_size=2)(self.trunk, memory)
        (one, one_memory), (other, other_memory) = (
            function(*jax.tree.map(itemgetter(tower), (self.trunk, memory))) for tower in (0, 1)
        )
        return (one, other), jax.tree.map(lambda *x: jnp.stack(x, axis), one_memory, other_memory)

    def _read(self, features: Any, joint: bool) -> tuple[ActionDistribution, Array]:
        """Distribution and value, from the features of the policy and of the value."""
        if joint:
            distribution, value = self._read_jointly(features[:, None])
            return jax.tree.map(itemgetter(0), distribution), value[0]
        policy_features, value_features = features
        value: Any = dense(1, last=True).apply(self.critic, value_features)
        return self.head.apply(self.policy, policy_features), widened(jnp.squeeze(value, -1))

    def _read_jointly(self, features: Array) -> tuple[ActionDistribution, Array]:
        """[T] from features `[2, T, f]`: both heads as one batched product, the critic's filled up with zeros."""
        policy, critic = self.policy["params"]["Dense_0"], self.critic["params"]
        missing = policy["kernel"].shape[-1] - 1
        kernel = jnp.stack([policy["kernel"], jnp.pad(critic["kernel"], ((0, 0), (0, missing)))])
        bias = jnp.stack([policy["bias"], jnp.pad(critic["bias"], (0, missing))])
        features, kernel, bias = (x.astype(networks.last_dtype()) for x in (features, kernel, bias))
        outputs = widened(jnp.einsum("htf,hfk->htk", features, kernel) + bias[:, None])
        distribution = jax.vmap(lambda row: self.head.read(self.policy["params"], row))(outputs[0])
        return distribution, outputs[1, :, 0]


def initial_memory(core: Core | None, towers: bool) -> PyTree:
    """The memory of an `ActorCritic` at the start of an episode."""
    if core is None:
        return ()
    memory = core.initial_memory()
    return jax.tree.map(lambda x: jnp.stack([x, x]), memory) if towers else memory


def _masked(distribution: Any, legal: Array | None) -> Any:
    return distribution if legal is None else distribution.masked(legal)
