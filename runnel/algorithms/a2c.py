"""Advantage actor-critic (Mnih et al., 2016), with or without memory.

One gradient step per unroll, as `gradient` and `apply`: under a synchronous distribution that is A2C. Under `central`,
where workers compute gradients with the newest parameters that they have received and a server applies each as it
arrives, it is A3C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from runnel.algorithm import Algorithm
from runnel.algorithms import check
from runnel.graph.flow import Flow
from runnel.nn import ActorCritic, agents, popart
from runnel.nn.cores import Memory
from runnel.nn.popart import PopArt
from runnel.nn.review import review
from runnel.observations import view
from runnel.ops import returns
from runnel.ops.averages import mean
from runnel.ops.optimisers import Optimiser, optimiser
from runnel.types import Act, AgentSpec, Array, PyTree, Trajectory


class Params(NamedTuple):
    """The parameters that `act` uses."""

    actor_critic: Any  # ActorCritic; `Any`, for optax knows no such tree of arrays
    values: PopArt | None  # the scale of its values


class State(NamedTuple):
    """The state of the learner."""

    params: Params
    optimiser: optax.OptState


class Gradient(NamedTuple):
    """The gradient of one update, and the moments of its value targets."""

    actor_critic: Any
    targets: popart.Moments | None  # of the value


class Extras(NamedTuple):
    """Outputs of `act` that `learn` uses. Probabilities and values are recomputed instead."""

    sample: Array | tuple[()]  # the unclipped sample, where the action may be clipped


class Metrics(NamedTuple):
    """Metrics of one update."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    explained_variance: Array
    grad_norm: Array


@dataclass(frozen=True)
class A2C(Algorithm):
    """Learns from each unroll once, in one step along the gradient of the current policy."""

    learning_rate: float = 7e-4
    discount: float = 0.99
    gae_lambda: float = 1.0  # 1: returns of as many steps as the unroll has left; lower: less noise, more bias
    unroll: int = 8  # steps of every environment per update; usual: 5 to 32
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    max_grad_norm: float = 0.5
    popart: bool = False
    optimiser: Optimiser = "rmsprop"
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    network: Any = None
    memory: Memory = "none"
    memory_size: int = 64

    # A3C trained with 16 workers and corrects nothing: while one computes a gradient, each other applies about one.
    max_staleness: ClassVar[int] = 16

    def __post_init__(self) -> None:
        check.one_of(self, "optimiser", "rmsprop", "adam")
        check.one_of(self, "memory", "none", "gru", "lstm")
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "memory_size")
        check.positive(self, "learning_rate", "max_grad_norm")
        check.fraction(self, "discount", "gae_lambda")

    def loop(self, flow: Flow) -> None:
        trajectory = flow.rollout(self.act, steps=self.unroll)
        flow.learn(self.learn, trajectory)

    def init(self, key: Array, spec: AgentSpec) -> State:
        actor_critic: Any = agents.actor_critic_for(self, key, spec)
        return State(Params(actor_critic, popart.initial(self.popart)), self._optimiser().init(actor_critic))

    def initial_memory(self, spec: AgentSpec) -> PyTree:
        return agents.initial_memory_for(self, spec)

    def act(self, params: Params, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        prediction = params.actor_critic.step(observation, memory)
        sample = prediction.distribution.sample(key) if explore else prediction.distribution.mode()
        head = params.actor_critic.head
        return Act(head.action(sample), prediction.memory, Extras(sample if head.clips else ()))

    def gradient(self, state: State, batch: Trajectory, key: Array) -> tuple[Gradient, Metrics]:
        actor_critic, values = state.params
        grads, (targets, metrics) = jax.grad(self._loss, has_aux=True)(actor_critic, values, batch)
        return Gradient(grads, targets), metrics._replace(grad_norm=optax.tree.norm(grads))

    def apply(self, state: State, grads: Gradient) -> State:
        actor_critic, values = state.params
        changes, optimiser = self._optimiser().update(grads.actor_critic, state.optimiser)
        actor_critic = optax.apply_updates(actor_critic, changes)
        return State(Params(*popart.updated(values, actor_critic, grads.targets)), optimiser)

    def _loss(
        self, actor_critic: ActorCritic, values: PopArt | None, trajectory: Trajectory
    ) -> tuple[Array, tuple[popart.Moments | None, Metrics]]:
        distribution, predicted, predicted_t = review(actor_critic, trajectory)
        v_tm1, v_t = (popart.value(values, x) for x in (jax.lax.stop_gradient(predicted), predicted_t))
        advantage, target = returns.advantages(
            trajectory.reward,
            trajectory.terminated,
            trajectory.truncated,
            v_tm1,
            v_t,
            self.discount,
            self.gae_lambda,
        )
        sample = trajectory.extras.sample if actor_critic.head.clips else trajectory.action
        active = view(trajectory.observation).active  # the others had no choice: there is nothing to be learnt of it
        policy_loss = -mean(distribution.log_prob(sample) * popart.relative(values, advantage), active)
        value_loss = optax.l2_loss(predicted, popart.normalised(values, target)).mean()
        entropy = mean(distribution.entropy(), active)
        loss = policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy
        explained_variance = 1 - jnp.var(advantage) / (jnp.var(target) + 1e-8)
        metrics = Metrics(policy_loss, value_loss, entropy, explained_variance, jnp.zeros_like(loss))
        return loss, (popart.moments(values, target), metrics)

    def _optimiser(self) -> optax.GradientTransformation:
        return optimiser(self.optimiser, self.learning_rate, self.max_grad_norm)
