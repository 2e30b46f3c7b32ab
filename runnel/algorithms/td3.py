"""Twin delayed DDPG (Fujimoto et al., 2018): two critics against overestimation, delayed policy updates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from runnel.algorithm import Algorithm
from runnel.algorithms import check
from runnel.graph.flow import Flow
from runnel.nn import Critics, DeterministicPolicy, bounds_of, joint_network, networks
from runnel.ops import exploration
from runnel.ops.critic_loss import critic_loss, td_errors
from runnel.ops.n_step import Transition, n_step_transitions
from runnel.replay import Prioritised, PrioritisedReplay, UniformReplay, weighted
from runnel.types import Act, AgentSpec, Array, Box, PyTree, Trajectory, zeros


class Params(NamedTuple):
    """The parameters that `act` uses."""

    policy: Any  # DeterministicPolicy; `Any`, for optax knows no such tree of arrays
    updates: Array  # [] actions are random before the first, and the policy changes every few


class Networks(NamedTuple):
    """The learnt networks, or their gradients."""

    policy: Any  # DeterministicPolicy
    critics: Any  # Critics, two


class State(NamedTuple):
    """The state of the learner."""

    params: Params
    critics: Any  # Critics
    target: Networks
    policy_optimiser: optax.OptState
    critic_optimiser: optax.OptState


class Out(NamedTuple):
    """Metrics of one update, and the new priorities of its transitions."""

    critic_loss: Array
    policy_loss: Array
    mean_value: Array
    priorities: Array  # [batch]


@dataclass(frozen=True)
class TD3(Algorithm):
    """Learns from replayed transitions: the smaller value of two critics, and a deterministic policy."""

    learning_rate: float = 3e-4
    discount: float = 0.99
    unroll: int = 4  # steps of every environment per iteration; usual: 1 to 16
    n_step: int = 1
    batch: int = 256
    capacity: int = 1_000_000
    min_size: int = 10_000  # transitions before learning begins: until then actions are random
    samples_per_insert: float = 256.0  # how often each transition is drawn, on average; as `batch`: one update per step
    prioritised: bool = False
    importance_exponent: float = 0.4
    tau: float = 0.005  # share of the way that targets go to the networks when the policy changes; usual: 0.001 to 0.01
    policy_delay: int = 2  # updates of the critics for one of the policy and of the targets; usual: 2
    noise: float = 0.1
    target_noise: float = 0.2  # deviation of noise on the target's action: smooths the critics' peaks; usual: 0.2
    target_noise_clip: float = 0.5  # most noise on the target's action, where actions reach from -1 to 1; usual: 0.5
    hidden: tuple[int, ...] = (256, 256)
    activation: Literal["tanh", "relu"] = "relu"
    network: Any = None

    actions: ClassVar = (Box,)
    max_staleness: ClassVar[int] = 1_000  # replayed transitions are old in any case

    def __post_init__(self) -> None:
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "n_step", "batch", "capacity", "min_size", "policy_delay")
        check.steps_ahead(self)
        check.positive(self, "learning_rate", "samples_per_insert")
        check.fraction(self, "discount", "tau", "noise", "target_noise", "target_noise_clip", "importance_exponent")

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
        policy: Any = DeterministicPolicy.create(policy_key, network, bounds, seen)
        critics: Any = Critics.create(critic_key, joint, bounds.size, seen, count=2)
        optimisers = self._optimiser().init(policy), self._optimiser().init(critics)
        return State(Params(policy, jnp.int32(0)), critics, Networks(policy, critics), *optimisers)

    def act(self, params: Params, observation: PyTree, memory: PyTree, key: Array, explore: bool) -> Act:
        action = params.policy(observation)
        if explore:
            action = exploration.with_noise(key, action, self.noise)
            action = exploration.warmed_up(key, action, params.updates)
        return Act(params.policy.bounds.action(action))

    def transitions(self, trajectory: Trajectory) -> Transition:
        return n_step_transitions(trajectory, self.n_step, self.discount)

    def gradient(self, state: State, batch: Transition | Prioritised, key: Array) -> tuple[Networks, Out]:
        items, weights = weighted(batch, self.importance_exponent)
        learnt = Networks(state.params.policy, state.critics)
        return jax.grad(self._loss, has_aux=True)(learnt, state.target, items, weights, key)

    def apply(self, state: State, grads: Networks) -> State:
        changes, critic_optimiser = self._optimiser().update(grads.critics, state.critic_optimiser)
        critics: Any = optax.apply_updates(state.critics, changes)
        changes, policy_optimiser = self._optimiser().update(grads.policy, state.policy_optimiser)
        policy: Any = optax.apply_updates(state.params.policy, changes)
        target = optax.incremental_update(Networks(policy, critics), state.target, self.tau)

        # By a count in `apply`: gradients that other workers computed may arrive in any order.
        updates = state.params.updates + 1
        policy, target, policy_optimiser = jax.tree.map(
            partial(jnp.where, updates % self.policy_delay == 0),
            (policy, target, policy_optimiser),
            (state.params.policy, state.target, state.policy_optimiser),
        )
        return State(Params(policy, updates), critics, target, policy_optimiser, critic_optimiser)

    def smoothed(self, action: Array, key: Array) -> Array:
        """Target actions `[batch, n]` with noise, clipped to the bounds."""
        limit = self.target_noise_clip
        noise = self.target_noise * jax.random.normal(key, action.shape, action.dtype)
        return jnp.clip(action + jnp.clip(noise, -limit, limit), -1.0, 1.0)

    def _loss(
        self, learnt: Networks, target: Networks, items: Transition, weights: Array, key: Array
    ) -> tuple[Array, Out]:
        policy, critics = learnt
        a_tm1 = jax.vmap(policy.bounds.unit)(items.a_tm1)
        a_t = self.smoothed(jax.vmap(target.policy)(items.s_t), key)
        q_tm1, q_t = jax.vmap(critics)(items.s_tm1, a_tm1), jax.vmap(target.critics)(items.s_t, a_t)  # [batch, 2]
        errors = td_errors(q_tm1, items, q_t.min(-1))
        value_loss = critic_loss(errors, weights)

        # The first critic judges the policy, but learns nothing from that.
        judged = jax.vmap(jax.lax.stop_gradient(critics))(items.s_tm1, jax.vmap(policy)(items.s_tm1))
        policy_loss = -judged[:, 0].mean()
        return value_loss + policy_loss, Out(value_loss, policy_loss, q_tm1.mean(), jnp.abs(errors).mean(-1) + 1e-6)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate)
