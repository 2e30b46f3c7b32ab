"""IMPALA (Espeholt et al., 2018): an actor-critic whose V-trace targets correct for stale actors.

One gradient step per unroll, as `gradient` and `apply`. Under `async` it is the system of the paper; under a
synchronous distribution samples are not stale, the ratios are 1, and V-trace is a plain n-step return.
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
from runnel.ops.averages import mean
from runnel.ops.optimisers import Optimiser, optimiser
from runnel.ops.vtrace import ratios, vtrace
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
    """Outputs of `act` that `learn` uses."""

    sample: Array | tuple[()]  # the unclipped sample, where the action may be clipped
    log_prob: Array  # [] by the policy that acted


class Metrics(NamedTuple):
    """Metrics of one update."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    explained_variance: Array
    mean_ratio: Array  # of probabilities now and when acting: 1 where nothing lagged
    clip_fraction: Array  # of ratios above `clip_rho`
    grad_norm: Array


@dataclass(frozen=True)
class IMPALA(Algorithm):
    """Learns from each unroll once, weighting steps by the current policy's probability of their actions."""

    learning_rate: float = 6e-4
    discount: float = 0.99
    unroll: int = 20  # steps of every environment per update; usual: 20 to 100
    reuses: int = 1
    clip_rho: float = 1.0  # highest ratio that weights a step: decides which policy's value is learnt; usual: 1
    clip_c: float = 1.0  # highest ratio that weights later steps: decides how fast the value is learnt; usual: 1
    trace_lambda: float = 1.0  # further weight of later steps, 0 to 1, as `gae_lambda` of PPO; usual: 0.95 to 1
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

    # V-trace corrects what lags, but the further behind, the more ratios are clipped and the less is learnt.
    max_staleness: ClassVar[int] = 20

    def __post_init__(self) -> None:
        check.one_of(self, "optimiser", "rmsprop", "adam")
        check.one_of(self, "memory", "none", "gru", "lstm")
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "reuses", "memory_size")
        check.positive(self, "learning_rate", "clip_rho", "clip_c", "max_grad_norm")
        check.fraction(self, "discount", "trace_lambda")

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
        distribution = prediction.distribution
        sample = distribution.sample(key) if explore else distribution.mode()
        head = params.actor_critic.head
        extras = Extras(sample if head.clips else (), distribution.log_prob(sample))
        return Act(head.action(sample), prediction.memory, extras)

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
        sample = trajectory.extras.sample if actor_critic.head.clips else trajectory.action
        log_prob = distribution.log_prob(sample)
        active = view(trajectory.observation).active  # the others had no choice: there is nothing to be learnt of it
        ratio = ratios(log_prob, trajectory.extras.log_prob, active)
        target, advantage = vtrace(
            trajectory, v_tm1, v_t, ratio, self.discount, self.trace_lambda, self.clip_rho, self.clip_c
        )

        policy_loss = -mean(log_prob * popart.relative(values, advantage), active)
        value_loss = optax.l2_loss(predicted, popart.normalised(values, target)).mean()
        entropy = mean(distribution.entropy(), active)
        loss = policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy
        explained_variance = 1 - jnp.var(target - v_tm1) / (jnp.var(target) + 1e-8)
        clip_fraction = mean(ratio > self.clip_rho, active)
        mean_ratio, zero = mean(ratio, active), jnp.zeros_like(loss)
        metrics = Metrics(policy_loss, value_loss, entropy, explained_variance, mean_ratio, clip_fraction, zero)
        return loss, (popart.moments(values, target), metrics)

    def _optimiser(self) -> optax.GradientTransformation:
        return optimiser(self.optimiser, self.learning_rate, self.max_grad_norm)
