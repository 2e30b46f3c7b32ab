"""Advantage actor-critic (Mnih et al., 2016), with or without memory.

One gradient step per unroll, given as `gradient` and `apply`: under a synchronous distribution that is A2C. Under
`central`, where workers compute gradients with the parameters they last saw and a server applies them as they
come, the same file is A3C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from runnel.algorithm import Algorithm
from runnel.algorithms import check
from runnel.flow import Flow
from runnel.nn import ActorCritic, agents
from runnel.nn.review import review
from runnel.ops import returns
from runnel.ops.optimisers import Optimiser, optimiser
from runnel.types import Act, AgentSpec, Array, PyTree, Trajectory


class Params(NamedTuple):
    """What acting needs."""

    actor_critic: Any  # ActorCritic; `Any`, for optax knows no such tree of arrays


class State(NamedTuple):
    """What learning needs."""

    params: Params
    optimiser: optax.OptState


class Extras(NamedTuple):
    """What acting tells learning. Probabilities and values are not among it: learning computes them anew."""

    sample: Array | tuple[()]  # what the policy drew, where the action it stands for may be clipped


class Metrics(NamedTuple):
    """Of one update."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    explained_variance: Array
    grad_norm: Array


@dataclass(frozen=True)
class A2C(Algorithm):
    """Learns from each unroll once, in one step along the gradient of the present policy."""

    learning_rate: float = 7e-4
    discount: float = 0.99
    gae_lambda: float = 1.0  # 1: returns of as many steps as the unroll has left
    unroll: int = 8  # steps of every environment per update
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    max_grad_norm: float = 0.5
    optimiser: Optimiser = "rmsprop"
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    network: Any = None  # None: chosen by the observation; a network; or package.module:name
    memory: Literal["none", "gru"] = "none"
    memory_size: int = 64

    # A3C trained with 16 workers and corrects nothing: while one computes a gradient, each other applies about one.
    max_staleness: ClassVar[int] = 16

    def __post_init__(self) -> None:
        check.one_of(self, "optimiser", "rmsprop", "adam")
        check.one_of(self, "memory", "none", "gru")
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "memory_size")
        check.positive(self, "learning_rate", "max_grad_norm")
        check.fraction(self, "discount", "gae_lambda")

    def loop(self, flow: Flow) -> None:
        trajectory = flow.rollout(self.act, steps=self.unroll)
        flow.learn(self.learn, trajectory)

    def init(self, key: Array, spec: AgentSpec) -> State:
        actor_critic: Any = agents.actor_critic_for(self, key, spec)
        return State(Params(actor_critic), self._optimiser().init(actor_critic))

    def initial_memory(self, spec: AgentSpec) -> PyTree:
        return agents.initial_memory(self, spec)

    def act(self, params: Params, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        prediction = params.actor_critic.step(observation, memory)
        sample = prediction.distribution.sample(key) if explore else prediction.distribution.mode()
        head = params.actor_critic.head
        return Act(head.action(sample), prediction.memory, Extras(sample if head.clips else ()))

    def gradient(self, state: State, batch: Trajectory, key: Array) -> tuple[ActorCritic, Metrics]:
        grads, metrics = jax.grad(self._loss, has_aux=True)(state.params.actor_critic, batch)
        return grads, metrics._replace(grad_norm=optax.tree.norm(grads))

    def apply(self, state: State, grads: Any) -> State:
        changes, optimiser = self._optimiser().update(grads, state.optimiser)
        return State(Params(optax.apply_updates(state.params.actor_critic, changes)), optimiser)

    def _loss(self, actor_critic: ActorCritic, trajectory: Trajectory) -> tuple[Array, Metrics]:
        distribution, v_tm1, v_t = review(actor_critic, trajectory)
        advantage, target = returns.advantages(
            trajectory.reward,
            trajectory.terminated,
            trajectory.truncated,
            jax.lax.stop_gradient(v_tm1),
            v_t,
            self.discount,
            self.gae_lambda,
        )
        sample = trajectory.extras.sample if actor_critic.head.clips else trajectory.action
        policy_loss = -(distribution.log_prob(sample) * advantage).mean()
        value_loss = optax.l2_loss(v_tm1, target).mean()
        entropy = distribution.entropy().mean()
        loss = policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy
        explained_variance = 1 - jnp.var(advantage) / (jnp.var(target) + 1e-8)
        return loss, Metrics(policy_loss, value_loss, entropy, explained_variance, jnp.zeros_like(loss))

    def _optimiser(self) -> optax.GradientTransformation:
        return optimiser(self.optimiser, self.learning_rate, self.max_grad_norm)
