"""Soft actor-critic (Haarnoja et al., 2018), learnt temperature: maximises return and policy entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from runnel.algorithm import Algorithm
from runnel.algorithms import check
from runnel.graph.flow import Flow
from runnel.nn import Critics, StochasticPolicy, bounds_of, joint_network, networks
from runnel.ops import exploration
from runnel.ops.critic_loss import critic_loss, td_errors
from runnel.ops.n_step import Transition, n_step_transitions
from runnel.ops.precision import default_float
from runnel.replay import Prioritised, PrioritisedReplay, UniformReplay, weighted
from runnel.types import Act, AgentSpec, Array, Box, PyTree, Trajectory, zeros


class Params(NamedTuple):
    """The parameters that `act` uses."""

    policy: Any  # StochasticPolicy; `Any`, for optax knows no such tree of arrays
    updates: Array  # [] actions are random before the first


class Learnt(NamedTuple):
    """The learnt networks, or their gradients."""

    policy: Any  # StochasticPolicy
    critics: Any  # Critics, two
    log_temperature: Array  # [] of how much an action's probability counts against it


class State(NamedTuple):
    """The state of the learner."""

    params: Params
    critics: Any  # Critics
    log_temperature: Array  # []
    target: Any  # Critics
    optimiser: optax.OptState


class Out(NamedTuple):
    """Metrics of one update, and the new priorities of its transitions."""

    critic_loss: Array
    policy_loss: Array
    mean_value: Array
    entropy: Array  # of the policy, where actions reach from -1 to 1
    temperature: Array
    priorities: Array  # [batch]


@dataclass(frozen=True)
class SAC(Algorithm):
    """Learns from replayed transitions: the smaller value of two critics, and a policy of high value and entropy."""

    learning_rate: float = 3e-4
    discount: float = 0.99
    unroll: int = 4  # steps of every environment per iteration; usual: 1 to 16
    n_step: int = 1  # steps of reward before the value is used, no more than `unroll`; only the last entropy counts
    batch: int = 256
    capacity: int = 1_000_000
    min_size: int = 10_000  # transitions before learning begins: until then actions are random
    samples_per_insert: float = 256.0  # how often each transition is drawn, on average; as `batch`: one update per step
    prioritised: bool = False
    importance_exponent: float = 0.4
    tau: float = 0.005
    target_entropy: float | None = None  # of the policy, which the temperature holds; none: minus the size of an action
    initial_temperature: float = 1.0  # first weight of the entropy beside the return, which is learnt; usual: 0.1 to 1
    hidden: tuple[int, ...] = (256, 256)
    activation: Literal["tanh", "relu"] = "relu"
    network: Any = None

    actions: ClassVar = (Box,)
    max_staleness: ClassVar[int] = 1_000  # replayed transitions are old in any case

    def __post_init__(self) -> None:
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "n_step", "batch", "capacity", "min_size")
        check.steps_ahead(self)
        check.positive(self, "learning_rate", "samples_per_insert", "initial_temperature")
        check.fraction(self, "discount", "tau", "importance_exponent")

    def loop(self, flow: Flow) -> None:
        trajectory = flow.rollout(self.act, steps=self.unroll)
        replay = flow.replay(PrioritisedReplay(self.capacity) if self.prioritised else UniformReplay(self.capacity))
        replay.insert(flow.map(self.transitions, trajectory))
        batch = replay.sample(self.batch, self.min_size, self.samples_per_insert)
        out = flow.learn(self.learn, batch)
        if self.prioritised:
            replay.update(out.priorities)

    def init(self, key: Array, spec: AgentSpec) -> State:
        assert isinstance(spec.action, Box)
        policy_key, critic_key = jax.random.split(key)
        bounds, seen = bounds_of(spec.action, type(self).__name__), zeros(spec.observation)
        network = networks.resolve(self.network, spec.observation, self.hidden, self.activation)
        joint = joint_network(self.network, spec.observation, bounds.size, self.hidden, self.activation)
        policy = StochasticPolicy.create(policy_key, network, bounds, seen)
        critics = Critics.create(critic_key, joint, bounds.size, seen, count=2)
        log_temperature = jnp.full((), math.log(self.initial_temperature), default_float())
        optimiser = self._optimiser().init(Learnt(policy, critics, log_temperature))
        return State(Params(policy, jnp.int32(0)), critics, log_temperature, critics, optimiser)

    def act(self, params: Params, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        distribution = params.policy(observation)
        action = distribution.mode()
        if explore:
            action, _ = distribution.sample_and_log_prob(key)
            action = exploration.warmed_up(key, action, params.updates)
        return Act(params.policy.bounds.action(action))

    def transitions(self, trajectory: Trajectory) -> Transition:
        return n_step_transitions(trajectory, self.n_step, self.discount)

    def gradient(self, state: State, batch: Transition | Prioritised, key: Array) -> tuple[Learnt, Out]:
        items, weights = weighted(batch, self.importance_exponent)
        learnt = Learnt(state.params.policy, state.critics, state.log_temperature)
        return jax.grad(self._loss, has_aux=True)(learnt, state.target, items, weights, key)

    def apply(self, state: State, grads: Learnt) -> State:
        changes, optimiser = self._optimiser().update(grads, state.optimiser)
        learnt: Any = optax.apply_updates(Learnt(state.params.policy, state.critics, state.log_temperature), changes)
        target = optax.incremental_update(learnt.critics, state.target, self.tau)
        params = Params(learnt.policy, state.params.updates + 1)
        return State(params, learnt.critics, learnt.log_temperature, target, optimiser)

    def _loss(
        self, learnt: Learnt, target: Critics, items: Transition, weights: Array, key: Array
    ) -> tuple[Array, Out]:
        policy, critics, log_temperature = learnt
        temperature = jnp.exp(jax.lax.stop_gradient(log_temperature))
        key_tm1, key_t = jax.random.split(key)

        a_t, log_prob_t = jax.vmap(policy)(items.s_t).sample_and_log_prob(key_t)
        v_t = jax.vmap(target)(items.s_t, a_t).min(-1) - temperature * log_prob_t
        q_tm1 = jax.vmap(critics)(items.s_tm1, jax.vmap(policy.bounds.unit)(items.a_tm1))  # [batch, 2]
        errors = td_errors(q_tm1, items, v_t)
        value_loss = critic_loss(errors, weights)

        # The critics judge what the policy would do now, but learn nothing from that.
        a_tm1, log_prob_tm1 = jax.vmap(policy)(items.s_tm1).sample_and_log_prob(key_tm1)
        judged = jax.vmap(jax.lax.stop_gradient(critics))(items.s_tm1, a_tm1).min(-1)
        policy_loss = (temperature * log_prob_tm1 - judged).mean()

        # It rises while the policy is less random than asked, and falls while it is more.
        entropy = -jax.lax.stop_gradient(log_prob_tm1).mean()
        wanted = -policy.bounds.size if self.target_entropy is None else self.target_entropy
        temperature_loss = log_temperature * (entropy - wanted)

        out = Out(value_loss, policy_loss, q_tm1.mean(), entropy, temperature, jnp.abs(errors).mean(-1) + 1e-6)
        return value_loss + policy_loss + temperature_loss, out

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
