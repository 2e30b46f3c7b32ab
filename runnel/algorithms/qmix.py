"""QMIX (Rashid et al., 2018): a team's value is a monotonic mixture of its agents' values.

As in VDN, the team learns from its shared reward and each agent acts on its own values. A mixing network computes the
team's value from these; its weights are computed from the state, which only learning sees.
"""

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
from runnel.nn import Mixer, TeamValues
from runnel.observations import view
from runnel.ops import exploration, teams
from runnel.ops.n_step import Transition, n_step_transitions
from runnel.ops.td import td_error
from runnel.replay import UniformReplay
from runnel.types import Act, AgentSpec, Array, Discrete, PyTree, Trajectory


class Params(NamedTuple):
    """The parameters that `act` uses."""

    values: TeamValues
    updates: Array  # [] what epsilon falls by


class MixedValues(NamedTuple):
    """The learnt networks: the agents' values and the mixer."""

    values: TeamValues
    mixer: Mixer

    def __call__(self, observation: PyTree, action: Array) -> Array:
        """[] the value of a team's joint action."""
        return self.mixer(self.values.of(observation, action), observation)


class State(NamedTuple):
    """The state of the learner."""

    params: Params
    mixer: Mixer
    target: Any  # MixedValues; `Any`, for optax knows no such tree of arrays
    optimiser: optax.OptState


class Metrics(NamedTuple):
    """Metrics of one update."""

    loss: Array
    mean_value: Array
    epsilon: Array


@dataclass(frozen=True)
class QMIX(Algorithm):
    """Learns values of each agent's actions, and their mixture by the state, from replayed steps of whole teams."""

    learning_rate: float = 5e-4
    discount: float = 0.99
    unroll: int = 4  # steps of every environment per iteration; usual: 1 to 16
    n_step: int = 1
    batch: int = 64
    capacity: int = 50_000  # steps of a team that the replay holds, the oldest replaced first
    min_size: int = 1_000  # steps of a team in the replay before learning begins
    samples_per_insert: float = 8.0  # how often each step of a team is drawn, on average; usual: 1 to 32
    double: bool = True
    target_period: int = 250
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_steps: int = 10_000
    agent_ids: bool = True  # give each agent's values its number beside its observation
    mixing_embed: int = 32  # units of the mixing network's hidden layer; usual: 32
    mixing_hidden: int = 64  # units of the networks that make its weights from the state; usual: 64
    max_grad_norm: float = 10.0
    hidden: tuple[int, ...] = (128, 128)
    activation: Literal["tanh", "relu"] = "relu"
    network: Any = None

    actions: ClassVar = (Discrete,)
    max_staleness: ClassVar[int] = 1_000  # replayed steps are old in any case
    central: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.one_of(self, "activation", "tanh", "relu")
        check.at_least_one(self, "unroll", "n_step", "batch", "capacity", "min_size", "target_period", "epsilon_steps")
        check.steps_ahead(self)
        check.at_least_one(self, "mixing_embed", "mixing_hidden")
        check.positive(self, "learning_rate", "samples_per_insert", "max_grad_norm")
        check.fraction(self, "discount", "epsilon_start", "epsilon_end")

    def loop(self, flow: Flow) -> None:
        for group in flow.groups:
            team = flow.agents(group)
            trajectory = team.rollout(self.act, steps=self.unroll)
            replay = team.replay(UniformReplay(self.capacity))
            replay.insert(team.map(partial(self.transitions, agents=team.spec.agents), trajectory))
            team.learn(self.learn, replay.sample(self.batch, self.min_size, self.samples_per_insert))

    def init(self, key: Array, spec: AgentSpec) -> State:
        values_key, mixer_key = jax.random.split(key)
        values = TeamValues.create(self, values_key, spec)
        mixer = Mixer.create(mixer_key, spec, self.mixing_embed, self.mixing_hidden)
        team: Any = MixedValues(values, mixer)
        return State(Params(values, jnp.int32(0)), mixer, team, self._optimiser().init(team))

    def act(
        self, params: Params, observation: PyTree, memory: PyTree, key: Array, explore: bool, index: Array | int = 0
    ) -> Act:
        seen, legal, *_ = view(observation)
        epsilon = self.epsilon(params) if explore else 0.0
        return Act(exploration.epsilon_greedy(key, params.values(seen, index), epsilon, legal))

    def epsilon(self, params: Params) -> Array:
        """The probability with which an agent acts at random."""
        steps = params.updates * (self.batch / self.samples_per_insert)
        return optax.linear_schedule(self.epsilon_start, self.epsilon_end, self.epsilon_steps)(steps)

    def transitions(self, trajectory: Trajectory, agents: int) -> Transition:
        """[T * E] transitions of whole teams: observations and actions are `[agents, ...]`."""
        return n_step_transitions(teams.together(trajectory, agents), self.n_step, self.discount)

    def gradient(self, state: State, batch: Transition, key: Array) -> tuple[MixedValues, Metrics]:
        team = MixedValues(state.params.values, state.mixer)
        (loss, mean_value), grads = jax.value_and_grad(self._loss, has_aux=True)(team, state.target, batch)
        return grads, Metrics(loss, mean_value, self.epsilon(state.params))

    def apply(self, state: State, grads: Any) -> State:
        team: Any = MixedValues(state.params.values, state.mixer)
        changes, optimiser = self._optimiser().update(grads, state.optimiser)
        team = optax.apply_updates(team, changes)
        updates = state.params.updates + 1
        target = optax.periodic_update(team, state.target, updates, self.target_period)
        return State(Params(team.values, updates), team.mixer, target, optimiser)

    def _loss(self, team: MixedValues, target: MixedValues, items: Transition) -> tuple[Array, Array]:
        total_tm1 = jax.vmap(team)(items.s_tm1, items.a_tm1)  # [batch]
        # The mixture is greatest where each agent's value is, so each chooses for itself.
        a_t = jax.vmap((team if self.double else target).values.greedy)(items.s_t)  # [batch, agents]
        total_t = jax.vmap(target)(items.s_t, a_t)
        td_errors = td_error(total_tm1, items.r_t, items.discount_t, total_t)
        return optax.l2_loss(td_errors).mean(), total_tm1.mean()

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.adam(self.learning_rate))
