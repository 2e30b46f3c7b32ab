"""Proximal policy optimisation (Schulman et al., 2017), with or without memory.

Advantages are generalised advantage estimates, from the policy and value that acted, which must be current. For stale
actors under an asynchronous distribution they are V-trace's, from the current policy and value: the ratios correct for
the policy that acted, and clipping keeps the policy near the one that the update began with. With `advantages=auto`,
the plan decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from runnel.algorithm import Algorithm
from runnel.algorithms import check
from runnel.graph.flow import Flow
from runnel.nn import ActorCritic, agents, popart
from runnel.nn.cores import Memory
from runnel.nn.review import predict
from runnel.observations import view
from runnel.ops import proximal, returns, statistics
from runnel.ops.averages import standardised
from runnel.ops.vtrace import corrected, ratios
from runnel.types import Act, AgentSpec, Array, PyTree, Trajectory


class Params(NamedTuple):
    """The parameters that `act` uses."""

    actor_critic: ActorCritic
    observations: list[statistics.Statistics | None]  # empty where observations are taken as they are
    values: popart.PopArt | None  # the scale of its values


class State(NamedTuple):
    """The state of the learner."""

    params: Params
    optimiser: optax.OptState
    returns: statistics.Statistics
    updates: Array  # []


class Extras(NamedTuple):
    """Outputs of `act` that `learn` uses."""

    sample: Array | tuple[()]  # the unclipped sample, where the action may be clipped
    log_prob: Array  # []
    value: Array  # []


class Batch(NamedTuple):
    """The input of the loss: an unroll, or a minibatch of it, which is flat, `[N, ...]`, where there is no memory."""

    observation: PyTree  # [T, B, ...]
    sample: Array  # [T, B, ...] what the policy drew
    extras: Extras  # [T, B, ...] by the policy and value to stay near
    advantage: Array  # [T, B]
    target: Array  # [T, B] for the value
    first: Array  # [T, B]
    memory: PyTree  # [1, B, ...]


class Metrics(NamedTuple):
    """Metrics of one update."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    approx_kl: Array
    clip_fraction: Array
    grad_norm: Array
    explained_variance: Array
    learning_rate: Array


