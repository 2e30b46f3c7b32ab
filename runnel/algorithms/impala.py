"""IMPALA (Espeholt et al., 2018): an actor-critic whose V-trace targets allow for actors that lag behind.

One gradient step per unroll, given as `gradient` and `apply`. Under `async` it is the system of the paper; under a
synchronous distribution nothing lags, the ratios are 1, and V-trace is a plain n-step return.
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
from runnel.ops.optimisers import Optimiser, optimiser
from runnel.ops.returns import lambda_returns
from runnel.types import Act, AgentSpec, Array, PyTree, Trajectory


class Params(NamedTuple):
    """What acting needs."""

    actor_critic: Any  # ActorCritic; `Any`, for optax knows no such tree of arrays


class State(NamedTuple):
    """What learning needs."""

    params: Params
    optimiser: optax.OptState


class Extras(NamedTuple):
    """What acting tells learning."""

    sample: Array | tuple[()]  # what the policy drew, where the action it stands for may be clipped
    log_prob: Array  # [] by the policy that acted


class Metrics(NamedTuple):
    """Of one update."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    explained_variance: Array
    mean_ratio: Array  # of probabilities now and when acting: 1 where nothing lagged
    clip_fraction: Array  # of ratios above `clip_rho`
    grad_norm: Array


class VTrace(NamedTuple):
    """Targets and advantages, corrected for the difference between two policies."""

    target: Array  # [T, B] for the value
    advantage: Array  # [T, B] weighted by the clipped ratio


@dataclass(frozen=True)
class IMPALA(Algorithm):
    """Learns from each unroll once, weighting steps by how likely the present policy would have taken them."""

    learning_rate: float = 6e-4
    discount: float = 0.99
    unroll: int = 20  # steps of every environment per update
    clip_rho: float = 1.0  # of the ratio that weights a step: sets which policy's value is learnt
    clip_c: float = 1.0  # of the ratio by which later steps count: sets how fast it is learnt
    trace_lambda: float = 1.0  # how much later steps count at all
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    max_grad_norm: float = 0.5
    optimiser: Optimiser = "rmsprop"
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    network: Any = None  # None: chosen by the observation; a network; or package.module:name
    memory: Literal["none", "gru"] = "none"
    memory_size: int = 64

    # V-trace corrects what lags, but the further behind, the more ratios are clipped and the less is learnt.
    max_staleness: ClassVar[int] = 20

    def __post_init__(self) -> None:
        check.one_of(self, "optimiser", "rmsprop", "adam")
        check.one_of(self, "memory", "none", "gru")
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "memory_size")
        check.positive(self, "learning_rate", "clip_rho", "clip_c", "max_grad_norm")
        check.fraction(self, "discount", "trace_lambda")

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
        distribution = prediction.distribution
        sample = distribution.sample(key) if explore else distribution.mode()
        head = params.actor_critic.head
        extras = Extras(sample if head.clips else (), distribution.log_prob(sample))
        return Act(head.action(sample), prediction.memory, extras)

    def gradient(self, state: State, batch: Trajectory, key: Array) -> tuple[ActorCritic, Metrics]:
        grads, metrics = jax.grad(self._loss, has_aux=True)(state.params.actor_critic, batch)
        return grads, metrics._replace(grad_norm=optax.tree.norm(grads))

    def apply(self, state: State, grads: Any) -> State:
        changes, optimiser = self._optimiser().update(grads, state.optimiser)
        return State(Params(optax.apply_updates(state.params.actor_critic, changes)), optimiser)

    def vtrace(self, trajectory: Trajectory, v_tm1: Array, v_t: Array, rho_tm1: Array) -> VTrace:
        """[T, B] given values of what was seen and of its true successors, and ratios of probabilities.

        The sums are those of `rlax.vtrace_td_error_and_advantage`, which takes the next row's value for the
        successor's: not so where an episode was truncated. No sum reaches beyond the end of an episode.
        """
        r_t, ended = trajectory.reward.astype(v_t.dtype), trajectory.terminated | trajectory.truncated
        discount_t = jnp.where(trajectory.terminated, 0.0, self.discount).astype(v_t.dtype)
        lambda_t = jnp.where(ended, 0.0, self.trace_lambda).astype(v_t.dtype)
        clipped_rho_tm1 = jnp.minimum(self.clip_rho, rho_tm1)
        c_tm1 = lambda_t * jnp.minimum(self.clip_c, rho_tm1)

        td_error = clipped_rho_tm1 * (r_t + discount_t * v_t - v_tm1)
        # error_tm1 = td_error + discount_t * c_tm1 * error_t: a lambda-return whose bootstrap is 0.
        error_tm1 = lambda_returns(td_error, discount_t, jnp.zeros_like(v_t), c_tm1)
        error_t = jnp.concatenate([error_tm1[1:], jnp.zeros_like(error_tm1[:1])])
        q_tm1 = r_t + discount_t * (v_t + lambda_t * error_t)
        return VTrace(v_tm1 + error_tm1, clipped_rho_tm1 * (q_tm1 - v_tm1))

    def _loss(self, actor_critic: ActorCritic, trajectory: Trajectory) -> tuple[Array, Metrics]:
        distribution, v_tm1, v_t = review(actor_critic, trajectory)
        sample = trajectory.extras.sample if actor_critic.head.clips else trajectory.action
        log_prob = distribution.log_prob(sample)
        ratio = jnp.exp(jax.lax.stop_gradient(log_prob) - trajectory.extras.log_prob)
        target, advantage = self.vtrace(trajectory, jax.lax.stop_gradient(v_tm1), v_t, ratio)

        policy_loss = -(log_prob * advantage).mean()
        value_loss = optax.l2_loss(v_tm1, target).mean()
        entropy = distribution.entropy().mean()
        loss = policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy
        explained_variance = 1 - jnp.var(target - v_tm1) / (jnp.var(target) + 1e-8)
        clip_fraction = (ratio > self.clip_rho).mean()
        return loss, Metrics(
            policy_loss, value_loss, entropy, explained_variance, ratio.mean(), clip_fraction, jnp.zeros_like(loss)
        )

    def _optimiser(self) -> optax.GradientTransformation:
        return optimiser(self.optimiser, self.learning_rate, self.max_grad_norm)
