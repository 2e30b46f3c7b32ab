"""REINFORCE (Williams, 1992): Monte-Carlo policy gradient.

With a baseline, the advantage is the return minus a learnt value. The value also stands for the rewards that follow
where the unroll or a time limit cuts an episode. Without a baseline only observed rewards count: an episode that
reaches a time limit ends there, and the steps of an episode that the unroll cuts are left out, because their return is
unknown. Unrolls should then be longer than episodes.
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
from runnel.nn import ActorCritic, agents
from runnel.nn.cores import Memory
from runnel.nn.review import review
from runnel.observations import view
from runnel.ops import returns
from runnel.ops.averages import mean
from runnel.ops.optimisers import optimiser
from runnel.types import Act, AgentSpec, Array, PyTree, Trajectory


class State(NamedTuple):
    """The state of the learner; `params`, an `ActorCritic`, is also what `act` uses."""

    params: Any
    optimiser: optax.OptState


class Extras(NamedTuple):
    """Outputs of `act` that `learn` uses."""

    sample: Array | tuple[()]  # the unclipped sample, where the action may be clipped


class Metrics(NamedTuple):
    """Metrics of one update."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    grad_norm: Array


@dataclass(frozen=True)
class Reinforce(Algorithm):
    """Learns from each unroll once, in one step along the policy gradient."""

    learning_rate: float = 1e-3
    discount: float = 0.99
    unroll: int = 128  # steps of every environment per update; usual: as long as an episode
    baseline: bool = True
    value_cost: float = 0.5
    entropy_cost: float = 0.0
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    network: Any = None
    memory: Memory = "none"
    memory_size: int = 64

    # Nothing corrects what lags, and the return of an old policy says little of the present one.
    max_staleness: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check.one_of(self, "memory", "none", "gru", "lstm")
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "memory_size")
        check.positive(self, "learning_rate", "max_grad_norm")
        check.fraction(self, "discount")

    def loop(self, flow: Flow) -> None:
        trajectory = flow.rollout(self.act, steps=self.unroll)
        flow.learn(self.learn, trajectory)

    def init(self, key: Array, spec: AgentSpec) -> State:
        actor_critic: Any = agents.actor_critic_for(self, key, spec)
        return State(actor_critic, self._optimiser().init(actor_critic))

    def initial_memory(self, spec: AgentSpec) -> PyTree:
        return agents.initial_memory_for(self, spec)

    def act(self, params: ActorCritic, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        distribution, _, memory = params.step(observation, memory)
        sample = distribution.sample(key) if explore else distribution.mode()
        return Act(params.head.action(sample), memory, Extras(sample if params.head.clips else ()))

    def gradient(self, state: State, batch: Trajectory, key: Array) -> tuple[ActorCritic, Metrics]:
        grads, metrics = jax.grad(self._loss, has_aux=True)(state.params, batch)
        return grads, metrics._replace(grad_norm=optax.tree.norm(grads))

    def apply(self, state: State, grads: Any) -> State:
        changes, optimiser = self._optimiser().update(grads, state.optimiser)
        return State(optax.apply_updates(state.params, changes), optimiser)

    def _loss(self, actor_critic: ActorCritic, trajectory: Trajectory) -> tuple[Array, Metrics]:
        distribution, v_tm1, v_t = review(actor_critic, trajectory)
        terminated, truncated = trajectory.terminated, trajectory.truncated
        counts = view(trajectory.observation).active  # the others had no choice: there is nothing to be learnt of it
        if self.baseline:
            g_t = returns.advantages(trajectory.reward, terminated, truncated, v_tm1, v_t, self.discount, 1.0).target
            compared = jax.lax.stop_gradient(g_t - v_tm1)
            value_loss = optax.l2_loss(v_tm1, jax.lax.stop_gradient(g_t)).mean()
        else:
            ended = terminated | truncated
            nothing = jnp.zeros_like(v_t)
            compared = returns.advantages(trajectory.reward, ended, ended, nothing, nothing, self.discount, 1.0).target
            known = jnp.flip(jnp.cumsum(jnp.flip(ended, 0), 0), 0) > 0  # [T, B] its episode's end was seen
            counts = known if counts is None else known & counts
            value_loss = jnp.zeros_like(compared.mean())
        sample = trajectory.extras.sample if actor_critic.head.clips else trajectory.action
        policy_loss = -mean(distribution.log_prob(sample) * compared, counts)
        entropy = mean(distribution.entropy(), counts)
        loss = policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy
        return loss, Metrics(policy_loss, value_loss, entropy, jnp.zeros_like(loss))

    def _optimiser(self) -> optax.GradientTransformation:
        return optimiser("adam", self.learning_rate, self.max_grad_norm)