@dataclass(frozen=True)
class PPO(Algorithm):
    """Learns from each unroll in a few epochs of minibatches, with updates clipped near the policy that acted."""

    learning_rate: float = 3e-4
    anneal_steps: int | None = None  # steps of all agents over which the learning rate falls to 0; none: it stays
    discount: float = 0.99
    gae_lambda: float = 0.95
    advantages: Literal["auto", "gae", "vtrace"] = "auto"
    staleness: int = 2
    unroll: int = 128  # steps of every environment per update; usual: 32 to 2048
    reuses: int = 1
    epochs: int = 4
    minibatches: int = 4
    clip: float = 0.2
    dual_clip: float | None = None
    value_clip: float | None = None
    value_cost: float = 0.5
    entropy_cost: float = 0.0
    max_grad_norm: float = 0.5
    popart: bool = False
    normalise_observations: bool = False
    normalise_returns: bool = False
    normalise_advantages: bool = True
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    network: Any = None
    memory: Memory = "none"
    memory_size: int = 64
    scan_unroll: int = 1

    def __post_init__(self) -> None:
        check.one_of(self, "advantages", "auto", "gae", "vtrace")
        check.one_of(self, "memory", "none", "gru", "lstm")
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "reuses", "epochs", "minibatches", "memory_size", "scan_unroll")
        check.at_least_zero(self, "staleness")
        check.positive(self, "learning_rate", "anneal_steps", "clip", "value_clip", "max_grad_norm")
        check.fraction(self, "discount", "gae_lambda")
        if self.dual_clip is not None:
            check.above(self, "dual_clip", 1)

    @property
    def max_staleness(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]: a setting decides
        """Low, because a version is several epochs of steps, whereas in A2C and IMPALA it is a single step."""
        return 0 if self.advantages == "gae" else self.staleness

    def for_staleness(self, staleness: int) -> PPO:
        return self if self.advantages != "auto" else replace(self, advantages="vtrace" if staleness else "gae")

    def loop(self, flow: Flow) -> None:
        trajectory = flow.rollout(self.act, self.unroll, self.discount if self.normalise_returns else None)
        flow.learn(self.learn, trajectory)

    def init(self, key: Array, spec: AgentSpec) -> State:
        actor_critic: Any = agents.actor_critic_for(self, key, spec)
        observations = statistics.observation_statistics(spec.observation) if self.normalise_observations else []
        return State(
            Params(actor_critic, observations, popart.initial(self.popart)),
            self._optimiser().init(actor_critic),
            statistics.initial_statistics(),
            jnp.int32(0),
        )

    def initial_memory(self, spec: AgentSpec) -> PyTree:
        return agents.initial_memory_for(self, spec)

    def act(self, params: Params, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        prediction = params.actor_critic.step(self._seen(params, observation), memory)
        distribution = prediction.distribution
        sample = distribution.sample(key) if explore else distribution.mode()
        head = params.actor_critic.head
        value = popart.value(params.values, prediction.value)
        extras = Extras(sample if head.clips else (), distribution.log_prob(sample), value)
        return Act(head.action(sample), prediction.memory, extras)

    def learn(self, state: State, trajectory: Trajectory, key: Array) -> tuple[State, Metrics]:
        batch, return_statistics = self.batch(state, trajectory)
        # In floating point: a count of environment steps would overflow within minutes on a GPU.
        per_update = 0.0 if self.anneal_steps is None else trajectory.reward.size / self.anneal_steps
        left = jnp.maximum(0.0, 1 - state.updates * per_update)
        learning_rate = jnp.asarray(self.learning_rate * left, batch.target.dtype)

        def step(carry: tuple[Any, optax.OptState], part: Batch) -> tuple[Any, Metrics]:
            actor_critic, optimiser = carry
            grads, metrics = jax.grad(self.loss, has_aux=True)(actor_critic, part)
            changes, optimiser = self._optimiser().update(grads, optimiser)
            changes = jax.tree.map(lambda x: -learning_rate * x, changes)
            metrics = metrics._replace(grad_norm=optax.tree.norm(grads), learning_rate=learning_rate)
            return (optax.apply_updates(actor_critic, changes), optimiser), metrics

        carry, sequences = (state.params.actor_critic, state.optimiser), self.memory != "none"
        (actor_critic, optimiser), metrics = proximal.epochs(
            step, carry, batch, key, self.epochs, self.minibatches, sequences, self.scan_unroll
        )
        unexplained = jnp.var(batch.target - batch.extras.value) / (jnp.var(batch.target) + 1e-8)
        # Only now: the policy that was learnt from saw the observations by the old statistics.
        observations = state.params.observations
        if self.normalise_observations:
            observations = statistics.update_observation_statistics(observations, trajectory.observation)
        values = state.params.values
        targets = popart.moments(values, popart.value(values, batch.target))
        actor_critic, values = popart.updated(values, actor_critic, targets)
        state = State(Params(actor_critic, observations, values), optimiser, return_statistics, state.updates + 1)
        return state, metrics._replace(explained_variance=1 - unexplained)

    def batch(self, state: State, trajectory: Trajectory) -> tuple[Batch, statistics.Statistics]:
        """Advantages and targets of an unroll, and the statistics of returns that include it."""
        params, acted, active = state.params, trajectory.extras, view(trajectory.observation).active
        r_t, return_statistics = self._rewards(state, trajectory)

        def value(last_observation: PyTree, memory: PyTree) -> Array:
            prediction = params.actor_critic.step(self._seen(params, last_observation), memory)
            return popart.value(params.values, prediction.value)

        observation = self._seen(params, trajectory.observation)
        sample = acted.sample if params.actor_critic.head.clips else trajectory.action
        near, memory = acted._replace(sample=()), ()
        if self.memory != "none" or self.advantages == "vtrace":
            now = predict(params.actor_critic, observation, trajectory.first, trajectory.memory)
            memory = now.memory  # after each step, with which a truncated episode would have gone on
            if self.advantages == "vtrace":
                near = Extras((), now.distribution.log_prob(sample), popart.value(params.values, now.value))
        v_tm1 = near.value
        v_t = returns.next_values(value, v_tm1, trajectory, memory)
        if self.advantages == "vtrace":
            rho_tm1 = ratios(near.log_prob, acted.log_prob, active)
            rewarded = trajectory._replace(reward=r_t)
            target, advantage, weight = corrected(rewarded, v_tm1, v_t, rho_tm1, self.discount, self.gae_lambda)
        else:
            weight = None
            ends = trajectory.terminated, trajectory.truncated
            advantage, target = returns.advantages(r_t, *ends, v_tm1, v_t, self.discount, self.gae_lambda)
        if self.normalise_advantages:
            # Over the unroll, not each minibatch: learners then have one mean to agree on instead of many.
            advantage = standardised(advantage, active)
        else:
            advantage = popart.relative(params.values, advantage)
        if weight is not None:  # only now: of what the present policy would hardly do, next to nothing is learnt
            advantage = weight * advantage

        # From here on, values are in the units of the value head.
        target, v_tm1 = (popart.normalised(params.values, x) for x in (target, v_tm1))
        first, at_first = (trajectory.first, trajectory.memory) if self.memory != "none" else ((), ())
        memory = jax.tree.map(lambda x: x[None], at_first)
        batch = Batch(observation, sample, near._replace(value=v_tm1), advantage, target, first, memory)
        return batch, return_statistics

    def _rewards(self, state: State, trajectory: Trajectory) -> tuple[Array, statistics.Statistics]:
        """Rewards on the scale of returns, if that is enabled, by statistics that include these."""
        r_t = trajectory.reward
        if not self.normalise_returns:
            return r_t, state.returns
        ended = trajectory.terminated | trajectory.truncated
        sums = returns.discounted_sums(r_t, ended, trajectory.discounted_sum, self.discount)
        return_statistics = statistics.update_statistics(state.returns, sums)
        return r_t * jax.lax.rsqrt(return_statistics.variance + 1e-8), return_statistics

    def loss(self, actor_critic: ActorCritic, batch: Batch) -> tuple[Array, Metrics]:
        """The loss of a batch or a minibatch, and its metrics."""
        if self.memory == "none":
            prediction = actor_critic.batch(batch.observation)
        else:
            memory = jax.tree.map(lambda x: x[0], batch.memory)
            prediction = predict(actor_critic, batch.observation, batch.first, memory)
        active = view(batch.observation).active  # the others had no choice: there is nothing to be learnt of it
        policy_loss, entropy, approx_kl, clip_fraction = proximal.policy_terms(
            prediction.distribution, batch.sample, batch.extras.log_prob, batch.advantage, active,
            self.clip, self.dual_clip,
        )  # fmt: skip
        value_loss = proximal.clipped_value_loss(prediction.value, batch.target, batch.extras.value, self.value_clip)
        value_loss = value_loss.mean()
        loss = policy_loss + self.value_cost * value_loss - self.entropy_cost * entropy
        zero = jnp.zeros_like(loss)
        return loss, Metrics(policy_loss, value_loss, entropy, approx_kl, clip_fraction, zero, zero, zero)

    def _seen(self, params: Params, observation: PyTree) -> PyTree:
        """The normalised observation."""
        return statistics.normalise(params.observations, observation) if self.normalise_observations else observation

    def _optimiser(self) -> optax.GradientTransformation:
        # As one vector: on a CPU, an update takes 16% less time than with an array for each weight and bias.
        return optax.flatten(optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5)))
