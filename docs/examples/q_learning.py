"""Q-learning from replay: uniform, prioritised, and of sequences."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from runnel import Act, Algorithm, Discrete, PrioritisedReplay, SequenceReplay, UniformReplay
from runnel.nn import ActionValues, network_for
from runnel.ops.n_step import n_step_transitions
from runnel.types import zeros


class State(NamedTuple):
    """What learning needs; `params` is what acting needs."""

    params: ActionValues
    optimiser: Any


@dataclass(frozen=True)
class QLearning(Algorithm):
    """Moves the value of an action towards its reward and the best value after it."""

    learning_rate: float = 1e-3
    discount: float = 0.95
    epsilon: float = 0.2

    actions = (Discrete,)  # any other action space is an error

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=4)
        replay = flow.replay(UniformReplay(capacity=10_000))
        replay.insert(flow.map(self.transitions, trajectory))
        batch = replay.sample(batch=64, min_size=1_000, samples_per_insert=2.0)
        flow.learn(self.learn, batch)

    def init(self, key, spec):
        network = network_for(spec.observation)
        params = ActionValues.create(key, network, spec.action.n, zeros(spec.observation))
        return State(params, optax.adam(self.learning_rate).init(params))

    def act(self, params, observation, memory, key, explore):
        random_key, explore_key = jax.random.split(key)
        best = params(observation).argmax()
        anything = jax.random.randint(random_key, (), 0, params.actions)
        explores = explore & jax.random.bernoulli(explore_key, self.epsilon)
        return Act(jnp.where(explores, anything, best).astype(jnp.int32))

    def transitions(self, trajectory):  # [T, B, ...] -> [T * B, ...]
        return n_step_transitions(trajectory, 1, self.discount)

    def td_errors(self, params, items):
        q_tm1 = jnp.take_along_axis(jax.vmap(params)(items.s_tm1), items.a_tm1[:, None], 1)[:, 0]
        q_t = jax.vmap(params)(items.s_t).max(1)
        return jax.lax.stop_gradient(items.r_t + items.discount_t * q_t) - q_tm1

    def learn(self, state, items, key):
        def loss(params):
            errors = self.td_errors(params, items)
            return (errors**2).mean(), errors

        (value, errors), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        changes, optimiser = optax.adam(self.learning_rate).update(grads, state.optimiser)
        state = State(optax.apply_updates(state.params, changes), optimiser)
        return state, {"loss": value, "priorities": jnp.abs(errors) + 1e-6}


@dataclass(frozen=True)
class PrioritisedQLearning(QLearning):
    """Samples transitions with large errors more often."""

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=4)
        replay = flow.replay(PrioritisedReplay(capacity=10_000, exponent=0.6))
        replay.insert(flow.map(self.transitions, trajectory))
        batch = replay.sample(batch=64, min_size=1_000, samples_per_insert=2.0)
        out = flow.learn(self.learn, batch.items)  # beside them: batch.probability, batch.position
        replay.update(out.priorities)


@dataclass(frozen=True)
class SequenceQLearning(QLearning):
    """Samples windows of 8 consecutive steps, [8, batch, ...]."""

    def loop(self, flow):
        trajectory = flow.rollout(self.act, steps=8)
        replay = flow.replay(SequenceReplay(capacity=1_000, length=8, period=8))
        replay.insert(flow.map(self.by_step, trajectory))
        windows = replay.sample(batch=8, min_size=1_000, samples_per_insert=2.0)
        flow.learn(self.learn, flow.map(self.joined, windows))

    def by_step(self, trajectory):  # only what is [T, B, ...]: what is [B, ...] belongs to the whole unroll
        items = self.transitions(trajectory)
        steps, columns = trajectory.reward.shape
        return jax.tree.map(lambda x: x.reshape(steps, columns, *x.shape[1:]), items)

    def joined(self, windows):
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), windows)
