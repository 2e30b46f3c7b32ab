"""Categorical DQN, C51 (Bellemare et al., 2017): learns the distribution of each action's return.

The distribution has `atoms` support points from `v_min` to `v_max`. With all of DQN's extensions switched on it is
Rainbow (Hessel et al., 2018).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
import rlax

from runnel.algorithm import Algorithm
from runnel.algorithms import check
from runnel.graph.flow import Flow
from runnel.nn import ActionValues, networks
from runnel.observations import view
from runnel.ops import exploration
from runnel.ops.n_step import Transition, n_step_transitions
from runnel.replay import Prioritised, PrioritisedReplay, UniformReplay, weighted
from runnel.types import Act, AgentSpec, Array, Discrete, PyTree, Trajectory, zeros


class Params(NamedTuple):
    """The parameters that `act` uses."""

    values: Any  # ActionValues, of logits; `Any`, for optax knows no such tree of arrays
    updates: Array  # [] what epsilon falls by


class State(NamedTuple):
    """The state of the learner."""

    params: Params
    target: Any  # ActionValues
    optimiser: optax.OptState


class Out(NamedTuple):
    """Metrics of one update, and the new priorities of its transitions."""

    loss: Array
    mean_value: Array
    epsilon: Array
    priorities: Array  # [batch]


@dataclass(frozen=True)
class C51(Algorithm):
    """Learns the distribution of each action's return from replayed transitions."""

    learning_rate: float = 5e-4
    discount: float = 0.99
    atoms: int = 51  # returns that the distribution has a probability for, from `v_min` to `v_max`; usual: 51
    v_min: float = -10.0  # lowest return of the distribution; at most the lowest discounted return of the task
    v_max: float = 10.0  # highest return of the distribution; at least the highest discounted return of the task
    unroll: int = 4  # steps of every environment per iteration; usual: 1 to 16
    n_step: int = 1
    batch: int = 64
    capacity: int = 50_000
    min_size: int = 1_000
    samples_per_insert: float = 8.0
    prioritised: bool = False
    importance_exponent: float = 0.4
    double: bool = True
    dueling: bool = False
    noisy: bool = False
    target_period: int = 250
    epsilon_start: float | None = None  # first probability of a random action; none: 1, or `epsilon_end` if `noisy`
    epsilon_end: float | None = None  # lowest probability of a random action; none: 0.05, or 0 if `noisy`
    epsilon_steps: int = 10_000
    epsilon_spread: float = 0.0
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (128, 128)
    activation: Literal["tanh", "relu"] = "relu"
    network: Any = None

    actions: ClassVar = (Discrete,)
    max_staleness: ClassVar[int] = 1_000  # replayed transitions are old in any case

    def __post_init__(self) -> None:
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "n_step", "batch", "capacity", "min_size", "target_period", "epsilon_steps")
        check.steps_ahead(self)
        check.above(self, "atoms", 1)
        check.above(self, "v_max", "v_min")
        check.positive(self, "learning_rate", "samples_per_insert", "max_grad_norm")
        check.at_least_zero(self, "epsilon_spread")
        check.fraction(self, "discount", "epsilon_start", "epsilon_end", "importance_exponent")

    def loop(self, flow: Flow) -> None:
        trajectory = flow.rollout(self.act, steps=self.unroll)
        replay = flow.replay(PrioritisedReplay(self.capacity) if self.prioritised else UniformReplay(self.capacity))
        replay.insert(flow.map(self.transitions, trajectory))
        batch = replay.sample(self.batch, self.min_size, self.samples_per_insert)
        out = flow.learn(self.learn, batch)
        if self.prioritised:
            replay.update(out.priorities)

    def init(self, key: Array, spec: AgentSpec) -> State:
        assert isinstance(spec.action, Discrete)
        network = networks.resolve(self.network, view(spec.observation).seen, self.hidden, self.activation)
        values: Any = ActionValues.create(
            key, network, spec.action.n, zeros(spec.observation), (self.atoms,), self.dueling, self.noisy
        )
        return State(Params(values, jnp.int32(0)), values, self._optimiser().init(values))

    def act(
        self, params: Params, observation: PyTree, memory: PyTree, key: Array, explore: bool, index: Array | int = 0
    ) -> Act:
        noise_key, action_key = jax.random.split(key)
        q = self.mean(params.values(observation, noise_key if explore else None))
        epsilon = exploration.spread(self.epsilon(params), index, self.epsilon_spread) if explore else 0.0
        return Act(exploration.epsilon_greedy(action_key, q, epsilon, view(observation).action_mask))

    def support(self) -> Array:
        """[atoms] the support of the return distribution."""
        return jnp.linspace(self.v_min, self.v_max, self.atoms)

    def mean(self, logits: Array) -> Array:
        """[...] the means of the distributions `[..., atoms]`."""
        return jax.nn.softmax(logits) @ self.support()

    def epsilon(self, params: Params) -> Array:
        """The probability of a random action in the environment that explores most."""
        steps = params.updates * (self.batch / self.samples_per_insert)
        return exploration.annealed(steps, self.epsilon_start, self.epsilon_end, self.epsilon_steps, self.noisy)

    def transitions(self, trajectory: Trajectory) -> Transition:
        return n_step_transitions(trajectory, self.n_step, self.discount)

    def gradient(self, state: State, batch: Transition | Prioritised, key: Array) -> tuple[ActionValues, Out]:
        items, weights = weighted(batch, self.importance_exponent)
        (loss, (losses, mean_value)), grads = jax.value_and_grad(self._loss, has_aux=True)(
            state.params.values, state.target, items, weights, key
        )
        return grads, Out(loss, mean_value, self.epsilon(state.params), losses + 1e-6)

    def apply(self, state: State, grads: Any) -> State:
        changes, optimiser = self._optimiser().update(grads, state.optimiser)
        values = optax.apply_updates(state.params.values, changes)
        updates = state.params.updates + 1
        target = optax.periodic_update(values, state.target, updates, self.target_period)
        return State(Params(values, updates), target, optimiser)

    def _loss(self, values: ActionValues, target: ActionValues, items: Transition, weights: Array, key: Array) -> Any:
        key_tm1, key_t, selector_key = jax.random.split(key, 3)
        logits_tm1, logits_t = values.batch(items.s_tm1, key_tm1), target.batch(items.s_t, key_t)
        q_t_selector = self.mean(values.batch(items.s_t, selector_key) if self.double else logits_t)
        a_t = exploration.legal_only(q_t_selector, view(items.s_t).action_mask).argmax(-1)

        # The atoms of s_t, moved by the reward, are between atoms of s_tm1: their probability is shared among these.
        z, row = self.support(), jnp.arange(len(a_t))
        z_t, p_t = items.r_t[:, None] + items.discount_t[:, None] * z, jax.nn.softmax(logits_t[row, a_t])
        p_tm1 = jax.lax.stop_gradient(jax.vmap(rlax.categorical_l2_project, (0, 0, None))(z_t, p_t, z))
        losses = optax.softmax_cross_entropy(logits_tm1[row, items.a_tm1], p_tm1)
        return (weights * losses).mean(), (losses, self.mean(logits_tm1).mean())

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.adam(self.learning_rate))
