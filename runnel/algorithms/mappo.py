"""Multi-agent PPO (Yu et al., 2022): policies that act on each agent's observation, and a centralised value.

Only learning uses the value, which sees the whole state, so agents act without it. For stale actors under an
asynchronous distribution, advantages are V-trace's, as in PPO.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from runnel.algorithm import Algorithm
from runnel.algorithms import check
from runnel.graph.flow import Flow
from runnel.nn import AgentPolicy, StateValue, agents, popart
from runnel.nn.cores import Memory
from runnel.nn.popart import PopArt
from runnel.observations import view
from runnel.ops import proximal, returns, statistics
from runnel.ops.averages import standardised
from runnel.ops.vtrace import corrected, ratios
from runnel.types import Act, AgentSpec, Array, PyTree, Trajectory


class Params(NamedTuple):
    """The parameters that `act` uses."""

    policy: AgentPolicy
    observations: list[statistics.Statistics | None]  # empty where observations are taken as they are


class Networks(NamedTuple):
    """The networks that gradients update."""

    policy: Any  # AgentPolicy; `Any`, for optax knows no such tree of arrays
    critic: Any  # StateValue


class State(NamedTuple):
    """The state of the learner."""

    params: Params
    critic: StateValue
    optimisers: tuple[optax.OptState, optax.OptState]  # of the two networks
    popart: PopArt | None
    updates: Array  # []


class Extras(NamedTuple):
    """Outputs of `act` that `learn` uses."""

    sample: Array | tuple[()]  # the unclipped sample, where the action may be clipped
    log_prob: Array  # []


class Batch(NamedTuple):
    """The input of the loss: an unroll, or a minibatch of it, which is flat, `[N, ...]`, where there is no memory."""

    observation: PyTree  # [T, B, ...] with the state
    agent: Array  # [T, B] its column
    sample: Array  # [T, B, ...] what the policy drew
    log_prob: Array  # [T, B] by the policy to stay near
    advantage: Array  # [T, B]
    value: Array  # [T, B] what the critic predicted
    target: Array  # [T, B] what it should have
    first: Array  # [T, B]
    memory: PyTree  # [1, B, ...]


class Metrics(NamedTuple):
    """Metrics of one update."""

    policy_loss: Array
    value_loss: Array
    entropy: Array
    approx_kl: Array
    clip_fraction: Array
    explained_variance: Array
    learning_rate: Array


@dataclass(frozen=True)
class MAPPO(Algorithm):
    """PPO for teams: agents share a policy, and a value that sees the state of the whole environment."""

    learning_rate: float = 5e-4
    anneal_steps: int | None = None  # environment steps over which the learning rate falls to 0; none: it stays
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
    value_clip: float | None = 0.2  # as in PPO; with `popart` in deviations of returns; usual: 0.2
    entropy_cost: float = 0.01
    max_grad_norm: float = 0.5  # longest gradient of each network, by global norm; a longer one is scaled down
    normalise_observations: bool = False
    normalise_advantages: bool = True
    popart: bool = True
    agent_ids: bool = True  # give the policy each agent's number beside its observation; the value always has it
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    network: Any = None
    memory: Memory = "none"  # recurrent cell of the policy; the value has none, as it sees the whole state
    memory_size: int = 64
    scan_unroll: int = 1

    central: ClassVar[bool] = True

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

    def for_staleness(self, staleness: int) -> MAPPO:
        return self if self.advantages != "auto" else replace(self, advantages="vtrace" if staleness else "gae")

    def loop(self, flow: Flow) -> None:
        flow.learn(self.learn, flow.rollout(self.act, steps=self.unroll))

    def init(self, key: Array, spec: AgentSpec) -> State:
        policy_key, critic_key = jax.random.split(key)
        policy: Any = AgentPolicy.create(self, policy_key, spec)
        critic: Any = StateValue.create(self, critic_key, spec)
        observations = statistics.observation_statistics(spec.observation) if self.normalise_observations else []
        optimisers = (self._optimiser().init(policy), self._optimiser().init(critic))
        return State(Params(policy, observations), critic, optimisers, popart.initial(self.popart), jnp.int32(0))

    def initial_memory(self, spec: AgentSpec) -> PyTree:
        core = agents.core_for(self)
        return () if core is None else core.initial_memory()

    def act(
        self, params: Params, observation: PyTree, memory: PyTree, key: Array, explore: bool, index: Array | int = 0
    ) -> Act:
        distribution, memory = params.policy.step(self._seen(params, observation), memory, index)
        sample = distribution.sample(key) if explore else distribution.mode()
        head = params.policy.head
        return Act(head.action(sample), memory, Extras(sample if head.clips else (), distribution.log_prob(sample)))

    def learn(self, state: State, trajectory: Trajectory, key: Array) -> tuple[State, Metrics]:
        batch = self.batch(state, trajectory)
        # In floating point: a count of environment steps would overflow within minutes on a GPU.
        steps = trajectory.reward.size // state.critic.agents
        per_update = 0.0 if self.anneal_steps is None else steps / self.anneal_steps
        left = jnp.maximum(0.0, 1 - state.updates * per_update)
        learning_rate = jnp.asarray(self.learning_rate * left, batch.target.dtype)

        def step(carry: tuple[Networks, Any], minibatch: Batch) -> tuple[tuple[Networks, Any], Metrics]:
            networks, optimisers = carry
            grads, metrics = jax.grad(self.loss, has_aux=True)(networks, minibatch)
            updates = map(self._optimiser().update, grads, optimisers)
            changes, optimisers = zip(*updates, strict=True)
            changes = jax.tree.map(lambda x: -learning_rate * x, Networks(*changes))
            return (optax.apply_updates(networks, changes), optimisers), metrics  # type: ignore[return-value]

        (networks, optimisers), metrics = proximal.epochs(
            step, (Networks(state.params.policy, state.critic), state.optimisers), batch, key,
            self.epochs, self.minibatches, sequences=self.memory != "none", unroll=self.scan_unroll,
        )  # fmt: skip
        # Only now: the policy that was learnt from saw the observations by the old statistics.
        observations = state.params.observations
        if self.normalise_observations:
            observations = statistics.update_observation_statistics(observations, trajectory.observation)
        params = Params(networks.policy, observations)
        moments = popart.moments(state.popart, popart.value(state.popart, batch.target))
        critic, returned = popart.updated(state.popart, networks.critic, moments)
        unexplained = jnp.var(batch.target - batch.value) / (jnp.var(batch.target) + 1e-8)
        metrics = metrics._replace(explained_variance=1 - unexplained, learning_rate=learning_rate)
        return State(params, critic, optimisers, returned, state.updates + 1), metrics

    def batch(self, state: State, trajectory: Trajectory) -> Batch:
        """Advantages and targets of an unroll."""
        params, critic, extras = state.params, state.critic, trajectory.extras
        observation, last_observation = (
            critic.with_state(self._seen(params, x)) for x in (trajectory.observation, trajectory.last_observation)
        )
        trajectory = trajectory._replace(observation=observation, last_observation=last_observation)

        def value(observation: PyTree, agent: Array) -> Array:
            return popart.value(state.popart, critic(observation, agent))

        agent = jnp.broadcast_to(trajectory.index, trajectory.reward.shape)
        sample = extras.sample if params.policy.head.clips else trajectory.action
        log_prob, active = extras.log_prob, view(observation).active
        v_tm1 = jax.vmap(jax.vmap(value))(observation, agent)
        v_t = returns.next_values(value, v_tm1, trajectory, agent)
        if self.advantages == "vtrace":
            # The policy stays near the present one; the ratios make up for the one that acted.
            now = self._policies(params.policy, observation, trajectory.first, trajectory.memory, agent)
            log_prob = now.log_prob(sample)
            rho_tm1 = ratios(log_prob, extras.log_prob, active)
            target, advantage, weight = corrected(trajectory, v_tm1, v_t, rho_tm1, self.discount, self.gae_lambda)
        else:
            weight = None
            ends = trajectory.terminated, trajectory.truncated
            advantage, target = returns.advantages(trajectory.reward, *ends, v_tm1, v_t, self.discount, self.gae_lambda)
        if self.normalise_advantages:
            # Over the unroll, not each minibatch: learners then have one mean to agree on instead of many.
            advantage = standardised(advantage, active)
        if weight is not None:  # only now: of what the present policy would hardly do, next to nothing is learnt
            advantage = weight * advantage
        first, memory = (trajectory.first, trajectory.memory) if self.memory != "none" else ((), ())
        return Batch(
            observation,
            agent,
            sample,
            log_prob,
            advantage,
            popart.normalised(state.popart, v_tm1),
            popart.normalised(state.popart, target),
            first,
            jax.tree.map(lambda x: x[None], memory),
        )

    def loss(self, networks: Networks, batch: Batch) -> tuple[Array, Metrics]:
        """The loss of a batch or a minibatch, and its metrics."""
        policy: AgentPolicy = networks.policy
        if self.memory == "none":
            distribution, _ = jax.vmap(policy.step, (0, None, 0))(batch.observation, (), batch.agent)
            value = jax.vmap(networks.critic)(batch.observation, batch.agent)
        else:
            memory = jax.tree.map(lambda x: x[0], batch.memory)
            distribution = self._policies(policy, batch.observation, batch.first, memory, batch.agent)
            value = jax.vmap(jax.vmap(networks.critic))(batch.observation, batch.agent)
        # The policy learns from steps in which an agent had a choice, the value from all.
        active = view(batch.observation).active
        terms = proximal.policy_terms(
            distribution, batch.sample, batch.log_prob, batch.advantage, active, self.clip, self.dual_clip
        )
        value_loss = proximal.clipped_value_loss(value, batch.target, batch.value, self.value_clip).mean()
        loss = terms.loss - self.entropy_cost * terms.entropy + value_loss
        zero = jnp.zeros_like(loss)
        return loss, Metrics(terms.loss, value_loss, *terms[1:], zero, zero)

    def _policies(self, policy: AgentPolicy, observation: PyTree, first: Array, memory: PyTree, agent: Array) -> Any:
        """[T, B] each agent's action distribution at every step of its column."""
        if self.memory == "none":
            return jax.vmap(jax.vmap(policy.step, (0, None, 0)), (0, None, 0))(observation, (), agent)[0]
        return jax.vmap(policy.unroll, (1, 1, 0, 1), 1)(observation, first, memory, agent)

    def _seen(self, params: Params, observation: PyTree) -> PyTree:
        """The normalised observation."""
        return statistics.normalise(params.observations, observation) if self.normalise_observations else observation

    def _optimiser(self) -> optax.GradientTransformation:
        # As one vector: on a CPU, an update takes 16% less time than with an array for each weight and bias.
        return optax.flatten(optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam(eps=1e-5)))
